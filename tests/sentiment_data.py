"""The real reviews where they are, and small made-up ones: what the tests of `sentiment` share."""

import functools
from pathlib import Path

import numpy as np
import pytest

from clusterjax.sentiment import Reviews, load_imdb


IMDB = Path(__file__).resolve().parents[2] / "shared" / "data" / "imdb"
needs_imdb = pytest.mark.skipif(
    not (IMDB / "imdb50k.csv.gz").is_file(), reason="the real reviews are not beside the checkout, in ../shared/data"
)


@functools.cache
def real_reviews() -> Reviews:
    return load_imdb(IMDB / "imdb50k.csv.gz")


def part(reviews: Reviews, name: str) -> Reviews:
    return reviews.take(np.flatnonzero(reviews.split == name))


def reviews_of(*texts: str) -> Reviews:
    """Reviews with labels that mean nothing."""
    return Reviews(texts, np.arange(len(texts)) % 2)
