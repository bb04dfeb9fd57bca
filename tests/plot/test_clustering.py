"""Phase diagrams as pictures: the cells, the curves over them, and refusals."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

import clusterjax as cjx
from clusterjax import plot
from tests import oracles
from tests.helpers import as_a_user


BETAS, TIMES = np.array([1.0, 3.0, 5.0]), np.linspace(0, 30, 7)


def dataset(**attrs):
    shares = np.linspace(0, 1, 21).reshape(3, 7)
    variables = {"close_pairs": (("beta", "t"), shares), "status": ("beta", np.zeros(3))}
    return xr.Dataset(variables, {"beta": BETAS, "t": TIMES}, attrs)


def curves(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines if not line.get_label().startswith("_")}


def test_cells_and_curves():
    """The theory is oracle 1.2 for the n of the data, and its asymptote is drawn for softmax attention alone."""
    ax = plot.clustering_diagram(dataset(n=32, attention="softmax"))
    np.testing.assert_array_equal(ax.collections[0].get_array(), dataset().close_pairs)
    assert ax.collections[0].get_clim() == (0, 1)
    drawn = curves(ax)
    (times, betas), (late, high) = (drawn[name].T for name in (r"theory, $d \to \infty$", r"$e^\beta / 2\beta$"))
    for k in (10, 200, 390):
        np.testing.assert_allclose(times[k], oracles.equiangular_time(0.999, 32, betas[k]), rtol=1e-9)
    np.testing.assert_allclose(late, np.exp(high) / (2 * high))
    assert ax.get_xlabel() == "time $t$" and ax.figure.axes[1].get_ylabel() == "share of close pairs"
    ax = plot.clustering_diagram(dataset(attention="unnormalised"), n=16, log_x=True)
    ((times, betas),) = (line.T for line in curves(ax).values())
    np.testing.assert_allclose(times[50], oracles.equiangular_time(0.999, 16, betas[50], softmax=False), rtol=1e-9)
    assert ax.get_xscale() == "log"
    assert curves(plot.clustering_diagram(dataset(), delta=None)) == {}


def test_what_it_refuses():
    with as_a_user():
        with pytest.raises(ValueError, match="n must be the number of tokens"):
            plot.clustering_diagram(dataset())
        with pytest.raises(ValueError, match=r"statistic must be one of \['close_pairs'\], but it is 'rank'"):
            plot.clustering_diagram(dataset(n=3), statistic="rank")
        with pytest.raises(ValueError, match="dataset must have the coordinates beta and t"):
            plot.clustering_diagram({"close_pairs": 1.0})


def places(checkpoints=None):
    """Two layers of three heads: their places, with errors, and the last head of each layer rotating."""
    average = lambda mean, error: SimpleNamespace(mean=mean, error=error)
    times, betas = np.array([[-0.5, 0.2, 0.4], [0.1, 0.3, -0.2]]), np.array([[1.0, 2.0, 9.0], [3.0, 4.0, 2.5]])
    if checkpoints is not None:
        times, betas = (np.stack([part / 2, part / 4, part]) for part in (times, betas))
    rotation = np.zeros(times.shape)
    rotation[..., 2] = 0.3
    return SimpleNamespace(
        eigenvalue=average(times, 0 * times + 0.01), beta=average(betas, 0 * betas + 0.1),
        rotation=average(rotation, 0 * rotation),
    )  # fmt: skip


def points(ax):
    """The points of each layer, and their face colours."""
    drawn = [part for part in ax.collections if len(part.get_offsets()) > 1 and part.get_sizes().size]
    return np.stack([part.get_offsets() for part in drawn]), [part.get_facecolor() for part in drawn]


@pytest.mark.parametrize("checkpoints", (None, 3))
def test_heads_on_the_diagram(checkpoints):
    """A head is at depth times its eigenvalue and at its beta; the picture holds all heads and the diagram."""
    heads = places(checkpoints)
    ax = plot.place(heads, dataset(n=32, attention="softmax"), depth=10)
    found, faces = points(ax)
    one = places()
    np.testing.assert_allclose(found[..., 0], 10 * one.eigenvalue.mean)
    np.testing.assert_allclose(found[..., 1], one.beta.mean)
    # Heads with complex pairs are rings, and the two layers have different colours.
    for face in faces:
        np.testing.assert_array_equal(face[2], 1.0)
        assert (face[:2, :3] < 1).any(axis=1).all()
    assert not np.array_equal(faces[0][0], faces[1][0])
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    assert left < -5 and right >= 32.5 and low <= 0 and high > 9
    mesh, bars = ax.collections[0], [part for part in ax.collections if hasattr(part, "get_segments")]
    np.testing.assert_array_equal(mesh.get_array(), dataset().close_pairs)
    # Bars extend by one standard error to both sides, layer by layer, first in time, then in beta.
    first = np.array(bars[0].get_segments())[0]
    np.testing.assert_allclose(first, [[-5.1, 1.0], [-4.9, 1.0]])
    tracks = [line.get_xydata() for line in ax.lines if line.get_linewidth() == 0.7]
    assert len(tracks) == 6 and all(len(track) == (checkpoints or 1) for track in tracks)
    if checkpoints:
        np.testing.assert_allclose(tracks[1], [[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]])
    assert len(ax.figure.axes) == 3 and ax.figure.axes[2].get_ylabel() == "layer"


def test_heads_alone_and_what_is_no_place():
    ax = plot.place(places(), title="heads")
    assert ax.get_title() == "heads" and len(ax.figure.axes) == 2
    wrong = places()
    wrong.beta.mean = wrong.beta.mean[:1]
    with as_a_user():
        with pytest.raises(ValueError, match="heads must be the places of heads"):
            plot.place(3)
        with pytest.raises(ValueError, match=r"heads must have averages of one shape \(layers, heads\)"):
            plot.place(wrong)
        with pytest.raises(ValueError, match="dataset must have the coordinates beta and t"):
            plot.place(places(), {"close_pairs": 1.0})


def test_causal_diagrams_have_a_curve_for_each_share():
    ax = plot.clustering_diagram(dataset(n=4, attention="softmax", mask="CausalMask()"))
    drawn = curves(ax)
    assert [name[:6] for name in drawn] == [r"$10\%$", r"$50\%$", r"$90\%$"]
    times, betas = zip(*(line.T for line in drawn.values()), strict=True)
    for k in (0, 3):
        exact = cjx.orthogonal_time(np.array([0.1, 0.5, 0.9]), float(betas[0][k]), 4, mask=cjx.CausalMask())
        np.testing.assert_allclose([column[k] for column in times], exact)
    # Beyond the diagram nothing is computed.
    assert (times[0][:-1] <= TIMES[-1]).all() and betas[0][0] == BETAS[0]


def test_where_no_curve_is_known_none_is_drawn():
    for attrs in ({"mask": "WindowMask(2)"}, {"value": "Gaussian()"}, {"query_key": "Wigner()"}):
        assert curves(plot.clustering_diagram(dataset(n=6, **attrs))) == {}
    assert curves(plot.clustering_diagram(dataset(n=65, mask="CausalMask()"))) == {}
