"""What training does to clustering: the feed-forward layer against sums over angles, gradients against differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import simulate
from clusterjax.experiments.figures import (
    training_escape as feedforward,
    training_escape as measuring,
    training_escape as shared,
)
from clusterjax.experiments.figures.training_escape import (
    DEGREE,
    FEATURES,
    FLOWS,
    LAYERS,
    MOMENTS,
    TS,
    Parameters,
    Results,
    caption_of,
    claims_of,
    draw,
    late_share,
    least_inside,
)
from clusterjax.experiments.framework.experiment import Settings


QUIET = lambda line: None


def wave(k, theta, derivative=False):
    """The harmonics of degree k of the circle, or their derivatives, (2, angles)."""
    factor = np.sqrt(2) if k else 1.0
    return factor * np.stack(
        [-k * np.sin(k * theta), k * np.cos(k * theta)] if derivative else [np.cos(k * theta), np.sin(k * theta)]
    )


def test_the_layer_moves_coefficients_as_sums_over_angles_do():
    rng = np.random.default_rng(0)
    c = np.zeros((DEGREE + 1, 2))
    c[0, 0], c[1:] = 1.0, 0.1 * rng.normal(size=(DEGREE, 2))
    parameters = rng.normal(size=(FEATURES + 1, 2))
    theta = 2 * np.pi * np.arange(400) / 400
    density = sum(c[k] @ wave(k, theta) for k in range(DEGREE + 1))
    drift = sum(parameters[k] @ wave(k, theta) for k in range(FEATURES + 1))
    expected = np.zeros_like(c)
    for k in range(1, DEGREE + 1):
        for part in range(2):
            for j in range(400):
                expected[k, part] += density[j] * drift[j] * wave(k, theta[j], True)[part] / 400
    schedule = feedforward.PiecewiseConstant(jnp.array([0.0]), jnp.asarray(parameters)[None])
    found = feedforward.FeedForward(schedule, feedforward.attention())(0.0, jnp.asarray(c))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_tasks_begin_nearly_uniform_and_end_in_two_bumps():
    tasks = feedforward.draw_tasks(jax.random.key(1), 40)
    field = feedforward.attention()
    assert np.all(np.asarray(tasks.starts[:, 0]) == [1, 0])
    assert np.asarray(jax.vmap(field.order_parameter)(tasks.starts)).max() < 0.5
    # Of two bumps the moments of degree one are shorter than those of one, and all are of a density.
    lengths = np.linalg.norm(np.asarray(tasks.wanted), axis=2) / np.sqrt(2)
    assert tasks.wanted.shape == (40, MOMENTS, 2) and lengths.max() < 1
    one_bump = 0.8635  # I_1(4) / I_0(4)
    assert np.all(lengths[:, 0] < one_bump * np.cos(np.pi / 3) + 0.3 * one_bump)
    assert len(np.unique(np.round(lengths, 6))) == lengths.size


def test_without_the_layer_it_is_attention_alone():
    start = feedforward.draw_tasks(jax.random.key(0), 1).starts[0]
    nothing = jnp.zeros((LAYERS, FEATURES + 1, 2))
    found = feedforward.run(nothing, start, (0.0, 3.0))[-1]
    alone = simulate(feedforward.attention(), start, jnp.array([0.0, 3.0])).x1
    np.testing.assert_allclose(found, alone, atol=1e-3)


def test_a_layer_turns_the_density():
    """The harmonic of degree zero is a rotation, in the layer whose turn it is."""
    start = feedforward.draw_tasks(jax.random.key(0), 1).starts[0]
    speed = 0.3
    last = jnp.zeros((LAYERS, FEATURES + 1, 2)).at[-1, 0, 0].set(speed)
    turned, alone = (feedforward.run(one, start)[-1] for one in (last, 0 * last))
    angle = speed * feedforward.END / LAYERS
    cosine, sine = np.cos(angle), np.sin(angle)
    expected = np.asarray(alone[1]) @ np.array([[cosine, sine], [-sine, cosine]])
    np.testing.assert_allclose(turned[1], expected, atol=1e-3)


@pytest.mark.exhaustive
def test_gradients_are_those_of_differences():
    tasks = feedforward.draw_tasks(jax.random.key(3), 1)
    rng = np.random.default_rng(0)
    at, along = (jnp.asarray(0.2 * rng.normal(size=(LAYERS, FEATURES + 1, 2))) for _ in range(2))
    of = lambda parameters: feedforward.loss(parameters, tasks.starts[0], tasks.wanted[0], 0.01)
    found = float(jnp.sum(jax.grad(of)(at) * along))
    np.testing.assert_allclose(found, (of(at + 1e-5 * along) - of(at - 1e-5 * along)) / 2e-5, rtol=1e-6)
    weights = shared.Weights(*(jnp.eye(3) + 0.1 * jnp.asarray(rng.normal(size=(3, 3))) for _ in range(2)))
    prompts, plane = shared.draw(jax.random.key(0), 1, 2)[0], jnp.array([0.0, 0.6, 0.8])
    gradient = jax.grad(shared.loss)(weights, prompts, plane)
    for name in ("value", "query_key"):
        by = jnp.asarray(rng.normal(size=(3, 3)))
        moved = (weights._replace(**{name: getattr(weights, name) + h * by}) for h in (1e-5, -1e-5))
        above, below = (shared.loss(one, prompts, plane) for one in moved)
        found = float(jnp.sum(getattr(gradient, name) * by))
        np.testing.assert_allclose(found, (above - below) / 2e-5, rtol=1e-5)


@pytest.mark.exhaustive
def test_training_lowers_the_loss_of_each_task():
    tasks = feedforward.draw_tasks(jax.random.key(0), 2)
    _, losses = feedforward.train(tasks, 20, 0.01)
    assert losses.shape == (20, 2) and np.all(losses[-1] < 0.7 * losses[0])
    weights, told = shared.train(jax.random.key(0), 2, 12, (0, 12))
    assert told.loss.shape == (2, 2) and np.all(told.loss[1] < told.loss[0])
    assert not np.allclose(weights.value[0], weights.value[1])


def test_labels_are_read_where_each_side_has_its_cluster():
    plane = jnp.array([0.0, 0.6, 0.8])
    side = jnp.outer(plane, plane)
    prompts = shared.draw(jax.random.key(2), 1, 8)
    apart = shared.Weights(2 * side[None], 30 * side[None])
    together = shared.Weights(jnp.eye(3)[None], jnp.eye(3)[None])
    good, bad = (shared._measure(one, prompts, plane[None]) for one in (apart, together))
    assert good.accuracy[0] > 0.95 and 1.8 < good.clusters[0] < 2.6 and good.cosine[0] < 0.5
    assert bad.accuracy[0] < 0.8 and bad.cosine[0] > 0.9 and bad.loss[0] > good.loss[0] + 0.3
    margins = shared.margins(jnp.array([[[0.0, 1.0], [0.1, -0.5]]]), jnp.array([[[1.0, 0.0], [0.0, -1.0]]]), plane[1:])
    np.testing.assert_allclose(margins, [[0.6, 0.8]])


def test_what_counts_as_leaving():
    rows = np.array([[0.0, -1.0, -0.5], [0.0, -0.5, -1.0], [0.0, 0.5, 1.0], [-1.0, -1.05, 0.0]])
    assert least_inside(rows, np.full(4, 1.0)).tolist() == [True, False, False, False]
    efforts = np.zeros((2, LAYERS))
    efforts[0, -1], efforts[1] = 2.0, 1.0
    np.testing.assert_allclose(late_share(efforts), [1.0, 0.25])


@pytest.fixture(scope="module")
def results():
    """Made up: all as the paper has it, and labels that are read."""
    tasks, times = 12, len(TS)
    fall = -np.linspace(0, 1, times)
    dip = np.where(TS < 9, -TS / 9, -1 + (TS - 9) / 3 * 0.8)
    energies = {"untrained": np.tile(fall, (tasks, 1)), "trained": np.tile(dip, (tasks, 1))}
    energies["layers reversed"] = energies["untrained"]
    misses = {"untrained": np.ones(tasks), "trained": np.full(tasks, 0.01), "layers reversed": np.ones(tasks)}
    efforts = np.tile(np.arange(LAYERS) ** 2.0, (tasks, 1))
    low, high = np.ones((3, tasks)), np.full((3, tasks), 2.0)
    told = shared.Told(low, np.array([0.5, 0.7, 0.95])[:, None] * low, high, np.array([1.0, 0.5, 0.2])[:, None] * low)
    angles = np.linspace(-3, 3, 60)
    shown = {name: np.ones((times, 60)) for name in FLOWS}
    losses, when = np.ones((4, tasks)), np.array([0, 9, 50])
    return Results(
        Parameters(),
        tasks,
        energies,
        misses,
        efforts,
        np.zeros(tasks),
        losses,
        shown,
        angles,
        told,
        when,
    )


def test_each_claim_can_fail(results):
    assert all(claim.holds for claim in claims_of(results)) and "late" in caption_of(results, claims_of(results))
    flat = results.energies["untrained"]
    early = np.where(TS < 2, -TS / 2, -1 + (TS - 2) / 10 * 0.9) + 0 * flat
    told = results.told
    wrong = {
        0: {"energies": results.energies | {"untrained": flat + 0.1 * np.sin(20 * TS)}},
        1: {"energies": results.energies | {"trained": flat}},
        2: {"energies": results.energies | {"trained": early}},
        3: {"misses": results.misses | {"trained": np.full(results.starts, 0.2)}},
        4: {"energies": results.energies | {"layers reversed": results.energies["trained"]}},
        5: {"efforts": results.efforts[:, ::-1]},
        6: {"told": told._replace(cosine=np.ones_like(told.cosine))},
        7: {"told": told._replace(accuracy=0.5 * np.ones_like(told.accuracy))},
    }
    for number, change in wrong.items():
        other = replace(results, **change)
        claims = claims_of(other)
        assert not claims[number].holds, claims[number].says
        caption_of(other, claims)


def test_the_picture_has_its_panels(results):
    figure = draw(results)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["attention alone", "with the trained layer"]
    assert {"free energy", "parameters squared"} <= {ax.get_ylabel() for ax in figure.axes}


@pytest.mark.exhaustive
def test_what_is_measured(monkeypatch):
    m = measuring.measure(Parameters(steps=2, shared_steps=2), Settings(seed=1, starts=2, quick=True), QUIET)
    assert set(m.energies) == set(FLOWS) and all(one.shape == (2, len(TS)) for one in m.energies.values())
    assert np.diff(m.energies["untrained"], axis=1).max() < 0 and m.when.tolist() == [0, 1, 2]
    np.testing.assert_allclose(np.mean(m.shown["trained"], axis=1), 1.0)
    assert m.efforts.shape == (2, LAYERS) and m.told.accuracy.shape == (3, 2)
    # Reversed twice is as it was: the efforts are those of the trained layers.
    assert not np.allclose(m.energies["trained"], m.energies["layers reversed"])
