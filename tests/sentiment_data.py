"""The real reviews, where they are present, and small invented reviews, which the tests of `sentiment` share."""

import functools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.sentiment import Fitted, HardmaxClassifier, Recipe, Reviews, Vocabulary, load_imdb


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
    """Reviews with labels that have no meaning."""
    return Reviews(texts, np.arange(len(texts)) % 2)


# A model built by hand: its words belong to no language, and its numbers are random.
WORDS = tuple(f"{a}{b}q" for a in "bcdfg" for b in "hjklmnprst")
VOCABULARY = Vocabulary(WORDS, (5,) * len(WORDS))


def fitted_by_hand(heads: int = 1, A: np.ndarray | None = None, depth: int = 4) -> Fitted:
    rng = np.random.default_rng(0)
    embedding, w = (jnp.asarray(rng.normal(size=shape), float) for shape in ((VOCABULARY.size, heads, 2), (heads, 2)))
    model = HardmaxClassifier(embedding, w, jnp.asarray(0.125), rng.uniform(0.5, 1.5, heads), A, depth=depth)
    return Fitted(model, VOCABULARY, Recipe(heads=heads, depth=depth), [{"loss": 0.5}], 1)
