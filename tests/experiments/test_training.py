"""The figure of the training compares a trained network with random starts, by texts and by networks."""

import numpy as np
import pytest

from clusterjax.experiments.shared.controls import STARTS, keys_of, seed_of, starts_of


TEXTS = 0.01 * np.linspace(-1, 1, 5)[:, None]


def starts(trained, *others):
    """A network with the mean `trained` over texts at the last level, and random starts with the means `others`."""
    texts = lambda mean, turn: np.array([0.1, mean]) + turn * TEXTS
    return starts_of(texts(trained, 1), [texts(mean, -1) for mean in others])


def test_starts_are_compared_by_texts_and_by_networks():
    """Errors of texts and of the means of three networks, with two degrees of freedom, are computed by hand."""
    found = starts(0.6, 0.4, 0.5, 0.3)
    np.testing.assert_allclose(found.each, [[0.1, 0.4], [0.1, 0.5], [0.1, 0.3]])
    assert found.mean[-1] == pytest.approx(0.4) and found.error[-1] == pytest.approx(0.1 / np.sqrt(3))
    of_texts = (2 * TEXTS).std(ddof=1) / np.sqrt(5)
    assert found.beyond.difference[-1] == pytest.approx(0.2)
    assert found.beyond.error[-1] == pytest.approx(np.hypot(0.1 / np.sqrt(3), of_texts))
    assert found.beyond.z[-1] > 2 and not found.exceeds(), "with three networks two errors are not enough"
    assert starts(0.6, 0.4, 0.41, 0.39).exceeds() and not starts(0.4, 0.6, 0.61, 0.59).exceeds()
    assert found.words() == "0.400 ± 0.058 over 3 random starts (0.400, 0.500, 0.300)"


def test_starts_are_of_as_many_seeds():
    seeds = {seed_of(key) for seed in (0, 1) for key in keys_of(seed)}
    assert len(keys_of(0)) == STARTS == 3 and len(seeds) == 6 and all(seed >= 0 for seed in seeds)
