"""Figure 2, of a trained network's heads: groups of heads, and the refusal of a network of one head."""

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments import reproduce
from clusterjax.experiments.figures.figure2 import groups_of
from clusterjax.probe.measures.survey import average_of
from tests.helpers import as_a_user
from tests.network_cases import CONFIG, checkpoint


def alike_of(matrices, noise=0.01):
    """Head correlations (layers, heads, heads) with resamples around them."""
    rng = np.random.default_rng(1)
    matrices = np.asarray(matrices, float)
    wobble = noise * rng.normal(size=(20, *matrices.shape))
    resampled = matrices + (wobble + wobble.swapaxes(2, 3)) / 2
    average = probe.Average(matrices, np.full(matrices.shape, noise), 16)
    others = ~np.eye(matrices.shape[-1], dtype=bool)
    of_texts = (matrices + noise * rng.normal(size=(16, *matrices.shape)))[..., others].mean(axis=-1)
    groups = probe.head_clusters(matrices, resampled, 2)
    return probe.HeadCorrelations(average, resampled, groups, average_of(of_texts))


def blocks(within, across, sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(labels[:, None] == labels[None, :], within, across)
    np.fill_diagonal(matrix, 1.0)
    return matrix


PAIR, LONE = blocks(0.8, 0.1, (2, 2)), blocks(0.8, 0.1, (3, 1))
FLAT, WEAK = blocks(0.3, 0.3, (2, 2)), blocks(0.35, 0.3, (2, 2))


def test_groups_are_called_what_they_are():
    alike = alike_of([PAIR, LONE, FLAT, WEAK])
    pair, lone, flat, weak = (groups_of(alike, layer) for layer in range(4))
    assert (pair.word, lone.word, flat.word, weak.word) == ("clusters", "outlier", "unsure", "unsure")
    assert pair.heads == [[0, 1], [2, 3]] and pair.numbers == [[1, 2], [3, 4]]
    assert pair.within == pytest.approx([0.8, 0.8]) and pair.across == pytest.approx(0.1)
    assert [margin for margin, _ in pair.margins] == pytest.approx([0.7, 0.7])
    assert all(0 < error < 0.02 for _, error in pair.margins)
    assert np.isnan(lone.within[1]) and lone.stability == 1


def test_a_network_of_one_head_is_refused(tmp_path):
    settings = checkpoint(tmp_path, CONFIG | {"num_attention_heads": 1})
    with as_a_user(), pytest.raises(ValueError, match="albert must have two heads or more for correlations"):
        reproduce(["figure2"], tmp_path / "out", settings)
    said = []
    assert reproduce(["heads"], tmp_path / "out", settings, leave_out=True, say=said.append) == []
    assert said[0].startswith("heads is left out: albert must have two heads or more for correlations, but")
