"""Events against the equiangular system of oracle 1.2, whose time t(gamma) is known exactly."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._dynamics.events import clustered_event, stationary_event
from clusterjax._model.space import Euclidean, Sphere
from tests.oracles import equiangular_time


N = 5


def field(t, x, beta):
    """Softmax attention with V = Q = K = I on the sphere."""
    x = Sphere().retract(x)
    average = jax.nn.softmax(beta * (x @ x.T), axis=1) @ x
    return Sphere().tangent(x, average)


TRACES = []


@eqx.filter_jit
def run(event, x0, beta, t1=40.0, adjoint=dfx.RecursiveCheckpointAdjoint()):
    TRACES.append(None)
    rtol, atol = (1e-10, 1e-12) if x0.dtype == jnp.float64 else (1e-6, 1e-7)
    return dfx.diffeqsolve(
        dfx.ODETerm(field),
        dfx.Tsit5(),
        jnp.zeros((), x0.dtype),
        t1,
        None,
        x0,
        beta,
        event=event,
        stepsize_controller=dfx.PIDController(rtol=rtol, atol=atol),
        adjoint=adjoint,
    )


def scalar(value):
    return jnp.asarray(value, dtype=float)


SAME = jnp.asarray(np.tile(np.eye(N)[:1], (N, 1)), float)


def radius_at(gamma):
    """The distance of n equiangular unit tokens from their mean."""
    return np.sqrt((1 - gamma) * (N - 1) / N)


def speed_at(gamma, beta):
    """|P_x sum_j w_j x_j| of equiangular tokens."""
    share = np.exp(beta * gamma) / (np.exp(beta) + (N - 1) * np.exp(beta * gamma))
    return share * np.sqrt((N - 1) * (1 - gamma) * (1 + (N - 1) * gamma))


def test_time_of_clustering():
    """The time is exact for several radii and betas in one compiled program; other runs end unclustered or at once."""
    before = len(TRACES)
    for beta in (1.0, 4.0):
        for gamma in (0.3, 0.8, 0.99):
            solution = run(clustered_event(radius_at(gamma)), jnp.eye(N), scalar(beta), scalar(40))
            assert solution.result == dfx.RESULTS.event_occurred and solution.event_mask
            np.testing.assert_allclose(solution.ts[-1], equiangular_time(gamma, N, beta), rtol=0, atol=1e-7)
            cosines = np.asarray(solution.ys[-1] @ solution.ys[-1].T)[np.triu_indices(N, 1)]
            np.testing.assert_allclose(cosines, gamma, rtol=0, atol=1e-7)
    solution = run(clustered_event(0.1), jnp.eye(N), scalar(4.0), scalar(1))
    assert solution.result == dfx.RESULTS.successful and solution.ts[-1] == 1
    solution = run(clustered_event(0.1), SAME, scalar(1.0), scalar(40))
    assert solution.result == dfx.RESULTS.event_occurred and solution.ts[-1] == 0
    np.testing.assert_array_equal(solution.ys[-1], SAME)
    assert len(TRACES) == before + 1


@pytest.mark.exhaustive
def test_time_of_coming_to_rest():
    """The run ends at gamma = 0.999, where the speed is the threshold; tokens are faster at the start."""
    for beta in (1.0, 2.0):
        threshold = speed_at(0.999, beta)
        assert threshold < speed_at(0, beta)
        solution = run(stationary_event(threshold), jnp.eye(N), scalar(beta), scalar(40))
        assert solution.result == dfx.RESULTS.event_occurred
        np.testing.assert_allclose(solution.ts[-1], equiangular_time(0.999, N, beta), rtol=0, atol=1e-7)
    solution = run(stationary_event(0.1), SAME, scalar(1.0), scalar(40))
    assert solution.result == dfx.RESULTS.event_occurred and solution.ts[-1] == 0
    # Antipodal tokens are at rest as well.
    opposite = SAME * jnp.asarray([[1.0], [-1], [1], [-1], [1]])
    assert run(stationary_event(0.1), opposite, scalar(1.0), scalar(40)).ts[-1] == 0


@pytest.mark.exhaustive
def test_single_precision():
    """The time is found to the accuracy of the dtype, also at a radius where rounding blurs the condition."""
    x0, beta, t1 = jnp.eye(N, dtype=jnp.float32), jnp.asarray(1.0, jnp.float32), jnp.asarray(40.0, jnp.float32)
    # diffrax mixes the default float with that of the times, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        for radius, tolerance in ((0.5, 2e-5), (1e-3, 2e-3)):
            solution = run(clustered_event(radius), x0, beta, t1)
            assert solution.ys.dtype == solution.ts.dtype == jnp.float32
            assert solution.result == dfx.RESULTS.event_occurred
            expected = equiangular_time(1 - radius**2 * N / (N - 1), N, 1.0)
            np.testing.assert_allclose(solution.ts[-1], expected, rtol=0, atol=tolerance)


@pytest.mark.exhaustive
def test_without_root_finder_the_step_is_finished():
    solution = run(clustered_event(radius_at(0.5), root_finder=None), jnp.eye(N), scalar(1.0), scalar(40))
    x = np.asarray(solution.ys[-1])
    assert equiangular_time(0.5, N, 1.0) + 1e-6 < solution.ts[-1] < equiangular_time(0.5, N, 1.0) + 0.5
    assert np.all(np.linalg.norm(x - x.mean(axis=0), axis=1) < radius_at(0.5))


@pytest.mark.exhaustive
def test_batch_of_runs_ends_at_its_own_times():
    """One run starts clustered, two cluster, and one does not cluster in time; each ends at its own time."""
    event = clustered_event(radius_at(0.9))
    betas, starts = jnp.asarray([1.0, 1.0, 2.0, 9.0]), jnp.stack([SAME, jnp.eye(N), jnp.eye(N), jnp.eye(N)])
    solution = jax.vmap(lambda x0, beta: run(event, x0, beta, scalar(6)))(starts, betas)
    expected = [0, equiangular_time(0.9, N, 1.0), equiangular_time(0.9, N, 2.0), 6]
    np.testing.assert_allclose(solution.ts[:, -1], expected, rtol=0, atol=1e-7)
    assert solution.ts[3, -1] == 6 and np.all(np.isfinite(solution.ys))


@pytest.mark.exhaustive
def test_time_is_differentiable():
    """Derivatives with respect to beta and radius are differences of the exact time, or zero if it ends at once."""
    beta, gamma, step = 2.0, 0.8, 1e-5

    @jax.jit
    def gradient(x0, b, r):
        end = lambda b, r: run(clustered_event(r), x0, b, scalar(40), dfx.ForwardMode()).ts[-1]
        return jax.jacfwd(end, argnums=(0, 1))(b, r)

    by_beta, by_radius = gradient(jnp.eye(N), scalar(beta), scalar(radius_at(gamma)))
    difference = (equiangular_time(gamma, N, beta + step) - equiangular_time(gamma, N, beta - step)) / (2 * step)
    np.testing.assert_allclose(by_beta, difference, rtol=1e-5)
    rise = equiangular_time(gamma + step, N, beta) - equiangular_time(gamma - step, N, beta)
    np.testing.assert_allclose(by_radius, rise / (radius_at(gamma + step) - radius_at(gamma - step)), rtol=1e-5)
    np.testing.assert_array_equal(gradient(SAME, scalar(beta), scalar(0.1)), [0, 0])


@pytest.mark.exhaustive
def test_space_decides_where_distances_are_taken():
    """Tokens on one ray are one point of the sphere, but not of space."""
    ray = jnp.asarray([[1.0, 0], [3.0, 0]])
    still = lambda t, x, args: jnp.zeros_like(x)

    def end(x0, event):
        return dfx.diffeqsolve(dfx.ODETerm(still), dfx.Euler(), 0.0, 1.0, 0.5, x0, event=event).ts[-1]

    assert end(ray, clustered_event(0.5)) == 0
    assert end(ray, clustered_event(0.5, space=Euclidean())) == 1
    assert end(ray, clustered_event(1.0, space=Euclidean())) == 0
    assert end(ray[:1, :1], clustered_event(0.5)) == 0  # a lone token
