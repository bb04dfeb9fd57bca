"""The network and the data of a paper are known by numbers and content, never by a name alone."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.shared.networks import _SIZES, subject_of
from clusterjax.experiments.shared.sentiment import is_imdb
from clusterjax.experiments.shared.sources import ALBERT
from clusterjax.sentiment import Reviews, synthetic_reviews
from tests.probe_cases import sizes_like
from tests.sentiment_data import needs_imdb, real_reviews


# --- reviews


def changed(texts=None, labels=None):
    whole = real_reviews()
    return Reviews(whole.texts if texts is None else tuple(texts), whole.labels if labels is None else labels)


@pytest.mark.exhaustive
@needs_imdb
def test_the_real_reviews_are_known_in_any_order_and_layout():
    whole = real_reviews()
    labelled = whole.take(np.flatnonzero(whole.labels >= 0))
    order = np.random.default_rng(0).permutation(len(labelled))
    assert is_imdb(labelled) and is_imdb(labelled.take(order))
    texts = tuple('"' + text.replace("<br />", "\r\n") + '"' for text in labelled.texts)
    assert is_imdb(Reviews(texts, labelled.labels))


@pytest.mark.exhaustive
@needs_imdb
def test_other_labels_other_words_or_fewer_reviews_are_not_the_real_ones():
    whole = real_reviews()
    assert not is_imdb(changed(labels=1 - whole.labels))
    assert not is_imdb(changed(texts=[f"{text} again" for text in whole.texts]))
    assert not is_imdb(whole.take(np.arange(48_000)))
    # The smallest hashes alone are not enough: the other reviews must be as many, and different.
    assert not is_imdb(changed(texts=[*whole.texts[:25_000]] * 2, labels=np.tile(whole.labels[:25_000], 2)))


def test_made_up_reviews_are_not_the_real_ones():
    reviews = synthetic_reviews(jax.random.key(0), 50, num_neutral=20).reviews
    many = 50_000 // len(reviews)
    assert not is_imdb(reviews)
    assert not is_imdb(Reviews(reviews.texts * many, np.tile(reviews.labels, many)))


# --- networks


def model(numbers, *, name="albert-base-v2", words=(30000, 128), heads=None, folder=None):
    """The network of the package, which declares these sizes; of the weights only the number counts."""
    (width, num_heads, layers, middle), loaded = numbers, probe.load()
    loaded.network.sizes = sizes_like(
        "albert", vocab_size=words[0], embedding_size=words[1], hidden_size=width, num_heads=num_heads,
        intermediate_size=middle, num_layers=layers,
    )  # fmt: skip
    loaded.network.num_heads = heads or num_heads
    return dataclasses.replace(loaded, name=name, folder=folder)


@pytest.mark.exhaustive_cases("albert-base", "albert-xlarge", "albert-xxlarge")
@pytest.mark.parametrize("one, numbers", list(zip(ALBERT, _SIZES, strict=True)), ids=[one.key for one in ALBERT])
def test_a_published_albert_has_its_sizes_heads_and_name(one, numbers):
    width, num_heads, layers, middle = numbers
    right = model(numbers, name=f"albert/{one.key}-v2")
    assert subject_of(right, "words").key == one.key
    assert (
        subject_of(model(numbers, name="mine", folder=Path(f"/models--albert--{one.key}-v1/x")), "words").key == one.key
    )
    for wrong in (
        model(numbers, name="my-albert"),
        model(numbers, name=one.key, heads=num_heads * 2),
        model(numbers, name=one.key, words=(30522, 128)),
        model((width, num_heads, layers + 1, middle), name=one.key),
        model((width // 2, num_heads // 2, layers, middle), name=one.key),
        model((width, num_heads, layers, middle + 1), name=one.key),
    ):
        assert subject_of(wrong, "words").key == "another network"


def test_the_network_of_the_package_is_not_a_published_one():
    found = subject_of(probe.load(), "the ALBERT of this package")
    assert found.key == "another network" and found.words.endswith("0.63 million parameters")
