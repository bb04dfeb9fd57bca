"""The figure on tokens under noise: theory, steps, the critical temperature, stays, and loops of the mean field."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import AbstractLayer, AbstractSpace, Sphere, UnnormalisedAttention, phase
from clusterjax.experiments.figures import noise_bifurcation as noise
from clusterjax.experiments.figures.noise_bifurcation import (
    SAVES,
    Midpoint,
    Sample,
    _run,
    critical_temperature,
    field_of,
    gathered,
    resisting,
    spread,
    tricritical_beta,
)


def test_theory_is_that_of_the_oracles():
    """The theory has the values of the oracles N1 and N2."""
    for d, beta in ((2, 2.446918311289), (3, 1.816154525436), (4, 1.575257150092), (8, 1.266553024521),
                    (16, 1.128971575483)):  # fmt: skip
        assert tricritical_beta(d) == pytest.approx(beta, abs=1e-11)
    assert critical_temperature(4.0, 2) == pytest.approx(2.439866288426, rel=1e-11)
    assert critical_temperature(1.0, 3) == pytest.approx(np.exp(-1), rel=1e-11)


@pytest.mark.exhaustive
def test_the_midpoint_rule_is_of_order_two():
    field = field_of(2.0, 3, 20)
    x = spread(jr.key(0), 1, 20, 3)[0].astype(jnp.float64)
    layer = lambda step: lambda k, x: Midpoint(field=field, step=step)(k, x)
    end = jax.jit(lambda count, step: jax.lax.fori_loop(0, count, layer(step), x))
    ends = [np.asarray(end(count, 0.5 / count)) for count in (32, 64, 128)]
    first, second = (np.abs(one - other).max() for one, other in zip(ends, ends[1:], strict=False))
    assert 3.2 < first / second < 4.8


class Still(AbstractLayer):
    """A layer that leaves tokens where they are."""

    space: AbstractSpace = Sphere()

    def __call__(self, k, x, args=None):
        return x

    def check(self, n, d):
        pass


@pytest.mark.exhaustive
@pytest.mark.parametrize("gathered_first", (True, False))
def test_the_mean_is_read_in_the_middle_of_the_noise(gathered_first):
    """Under noise alone r^2 - 1/n decays at twice the rate of a token, and is 0 for independent tokens."""
    n, d, systems, step, temperature = 6, 3, 4000, 0.05, 1.5
    start = (gathered if gathered_first else spread)(jr.key(0), systems, n, d)
    keys = jr.split(jr.key(1), systems)
    _, squares = _run(Still(), start, keys, jnp.float32(temperature), jnp.float32(step), jnp.asarray(1))
    first = np.sum(np.asarray(start, float).mean(axis=1) ** 2, axis=1)
    for save in (0, 3):
        decay = np.exp(-2 * (d - 1) * temperature * step * (save + 0.5))
        each = np.asarray(squares[:, save], float) - (1 / n + (first - 1 / n) * decay)
        assert abs(each.mean()) < 5 * each.std() / systems**0.5
    assert each.std() / systems**0.5 < 0.005


def test_t_c_is_read_from_the_mean_of_all_systems(monkeypatch):
    """T_c is a formula of the mean over systems, and its error is of first order in the differences between systems."""
    squares = np.random.default_rng(0).uniform(0.01, 0.05, (9, SAVES))
    monkeypatch.setattr(noise, "run", lambda field, xs, *rest: (xs, squares))
    found = resisting(1.0, 3, 64, 9, jr.key(0), 2.0, 8.0)
    each = squares.mean(axis=1)
    formula = lambda square: 2 * (1 - 1 / (64 * square))
    assert found.mean == pytest.approx(formula(each.mean()))
    h, spread_of = 1e-6, each.std(ddof=1) / 3
    assert found.error == pytest.approx((formula(each.mean() + h) - formula(each.mean() - h)) / (2 * h) * spread_of)


def test_a_stay_is_averaged_at_its_end_over_shorter_steps(monkeypatch):
    """Each half of a stay begins where the half before ended, with its own noise."""
    runs = []

    def of_run(field, xs, ratio, time, key, *, finer=1.0):
        runs.append((xs.item(), ratio, time, finer, tuple(np.asarray(jr.key_data(key)))))
        # The first quarter of a run must not count.
        return xs + 1, np.where(np.arange(SAVES) < SAVES // 4, -1.0, xs.item() ** 2)[None]

    monkeypatch.setattr(noise, "run", of_run)
    stays = noise.Stay(1.5, 8.0, "hot"), noise.Stay(0.5, 6.0, "cold")
    found = noise.follow(field_of(1.0, 2, 8), jnp.zeros((1, 1, 1)), stays, jr.key(0))
    finer = noise.FINER
    assert finer > 1 and [one[:4] for one in runs] == [
        (0, 1.5, 4, 1),
        (1, 1.5, 4, finer),
        (2, 0.5, 3, 1),
        (3, 0.5, 3, finer),
    ]
    assert len({one[4] for one in runs}) == 4
    assert {name: one.mean for name, one in found.items()} == {"hot": 1.0, "cold": 3.0}


def test_deviations_are_as_improbable_as_those_of_many_systems():
    from scipy.stats import norm, t

    one = Sample(np.array([1.0, 2.0, 4.0, 5.0]))
    distance = abs(one.mean - 0.5) / one.error
    assert norm.sf(one.off(0.5)) == pytest.approx(t.sf(distance, 3)) and one.off(0.5) < distance


@pytest.fixture(scope="module")
def branches():
    return {
        beta: phase.branch(UnnormalisedAttention(beta), 2, order_parameters=np.linspace(0.01, 0.97, 97))
        for beta in (1.0, noise.LOOP[2])
    }


@pytest.mark.exhaustive
def test_the_branch_is_read_at_a_temperature(branches):
    one = branches[noise.LOOP[2]]
    for stable, part in ((True, 80), (False, 20)):
        ratio = one.temperatures[part] / one.critical_temperature
        assert noise.at_temperature(one, ratio, stable=stable) == pytest.approx(one.order_parameters[part], abs=1e-9)
    assert noise.at_temperature(one, 1.2) == 0
    assert noise.at_temperature(branches[1.0], 1.01) == 0


@pytest.mark.exhaustive
def test_a_loop_of_the_mean_field(branches, monkeypatch):
    monkeypatch.setattr(noise, "REST", 300.0)
    one = branches[noise.LOOP[2]]
    loop = noise.loop(one, 5.0, 2)
    up = loop.ratios < 1.05
    np.testing.assert_allclose(
        loop.rising[up], [noise.at_temperature(one, ratio) for ratio in loop.ratios[up]], atol=1e-3
    )
    assert loop.rising[-1] < 0.01 and loop.falling[4] < 0.01 < loop.falling[0]
