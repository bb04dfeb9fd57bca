"""The measurements of the figure on gradient flow, against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures import gradient_flow as flows
from clusterjax.experiments.figures.gradient_flow import METRICS, quantiles
from tests.reference import attention as reference


BETA, N = 2.5, 7
ANGLES = np.random.default_rng(3).uniform(-np.pi, np.pi, N)


def circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def energy(angles):
    """The energy E by a double loop."""
    n = len(angles)
    return sum(np.exp(BETA * (np.cos(a - b) - 1)) for a in angles for b in angles) / (2 * BETA * n * n)


def doubly_stochastic(x):
    """The kernel with rows and columns scaled in turn until both sum to one."""
    kernel, right = np.exp(BETA * x @ x.T), np.ones(len(x))
    for _ in range(400):
        left = 1 / (kernel @ right)
        right = 1 / (kernel.T @ left)
    return left[:, None] * kernel * right[None, :]


def velocity(name, angles):
    """The angular velocity of each token and its weight, by loops."""
    n, found, x = len(angles), [], circle(angles)
    if name in ("sigmoid", "Sinkhorn"):
        pull = (reference.sigmoid_weights(x, BETA) if name == "sigmoid" else doubly_stochastic(x)) @ x
        return np.stack([-np.sin(angles) * pull[:, 0] + np.cos(angles) * pull[:, 1], np.ones(n)])
    if name == "cosine":
        form = np.diag([1.5, 0.5])
        pull = reference.cosine_weights(x, BETA, form) @ x @ form
        queries = x @ form / np.linalg.norm(x @ form, axis=1, keepdims=True)
        mass = np.exp(BETA * (queries @ x.T - 1)).sum(axis=1)
        return np.stack([-np.sin(angles) * pull[:, 0] + np.cos(angles) * pull[:, 1], mass / n])
    for i in range(n):
        others = angles[: i + 1] if name == "causal" else angles
        kernel = np.exp(BETA * (np.cos(others - angles[i]) - 1))
        pull = np.sum(kernel * np.sin(others - angles[i]))
        mass = kernel.sum()
        found.append((pull / n, 1.0) if name == "unnormalised" else (pull / mass, mass / n))
    return np.array(found).T


@pytest.mark.exhaustive
def test_the_gradient_is_that_of_differences_in_numpy():
    x, h = jnp.asarray(circle(ANGLES)), 1e-6
    assert float(flows.energy(x, jnp.asarray(BETA))) == pytest.approx(energy(ANGLES), rel=1e-13)
    slope = np.array([(energy(ANGLES + h * one) - energy(ANGLES - h * one)) / (2 * h) for one in np.eye(N)])
    along = np.stack([-np.sin(ANGLES), np.cos(ANGLES)], axis=1)
    found = flows.gradient(x, jnp.asarray(BETA))
    np.testing.assert_allclose(np.sum(found * along, axis=1), N * slope, atol=1e-8)
    np.testing.assert_allclose(np.sum(found * x, axis=1), 0, atol=1e-14)


@pytest.mark.exhaustive_cases("unnormalised")
@pytest.mark.parametrize("name", flows.NAMES)
def test_rates_are_those_of_loops_in_numpy(name):
    speeds, weights = velocity(name, ANGLES)
    gradient, _ = velocity("unnormalised", ANGLES)
    found = jax.jit(flows.rates, static_argnums=0)(name, circle(ANGLES), BETA)
    wanted = (energy(ANGLES), np.mean(gradient * speeds), np.mean(speeds**2), np.mean(weights * speeds**2),
              np.mean(gradient**2))  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.exhaustive_cases("key0", "key1", "key3", "key6", "key5", "key8", "key7", "key2")
@pytest.mark.parametrize("key", METRICS)
def test_work_around_a_closed_path_is_that_of_a_loop_in_numpy(key):
    name, weighted = key
    angles, steps = flows.closed_paths(5, 2, N)
    total = absolute = 0.0
    for angle, step in zip(angles[1], steps[1], strict=True):
        speeds, weights = velocity(name, angle)
        part = np.mean((weights if weighted else 1) * speeds * step)
        total, absolute = total + part, absolute + abs(part)
    work = jax.jit(lambda angles, steps: flows.work(name, angles, steps, jnp.asarray(BETA), weighted=weighted))
    found = work(angles[1], steps[1])
    np.testing.assert_allclose(found, (total, absolute), rtol=1e-11, atol=1e-13)
    # A path is closed, and its steps are its derivative; a gradient does no work around it.
    np.testing.assert_allclose(steps.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(np.diff(angles, axis=1)[0, 40], (steps[0, 40] + steps[0, 41]) / 2, atol=1e-5)
    conservative = key in (("unnormalised", False), ("softmax", True), ("sigmoid", False), ("Sinkhorn", False))
    assert (abs(total) < 1e-10 * absolute) == conservative


def test_quantiles_are_those_of_the_density():
    field = cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=48)
    cloud = quantiles(field, field.from_density(lambda x: 1 + 0.6 * x[:, 0] + 0.2 * x[:, 0] * x[:, 1]))
    angles = np.sort(np.arctan2(cloud[:, 1], cloud[:, 0]) % (2 * np.pi))
    below = (angles + 0.6 * np.sin(angles) + 0.1 * np.sin(angles) ** 2) / (2 * np.pi)
    np.testing.assert_allclose(below, (np.arange(len(cloud)) + 0.5) / len(cloud), atol=1e-12)
