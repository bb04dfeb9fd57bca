"""Histograms, matrices, spectra and series as pictures: the numbers in the artists are those that were given."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from clusterjax import plot
from tests.plotting import as_set, sphere_tokens, words


def test_histograms_count_each_pair_once():
    x = sphere_tokens(9)
    cosines = np.array([x[i] @ x[j] for i in range(9) for j in range(i + 1, 9)])
    edges = np.linspace(-1, 1, 9)
    counted = [sum(low <= c < high for c in cosines) for low, high in itertools.pairwise(edges)]
    for values in (x @ x.T, cosines):
        (ax,) = plot.histograms([values], bins=8)
        stairs = ax.patches[0].get_data()
        np.testing.assert_allclose(stairs.edges, edges)
        np.testing.assert_allclose(stairs.values, np.array(counted) / 36 / 0.25, rtol=1e-12)
    (ax,) = plot.histograms([counted], bins=8, counted=True)
    np.testing.assert_allclose(ax.patches[0].get_data().values, np.array(counted) / 36 / 0.25, rtol=1e-12)


def test_histograms_share_axes_and_write_the_height_of_a_spike():
    """Cosines of tokens that coincide may round to above 1; all their mass is in the last bin."""
    flat = np.linspace(-1, 1, 1000)
    axes = plot.histograms([flat, flat, flat, np.full(10, 1.0 + 2e-7)], bins=40, labels=list("abcd"))
    assert [ax.get_title() for ax in axes] == list("abcd")
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert axes[3].patches[0].get_data().values[-1] == pytest.approx(20.0)
    assert [words(ax) for ax in axes] == [set(), set(), set(), {"peak 20"}]
    assert axes[0].figure.get_supxlabel() == "cosine similarity"


def test_heatmap_shows_the_matrix_upright():
    matrix = np.arange(12.0).reshape(3, 4)
    matrix[1, 2] = np.nan
    ax = plot.heatmap(matrix, xnames=["a", "b", "c", "word"], ynames=["p", "q", "r"])
    (image,) = ax.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), matrix)
    assert image.get_clim() == (0.0, 11.0) and image.origin == "upper"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b", "c", "word"]
    assert ax.get_xlabel() == "attended token" and len(ax.figure.axes) == 2
    assert plot.heatmap(matrix - 2.0, symmetric=True).images[0].get_clim() == (-9.0, 9.0)
    assert plot.heatmap(matrix, limits=(-1, 20)).images[0].get_clim() == (-1.0, 20.0)
    assert plot.heatmap(np.zeros((2, 2))).images[0].get_clim() == (-0.5, 0.5)


def test_spectrum_holds_every_eigenvalue_on_equal_axes():
    values = np.array([1.0, -0.5 + 2j, -0.5 - 2j, np.nan])
    ax = plot.spectrum(values, label="V")
    drawn = np.asarray(ax.collections[0].get_offsets())
    np.testing.assert_allclose(drawn @ [1, 1j], values[:3])
    assert ax.get_aspect() == 1.0 and ax.get_xlim()[1] > 2.0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Re λ", "Im λ")
    plot.spectrum(jnp.array([5.0, 0.1]), ax, label="B")
    assert ax.get_xlim()[1] > 5.0 and len(ax.collections) == 2
    plot.spectrum(np.array([0.1]), ax)
    assert ax.get_xlim()[1] > 5.0
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["V", "B"]


def test_phase_diagram_puts_cells_around_their_points():
    xs, ys = np.array([1.0, 10.0, 100.0]), np.array([0.0, 1.0, 3.0, 4.0])
    grid = np.arange(12.0).reshape(4, 3)
    ax = plot.phase_diagram(xs, ys, grid, curves={"theory": (xs, [0.0, 1.0, 2.0])}, log_x=True, xlabel="β", ylabel="t")
    (mesh,) = [artist for artist in ax.collections if isinstance(artist, QuadMesh)]
    corners = mesh.get_coordinates()
    np.testing.assert_allclose(corners[0, :, 0], 10.0 ** np.array([-0.5, 0.5, 1.5, 2.5]))
    np.testing.assert_allclose(corners[:, 0, 1], [-0.5, 0.5, 2.0, 3.5, 4.5])
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(4, 3), grid)
    assert ax.get_xscale() == "log" and ax.get_yscale() == "linear"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("β", "t")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["theory"]
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), [0.0, 1.0, 2.0])


def test_time_series_draws_the_band_of_one_error():
    ts, mean, error = np.arange(4.0), np.array([4.0, 3.0, 2.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    ax = plot.time_series(ts, mean, error, label="a", ylabel="clusters")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), mean)
    band = as_set(ax.collections[0].get_paths()[0].vertices)
    assert as_set(np.stack([ts, mean - error], 1)) | as_set(np.stack([ts, mean + error], 1)) <= band
    plot.time_series(ts, mean + 1, np.stack([mean, mean + 3]), ax, label="b")
    assert as_set(np.stack([ts, mean + 3], 1)) <= as_set(ax.collections[1].get_paths()[0].vertices)
    assert ax.lines[0].get_color() != ax.lines[1].get_color()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("t", "clusters")


@pytest.mark.parametrize(
    ("values", "options", "words"),
    (
        (
            [np.zeros((2, 3))],
            {},
            r"values\[0\] must be numbers in a row, or a square matrix, but its shape is \(2, 3\)",
        ),
        ([np.zeros(4)] * 1001, {}, "values must be at most 1000 arrays, one for each time, but there are 1001"),
        (
            [np.zeros(4)],
            {"bins": [0.0, 0.5, 0.5]},
            "bins must be two edges that increase, .* but two neighbours do not",
        ),
        ([np.zeros(4)], {"bins": [0.5]}, "bins must be two edges that increase, .* but there are 1"),
        ([np.zeros(4)], {"bins": 8, "counted": True}, r"values\[0\] must be \(8,\), a count for each bin"),
        ([np.full(8, -1.0)], {"bins": 8, "counted": True}, "be counts, finite and not negative, but one is -1.0"),
        ([np.full(4, np.nan)], {}, "values must hold a number within the bins, but there is none"),
        ([np.zeros(4)], {"labels": ["a", "b"]}, "labels must be .*one for each histogram"),
        (
            [np.zeros(4)],
            {"axes": []},
            "axes must be a sequence of plain Axes of matplotlib, at least 1, but it holds 0",
        ),
    ),
    ids=("matrix", "many", "equal edges", "one edge", "counts", "negative", "nothing", "labels", "axes"),
)
def test_what_is_no_histogram_is_refused(values, options, words):
    with pytest.raises(ValueError, match=words):
        plot.histograms(values, **options)


def test_histograms_are_drawn_into_given_axes_and_five_take_two_rows():
    from matplotlib.figure import Figure

    values = [np.linspace(-1, 1, 9)] * 5
    axes = plot.histograms(values, bins=4)
    assert len(axes) == 5 and len(axes[0].get_figure().axes) == 5
    given = Figure().subplots(1, 5)
    drawn = plot.histograms(values, bins=4, axes=given)
    assert list(drawn) == list(given) and given[4].get_xlabel() == "cosine similarity"
