"""Phase diagrams as pictures: the cells, the curves over them, and what is refused."""

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
