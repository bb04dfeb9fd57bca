"""The heads of networks on the phase diagram: verdicts on made-up places, and places against whole matrices."""

import numpy as np
import pytest
import xarray as xr

from clusterjax import probe
from clusterjax.experiments.figures import head_places as file
from clusterjax.experiments.shared.causal import OWN, PASSAGES
from clusterjax.experiments.shared.every_network import at_hand
from clusterjax.probe.measures.survey import average_of
from tests.probe_cases import IDS, MASK, tiny


ARTICLES = np.array([0, 0, 1, 1, 2, 2, 3, 3])
NOISE = 1e-3 * np.random.default_rng(0).normal(size=(8, 1, 1))
TEXTS = probe.Encoded(np.zeros((8, 8), np.int32), np.ones((8, 8), bool))
VALUES = np.array([[1.0, 0.4], [-0.2, 0.3]])
BETAS = np.array([[2.0, 4.0], [6.0, 8.0]])
# The share of close pairs is t / 10 for every beta below 10, and 0 above.
DIAGRAM = xr.Dataset(
    {"close_pairs": (("beta", "t"), np.where(np.arange(0, 65)[:, None] < 10, np.arange(101)[None] / 10, 0.0))},
    {"beta": np.arange(65.0), "t": np.arange(101.0)}, {"n": 8},
)  # fmt: skip


def place(values=VALUES, betas=BETAS):
    heads = average_of(betas[None] + NOISE, ARTICLES), average_of(values[None] + NOISE, ARTICLES)
    layer = average_of(np.ones((8, 2)) + NOISE[:, 0], ARTICLES)
    return probe.Place(*heads, average_of(0 * values[None] + 0 * NOISE, ARTICLES), layer, layer, layer, layer)


def results(trained, random=None, off=0.0):
    random = random or (place(-VALUES, BETAS / 2), place(-VALUES, BETAS / 2.05))
    close = file.close_at(DIAGRAM, 2 * trained.eigenvalue.mean, trained.beta.mean)
    given = at_hand("own", OWN, PASSAGES, tiny("gpt2"), TEXTS, ARTICLES)
    return file.Results(file.Parameters(), {"own": file.Placed(given, trained, random, close, off)}, DIAGRAM)


def test_the_diagram_is_read_at_the_heads_and_at_its_edge_beyond():
    times, betas = np.array([[2.5, -3.0], [999.0, 4.0]]), np.array([[3.5, 2.0], [1.0, 99.0]])
    np.testing.assert_allclose(file.close_at(DIAGRAM, times, betas), [[0.25, 0.0], [10.0, 0.0]], atol=1e-12)


def test_heads_attract_if_most_do_and_more_than_with_random_weights():
    found = file.attract[1](results(place()))
    assert found.holds and found.value == 0.75 and "75 % of 4 heads, 25, 25 % with random weights" in found.measured
    assert not file.attract[1](results(place(-VALUES))).holds
    assert not file.attract[1](results(place(), (place(), place(-VALUES)))).holds
    assert file.attract[0](results(place())) == ()


def test_heads_are_sharper_by_the_median_of_beta():
    found = file.sharper[1](results(place()))
    # The noise of a text is the same in all networks.
    assert found.holds and found.value == pytest.approx(5 - np.mean([5 / 2, 5 / 2.05]), abs=1e-9)
    assert not file.sharper[1](results(place(betas=BETAS / 3))).holds


def test_heads_gather_where_more_than_half_of_the_pairs_are_close():
    assert file.gather[1](results(place())).value == 0.0
    # The times 10, 4, -2 and 3 have the shares 1, 0.4, 0 and 0.3; at times 10 x larger three of four heads gather.
    assert file.gather[1](results(place(5 * VALUES))).value == 0.25
    assert not file.gather[1](results(place(50 * VALUES))).holds
    assert file.whole_matrices(results(place(), off=2e-4)).holds is False


@pytest.mark.parametrize("kind", ("gpt2", "bert"))
def test_places_are_those_of_whole_matrices(kind):
    model = tiny(kind)
    found = probe.place(model, probe.Encoded(np.where(MASK, IDS, 0).astype(np.int32), MASK))
    assert file.places_off(model, found) < 1e-10
    wrong = found._replace(eigenvalue=average_of(1.01 * found.eigenvalue.values))
    assert file.places_off(model, wrong) == pytest.approx(0.01, rel=1e-6)
