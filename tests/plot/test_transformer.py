"""Pictures of a Transformer: flows between streams, positions, the logit lens, neurons as memories."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch

from clusterjax import plot, transformer
from clusterjax.plot import OKABE_ITO
from clusterjax.probe import CausalTrace
from tests.helpers import as_a_user, assert_close
from tests.transformer_cases import FARTHEST, N, X, attention_of


VOCABULARY = [f"word{k}" for k in range(9)]


def arcs(ax):
    """The arcs as (from, to, layer) and their widths, widest first."""
    found = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    ends = [patch.get_path().vertices[[0, -1]] for patch in found]
    return [(*end[:, 0].tolist(), int(end[0, 1])) for end in ends], np.array([patch.get_linewidth() for patch in found])


def flow(layers=2, heads=3, n=5):
    return np.random.default_rng(1).uniform(size=(layers, heads, n, n))


@pytest.mark.parametrize("most", (1, 7, 10**4))
def test_the_strongest_arcs_are_drawn_in_proportion(most):
    moved = flow()
    ax = plot.residual_flow(moved, most=most)
    assert isinstance(ax, Axes)
    expected = sorted(
        ((moved[l, h, i, j], (j, i, l), h) for l, h, i, j in np.ndindex(moved.shape) if i != j), reverse=True
    )[:most]
    places, widths = arcs(ax)
    assert places == [place for _, place, _ in expected]
    sizes = np.array([size for size, _, _ in expected])
    np.testing.assert_allclose(widths / widths[0], sizes / sizes[0])
    assert [patch.get_edgecolor() for patch in ax.patches] == [to_rgba(OKABE_ITO[h]) for _, _, h in expected]


def test_boxes_are_the_darker_the_more_is_written():
    written = np.array([[1.0, 4.0, 2.0], [0.0, 3.0, 0.5]])
    ax = plot.residual_flow(flow(2, 1, 3), written=written)
    boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    places = [(round(box.get_x() - 0.3), int(box.get_y())) for box in boxes]
    assert places == [(k, layer) for layer in range(2) for k in range(3)]
    darkness = np.array([1 - box.get_facecolor()[0] for box in boxes])
    np.testing.assert_allclose(darkness / darkness[1], written.ravel() / 4.0, atol=1e-12)
    assert "feed-forward, darkest: adds 4" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_sinusoids_depend_on_the_offset_alone():
    """Heat map, cosines and inner products of the table are those of the formula."""
    n, d = 12, 8
    table = transformer.sinusoidal_positions(n, d)
    (image,) = plot.position_table(table).images
    np.testing.assert_array_equal(np.asarray(image.get_array()), np.asarray(table))
    assert image.get_clim() == (-1.0, 1.0)  # cos 0 is in the table
    offsets = np.arange(1 - n, n)
    expected = np.cos(offsets[:, None] / 10_000.0 ** (np.arange(0, d, 2) / d)).sum(axis=1)
    ax = plot.position_offsets(table, label="sinusoidal")
    np.testing.assert_allclose(ax.lines[0].get_xydata(), np.stack([offsets, expected], axis=1), atol=1e-12)
    band = ax.collections[0].get_paths()[0].vertices
    assert all(abs(y - expected[int(round(x)) + n - 1]) < 1e-9 for x, y in band)
    (image,) = plot.position_cosines(table).images
    index = np.arange(n)
    np.testing.assert_allclose(image.get_array(), expected[index[None] - index[:, None] + n - 1] / (d / 2), atol=1e-12)


def test_a_learned_table_has_a_band_and_zero_has_no_angle():
    table = np.array([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, 0.0]])
    (image,) = plot.position_cosines(table).images
    cosines = np.ma.filled(image.get_array(), 9.0)
    np.testing.assert_allclose(cosines, [[1, 0, -1, 9], [0, 1, 0, 9], [-1, 0, 1, 9], [9, 9, 9, 9]])
    assert image.get_clim() == (-1.0, 1.0)
    ax = plot.position_offsets(table)
    assert ax.get_legend() is None
    band = ax.collections[0].get_paths()[0].vertices
    assert [(band[np.isclose(band[:, 0], k), 1].min(), band[np.isclose(band[:, 0], k), 1].max()) for k in (0, 2)] == [
        (0.0, 9.0), (-3.0, 0.0)
    ]  # fmt: skip
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0, -1.5, 0, 3.5, 0, -1.5, 0])


def test_relative_positions_add_what_the_attention_adds():
    """The lines are the part of the scores of a layer that its relative positions make, averaged over the queries."""
    attention = attention_of(relative=True)
    attention = eqx.tree_at(lambda a: a.key, attention, jnp.zeros_like(attention.key))
    relative, queries = attention.relative, np.einsum("nd,hdk->hnk", X, attention.query)
    ax = plot.relative_positions(relative.keys, queries=queries, beta=attention.beta)
    scores = np.log(np.asarray(eqx.filter_jit(attention.weights)(X)))  # up to a constant for each query
    row, middle = np.clip(np.arange(N) - 2, -FARTHEST, FARTHEST) + FARTHEST, FARTHEST
    added = np.asarray(attention.beta)[:, None, None] * np.einsum("hnk,rk->hnr", queries, relative.keys)
    assert_close(scores[:, 2] - scores[:, 2, 2:3], added[:, 2, row] - added[:, 2, middle, None])
    lines = [line for line in ax.lines if line.get_marker() == "o"]
    assert [line.get_label() for line in lines] == ["head 1", "head 2", "head 3"]
    for line, band, one in zip(lines, ax.collections, added, strict=True):
        np.testing.assert_allclose(line.get_xydata(), np.stack([np.arange(-2, 3), one.mean(axis=0)], axis=1))
        high = {tuple(point) for point in band.get_paths()[0].vertices.round(9)}
        assert {(k - 2.0, y) for k, y in enumerate((one.mean(axis=0) + one.std(axis=0)).round(9))} <= high
    assert [text.get_text() for text in ax.get_xticklabels()] == ["≤ −2", "−1", "0", "1", "≥ 2"]
    ax = plot.relative_positions(relative.keys, label="keys")
    plot.relative_positions(3.0 * relative.keys, ax, label="values")
    lengths = np.linalg.norm(relative.keys, axis=1)
    keys, values = (line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_allclose(keys.get_ydata(), lengths)
    np.testing.assert_allclose(values.get_ydata(), 3.0 * lengths)
    assert ax.get_ylim()[0] == 0.0 and ax.get_ylim()[1] > 3.0 * lengths.max()


def lens_of(levels=3, n=4, seed=0):
    return 3.0 * np.random.default_rng(seed).normal(size=(levels, n, len(VOCABULARY)))


def cells(ax):
    return {tuple(map(int, text.get_position())): text for text in ax.texts}


def test_the_lens_shows_the_likeliest_words_from_the_bottom_up():
    logits = lens_of()
    logits[0, 1, 5] = 800.0  # nothing overflows
    ax = plot.logit_lens(logits, VOCABULARY, tokens=["a", "b", "c", "d"])
    shares = scipy.special.softmax(logits, axis=2)
    (image,) = ax.images
    np.testing.assert_allclose(np.asarray(image.get_array()), shares.max(axis=2), rtol=1e-12)
    assert image.get_clim() == (0.0, 1.0) and ax.get_ylim() == (-0.5, 2.5)
    assert {place: text.get_text() for place, text in cells(ax).items()} == {
        (k, level): VOCABULARY[int(logits[level, k].argmax())] for level in range(3) for k in range(4)
    }
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b", "c", "d"]
    assert ax.figure.axes[1].get_ylabel() == "probability of the word"


def test_a_causal_trace_is_what_each_place_gives_back():
    """Token k and level l are at (l, k), zero is white, and the title names the restored part."""
    restored = np.random.default_rng(0).normal(-3.0, 1.0, (5, 3))
    trace = CausalTrace(restored, -1.25, -4.5)
    ax = plot.causal_trace(trace, tokens=["The", "tower", "$is$"])
    (image,) = ax.images
    np.testing.assert_allclose(np.asarray(image.get_array()), restored.T + 4.5, rtol=1e-12)
    low, high = image.get_clim()
    assert -low == high == np.abs(restored + 4.5).max()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["The", "tower", "$is$"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("level", "token") and ax.get_ylim() == (2.5, -0.5)
    assert "stream restored" in ax.get_title() and "−1.25 clean, −4.50 corrupted" in ax.get_title()
    assert ax.figure.axes[1].get_ylabel() == "gain of log probability (nats)"
    assert plot.causal_trace(trace, Figure().add_subplot(), title="facts").get_title() == "facts"
    for given, message in (
        ((restored, None), "trace must be a causal trace"), ((trace, ["a"]), "tokens must be 3 names"),
        ((trace._replace(restored=restored[0]), None), "trace.restored must"),
        ((trace._replace(clean=np.nan), None), "trace.clean must"),
    ):  # fmt: skip
        with as_a_user(), pytest.raises(ValueError, match=message):
            plot.causal_trace(given[0], tokens=given[1])


TEXTS = np.array([[0, 1, 2, 3, 4, 5], [8, 7, 6, 0, 0, 0]])
MEMORY = transformer.KeyValueMemory(
    activation=np.array([[2.5, 1.25], [0.5, -np.inf]]), text=np.array([[0, 1], [1, -1]]),
    position=np.array([[3, 0], [2, -1]]), promoted=np.array([[4, 2, 7], [1, 0, 5]]),
    promotion=np.array([[3.0, 1.0, -0.5], [2.0, 1.5, 1.0]]), mean=np.zeros(2), rate=np.ones(2),
)  # fmt: skip


def rows_of(ax):
    """The texts of each row, from left to right."""
    found: dict[float, list[str]] = {}
    for text in sorted(ax.texts, key=lambda text: text.get_window_extent().x0):
        if text.get_text():
            found.setdefault(round(text.xy[1], 6), []).append(text.get_text())
    return found


def test_a_neuron_is_shown_with_its_words_and_places():
    present = np.array([[True] * 6, [True] * 3 + [False] * 3])
    ax = plot.neuron_memory(MEMORY, [1, 0], VOCABULARY, TEXTS, present=present)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["word1", "word0", "word5", "word4", "word2", "word7"]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [2.0, 1.5, 1.0, 3.0, 1.0, -0.5])
    tops, rows = [float(ax.get_yticks()[k]) for k in (0, 3)], rows_of(ax)
    assert rows[-1.0] == ["neuron 1", "fires most at"] and rows[round(tops[1] - 1, 6)] == ["neuron 0", "fires most at"]
    assert rows[tops[0]] == ["0.500", "word8 word7", "word6"], "what is padding is not read"
    assert rows[round(tops[1], 6)] == ["2.50", "word0 word1 word2", "word3", "word4 word5"]
    assert rows[round(tops[1] + 1, 6)] == ["1.25", "word8", "word7 word6"] and len(rows) == 5
    assert [text.get_text() for text in ax.texts if text.get_weight() == "bold"].count("word3") == 1
    low, high = ax.spines["bottom"].get_bounds()
    assert (low, high) == (-0.5, 3.0) and all(low <= tick <= high for tick in ax.get_xticks())
    single = plot.neuron_memory(MEMORY, 0, lambda k: VOCABULARY[k], TEXTS, most=1)
    assert [text.get_text() for text in single.get_yticklabels()] == ["word4"] and len(rows_of(single)) == 2
