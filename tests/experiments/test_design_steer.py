"""The figure on leading tokens to targets: its problems, the baseline in plain loops, and claims that can fail."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clusterjax import simulate
from clusterjax.experiments.figures import design_steer as steer
from clusterjax.experiments.figures.design_steer import (
    BLOCK,
    CLAIMS,
    LADDER,
    SETTINGS,
    SPACE,
    SPHERE,
    TOLERANCE,
    D,
    N,
    Parameters,
    Results,
    Solved,
    draw,
)
from clusterjax.experiments.framework.figure import stated


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_problems_and_fields_are_as_they_say(setting):
    x0, targets = setting.draw(jax.random.key(0))
    assert x0.shape == targets.shape == (N, 4 if setting is BLOCK else D) and N == 16
    assert not np.allclose(x0, targets) and x0.dtype == jnp.float64
    both, field = np.concatenate([x0, targets]), setting.base()
    if setting is not SPACE:
        np.testing.assert_allclose(np.linalg.norm(both, axis=1), 2 if setting is BLOCK else 1, rtol=1e-12)
    if setting is BLOCK:
        np.testing.assert_allclose(both.sum(axis=1), 0, atol=1e-12)
    # No token moves in the field around which parameters are drawn.
    assert np.abs(np.asarray(field(0.0, x0))).max() == 0
    drawn, around = (
        setting.pick(steer.drawn_field(setting, jax.random.key(1), jnp.arange(400.0))),
        setting.pick(field),
    )
    assert len(drawn) == len(setting.spread) == len(around)
    for part, spread, base in zip(drawn, setting.spread, around, strict=True):
        assert part.values.shape == (400, *base.shape) and part.ts.tolist() == list(range(400))
        np.testing.assert_allclose(part.values.std(), spread, rtol=0.15)
        np.testing.assert_allclose(np.asarray(part.values).mean(), np.asarray(base).mean(), atol=4 * spread / 20)


def test_derivatives_are_counted_as_runs():
    """Each free number (beta, B, V, weights and biases) costs one more run of one piece."""
    assert SPHERE.numbers == SPACE.numbers == 1 + 2 * D * D + 2 * D * steer.UNITS + steer.UNITS
    # A block has B and V of each head, two matrices of weights and two vectors of biases.
    assert BLOCK.numbers == 2 * 2 * 16 + 2 * 4 * 16 + 16 + 4
    for runs, pieces in ((1, 1), (7, 3), (300, 8)):
        assert steer.simulations(runs, pieces, 99) == int(np.ceil(runs * 100 / pieces))


@pytest.mark.exhaustive
def test_random_search_takes_the_nearest(monkeypatch):
    monkeypatch.setattr(steer, "CHUNK", 8)
    x0, targets = SPHERE.draw(jax.random.key(2))
    key, pieces = jax.random.key(3), 2
    keys = jax.random.split(jax.random.fold_in(key, 0), steer.CHUNK)
    missed = []
    for one in keys:
        end = simulate(steer.drawn_field(SPHERE, one, jnp.arange(2.0)), x0, jnp.array([0.0, 2.0])).x1
        missed.append(np.linalg.norm(np.asarray(end - targets), axis=1).max())
    assert abs(steer.random_search(SPHERE, key, x0, targets, pieces, 3) - min(missed)) < 0.05
    more = steer.random_search(SPHERE, key, x0, targets, pieces, 2 * steer.CHUNK)
    assert more <= steer.random_search(SPHERE, key, x0, targets, pieces, steer.CHUNK)


def test_the_least_pieces_are_taken(monkeypatch):
    """Numbers of pieces are tried in rising order up to the first success; infinity stands for no success."""
    tried = []

    def lead(setting, key, n, pieces, attempts):
        tried.append((setting.name, n, pieces, attempts))
        return None, None, SimpleNamespace(reached=pieces >= key)

    monkeypatch.setattr(steer, "lead", lead)
    assert steer.pieces_needed(5, 8) == 6
    assert tried == [("sphere", 8, pieces, 2) for pieces in (1, 3, 4, 6)]
    assert steer.pieces_needed(1, 8) == 1 and steer.pieces_needed(1e9, 8) == np.inf


def solved(count, failed=()):
    missed = np.full((count, N), 1e-3)
    attempts = np.ones(count, int)
    for number in failed:
        missed[number, 3], attempts[number] = 0.02, 5
    return Solved(missed, np.ones((count, N)), missed.max(axis=1) <= TOLERANCE, attempts, 300 * np.ones(count),
                  np.zeros(count))  # fmt: skip


@pytest.fixture(scope="module")
def results():
    """A made-up measurement on which all claims hold: 39 of 40 problems are reached."""
    of = {"sphere": solved(40, [7]), "space": solved(10), "block": solved(10)}
    needed = np.array([[1.0, 3, 3], [3, 4, 4], [4, 6, 8], [8, np.inf, 6]])
    return Results(Parameters(), 40, of, np.ones(20), np.array([2, 4, 8, 16]), needed)


def test_each_claim_can_fail(results):
    claims = stated(CLAIMS, results)
    assert all(claim.holds for claim in claims)
    assert "39 of 40 random problems; not in problems 7, which miss by 0.02" in claims[1].measured
    # The slope is that of log (3, 4, 6, 8) against log (2, 4, 8, 16), by hand.
    expected = (3 * np.log(8 / 3) + np.log(6 / 4)) / (10 * np.log(2))
    np.testing.assert_allclose(claims[6].value, expected, rtol=1e-12)
    search = results.search.copy()
    search[0] = 0.005
    sphere = results.solved["sphere"]
    late = sphere._replace(attempts=sphere.attempts + (np.arange(40) < 25))
    slow, unknown = results.needed.copy(), results.needed.copy()
    slow[0], slow[3], unknown[3] = 1, 16, np.inf
    wrong = [
        (0, {"solved": results.solved | {"block": results.solved["block"]._replace(off=np.full(10, 1e-3))}}),
        (0, {"solved": results.solved | {"sphere": sphere._replace(reached=np.ones(40, bool))}}),
        (1, {"solved": results.solved | {"sphere": solved(40, [1, 2, 3])}}),
        (2, {"solved": results.solved | {"space": solved(10, [1])}}),
        (3, {"solved": results.solved | {"block": solved(10, [1])}}),
        (4, {"search": search}),
        (5, {"solved": results.solved | {"sphere": late}}),
        (6, {"needed": slow}),
        (6, {"needed": unknown}),
    ]
    for number, change in wrong:
        claims = stated(CLAIMS, results._replace(**change))
        assert [k for k, claim in enumerate(claims) if not claim.holds] == [number]


def test_the_picture_has_its_panels(results):
    left, middle, right = draw(results).axes
    assert len(left.lines) == 6
    heights = [bar.get_height() for bar in middle.patches if isinstance(bar, Rectangle)]
    assert heights == [39, 0, 0, 0, 0, 1]
    top = 1.4 * LADDER[-1]
    # The problem that no number of pieces solved is drawn above the top of the ladder.
    assert [list(line.get_ydata()) for line in right.lines[:4]] == [[1, 3, 3], [3, 4, 4], [4, 6, 8], [6, 8, top]]
    assert right.lines[-1].get_ydata().tolist() == [3, 4, 6, 8]
