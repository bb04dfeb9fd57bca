"""Dynamics without projection, and their rescaling by e^{-tV}: oracle 3."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from clusterjax import AttentionField, Euclidean, RescaledField, SoftmaxAttention, simulate
from tests import oracles
from tests.solving import solve_tightly


@pytest.mark.exhaustive
def test_rescaled_tokens_are_the_tokens_rescaled():
    """R1: z(t) = e^{-tV} x(t) for random V, Q and K and for V = +-I, to 1e-9 of the largest coordinate, up to t = 2."""
    rng = np.random.default_rng(1)
    values = jnp.asarray(np.stack([0.5 * rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), np.eye(3), -np.eye(3)]))
    form, x0, ts = jnp.asarray(rng.normal(size=(3, 3))), 0.7 * rng.normal(size=(6, 3)), np.array([0.0, 0.5, 1.0, 2.0])
    attention = SoftmaxAttention(1.3, query_key=form)
    original = lambda value: solve_tightly(AttentionField(attention, value, space=Euclidean()), x0, ts).xs
    rescaled = lambda value: solve_tightly(RescaledField(attention, value), x0, ts).xs
    xs, zs = (np.asarray(eqx.filter_vmap(run)(values)) for run in (original, rescaled))
    for value, x, z in zip(np.asarray(values), xs, zs, strict=True):
        expected = np.stack([x[k] @ expm(-t * value).T for k, t in enumerate(ts)])
        np.testing.assert_allclose(z, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
        field = RescaledField(attention, jnp.asarray(value))
        np.testing.assert_allclose(field.rescale(ts[-1], jnp.asarray(x[-1])), expected[-1], rtol=0, atol=1e-11)
        np.testing.assert_allclose(field.unscale(ts[-1], field.rescale(ts[-1], jnp.asarray(x[-1]))), x[-1], rtol=1e-9)


def exposed(z, directions, share):
    """The tokens that are extreme in at least `share` of all directions: corners of the hull, not points of edges."""
    counts = np.bincount(np.argmax(z @ directions.T, axis=0), minlength=len(z))
    return np.flatnonzero(counts > share * len(directions))


@pytest.mark.exhaustive
def test_hulls_are_nested_and_tokens_come_to_special_points():
    """R2: for V = I the convex hull of the z_i shrinks, for any Q, K; for B = A^T A each limit has |Az|^2 =
    max_j <Az, Av_j>, the corners v_j of the hull to 1e-6, and the other tokens within 1e-2 and still approaching.
    """
    rng = np.random.default_rng(1)
    x0, ts = rng.uniform(-2, 2, size=(20, 2)), np.array([0.0, 0.3, 1.0, 2.0, 4.0, 8.0, 20.0])
    forms = np.stack([np.eye(2), [[1.0, 0.3], [0.3, 0.5]], rng.normal(size=(2, 2)), rng.normal(size=(2, 2))])
    run = lambda form: solve_tightly(RescaledField(SoftmaxAttention(1.0, query_key=form)), x0, ts).xs
    zs = np.asarray(eqx.filter_vmap(run)(jnp.asarray(forms)))
    directions = oracles.circle_tokens(2 * np.pi * np.arange(360) / 360)
    support = (zs @ directions.T).max(axis=2)
    assert np.all(np.diff(support, axis=1) < 1e-12)
    assert np.all(support[:, 0] - support[:, -1] > -1e-12) and (support[:, 0] - support[:, -1]).max() > 0.1
    for form, z in zip(forms[:2], zs[:2], strict=True):
        gaps = [(x @ form @ x.T).max(axis=1) - np.einsum("ia,ab,ib->i", x, form, x) for x in z]
        corners = exposed(z[-1], directions, 0.03)
        assert len(corners) >= 3
        assert gaps[-1][corners].max() < 1e-6
        assert gaps[-1].max() < 1e-2
        assert gaps[-1].max() < 0.5 * gaps[-2].max()


@pytest.mark.exhaustive
def test_tokens_come_to_at_most_three_hyperplanes():
    """R3: if lambda_1 > 0 is simple and <Q phi_1, K phi_1> > 0, phi_1*(z_i) tends to a, 0 or b; for every
    eigenvalue >= 0 the largest coordinate along its left eigenvector never rises, and the smallest never falls.
    """
    rng = np.random.default_rng(3)
    basis = rng.normal(size=(3, 3))
    dual = np.linalg.inv(basis)
    value, form = basis @ np.diag([1.0, 0.3, -0.2]) @ dual, dual.T @ np.diag([1.0, 0.5, 0.7]) @ dual
    assert basis[:, 0] @ form @ basis[:, 0] > 0
    field = RescaledField(SoftmaxAttention(1.0, query_key=jnp.asarray(form)), jnp.asarray(value))
    starts = jnp.asarray(rng.normal(size=(4, 24, 3)))
    ts = jnp.asarray([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0])
    zs = np.asarray(eqx.filter_vmap(lambda x0: simulate(field, x0, ts).xs)(starts))
    coordinates = zs @ dual.T
    assert np.all(np.diff(coordinates[..., :2].max(axis=2), axis=1) < 1e-9)
    assert np.all(np.diff(coordinates[..., :2].min(axis=2), axis=1) > -1e-9)
    found = 0
    for last in coordinates[:, -1, :, 0]:
        levels = np.array([last.min(), 0.0, last.max()])
        assert np.abs(last[:, None] - levels).min(axis=1).max() < 1e-3
        found = max(found, int((last > 0.01).any()) + int((last < -0.01).any()))
    assert found == 2


@pytest.mark.exhaustive
def test_exceptional_row_in_one_dimension():
    """R5: for the tokens (-u, 0, u), u' = 2 u sinh u^2 / (1 + 2 cosh u^2), and the middle row stays (1/3, 1/3, 1/3).

    The middle token is at an unstable point, and rounding finally drives it away.
    """
    ts, printed = np.array([0.0, 5.0, 10.0]), np.array([0.3, 0.4731569591, 8.4567002332])
    attention = SoftmaxAttention(1.0)
    xs = solve_tightly(AttentionField(attention, space=Euclidean()), np.array([[-0.3], [0.0], [0.3]]), ts).xs
    rate = lambda t, u: oracles.exceptional_middle_rate(u)
    exact = solve_ivp(rate, (0, 10), [0.3], t_eval=ts, method="DOP853", rtol=1e-13, atol=1e-14).y[0]
    np.testing.assert_allclose(exact, printed, rtol=0, atol=6e-11)
    np.testing.assert_allclose(xs[:, 2, 0], exact, rtol=0, atol=1e-8)
    np.testing.assert_allclose(xs[:, 0, 0], -exact, rtol=0, atol=1e-8)
    np.testing.assert_allclose(attention.weights(xs[1])[1], 1 / 3, rtol=1e-12)


def covariance(x, masses=None):
    masses = np.full(len(x), 1 / len(x)) if masses is None else masses
    centred = x - masses @ x
    return centred.T @ (masses[:, None] * centred)


@pytest.mark.exhaustive
def test_repelled_tokens_fade_algebraically():
    """R7: for V = -I and B = I, 2 t Cov(t) tends to I, near (C0^{-1} + 2tI)^{-1} for Gaussian data; the mean of centred
    skew data decays like t^{-5/2}, not like e^{-t}.
    """
    rng = np.random.default_rng(5)
    starts = np.stack([rng.normal(size=(400, 2)), rng.exponential(size=(400, 2))])
    starts -= starts.mean(axis=1, keepdims=True)
    ts = np.array([0.0, 25.0, 100.0, 400.0])
    field = AttentionField(SoftmaxAttention(1.0), -jnp.eye(2), space=Euclidean())
    xs = np.asarray(eqx.filter_vmap(lambda x0: solve_tightly(field, x0, ts).xs)(jnp.asarray(starts)))
    gaussian = np.linalg.inv(np.linalg.inv(covariance(starts[0])) + 2 * ts[-1] * np.eye(2))
    np.testing.assert_allclose(2 * ts[-1] * covariance(xs[0, -1]), 2 * ts[-1] * gaussian, rtol=0, atol=5e-4)
    for k, t in enumerate(ts[1:], start=1):
        for x in xs[:, k]:
            assert np.abs(2 * t * covariance(x) - np.eye(2)).max() < 2 / t
    size = np.linalg.norm(xs.mean(axis=2), axis=-1)
    slopes = np.log(size[1, 2:] / size[1, 1:-1]) / np.log(4)
    np.testing.assert_allclose(slopes, -2.5, rtol=0, atol=0.1)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_gaussian_tokens_stay_gaussian():
    """R8: m' = V (m + S B^T m), S' = V S B^T S + S B S V^T for Gaussian data, exact to 1e-9; the data are the nodes of
    Gauss-Hermite quadrature with its weights as masses. For V = B = I, S = (S0^{-1} - 2tI)^{-1} diverges at
    t* = 1 / (2 lambda_max(S0)); R7: for V = -I, S = (S0^{-1} + 2tI)^{-1} at any time.
    """
    nodes, weights = hermegauss(20)
    standard = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    masses = np.outer(weights, weights).ravel() / weights.sum() ** 2
    root, mean = np.array([[0.5, 0.0], [0.2, 0.4]]), np.array([0.3, -0.2])
    start = covariance(mean + standard @ root.T, masses)
    np.testing.assert_allclose(start, root @ root.T, rtol=1e-12)
    rng = np.random.default_rng(6)
    blow_up = 1 / (2 * np.linalg.eigvalsh(start).max())
    values = np.stack([rng.normal(size=(2, 2)), np.eye(2), -np.eye(2)])
    forms = np.stack([rng.normal(size=(2, 2)), np.eye(2), np.eye(2)])
    times = np.array([[0.0, 0.4, 1.0], [0.0, 0.3 * blow_up, 0.6 * blow_up], [0.0, 2.0, 50.0]])

    def run(value, form, ts):
        field = AttentionField(
            SoftmaxAttention(1.0, query_key=form), value, space=Euclidean(), masses=jnp.asarray(masses)
        )
        return solve_tightly(field, mean + standard @ root.T, ts).xs

    xs = np.asarray(eqx.filter_vmap(run)(*map(jnp.asarray, (values, forms, times))))
    for value, form, ts, clouds in zip(values, forms, times, xs, strict=True):

        def closure(t, y, value=value, form=form):
            m, s = y[:2], y[2:].reshape(2, 2)
            return np.append(value @ (m + s @ form.T @ m), value @ s @ form.T @ s + s @ form @ s @ value.T)

        y0 = np.append(mean, start)
        exact = solve_ivp(closure, (0, ts[-1]), y0, t_eval=ts, method="DOP853", rtol=1e-12, atol=1e-14).y.T
        found = np.array([np.append(masses @ x, covariance(x, masses)) for x in clouds])
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-9)
    for sign, k in ((-1, 1), (1, 2)):
        expected = np.linalg.inv(np.linalg.inv(start) + sign * 2 * times[k, -1] * np.eye(2))
        np.testing.assert_allclose(covariance(xs[k, -1], masses), expected, rtol=1e-8)


def test_large_times_are_finite():
    """Section 3: where e^{tV} has long overflowed, each token moves towards the token that hardmax attends to."""
    x0 = np.random.default_rng(7).uniform(-1, 1, size=(6, 2))
    field = RescaledField(SoftmaxAttention(1.0))
    for t in (400.0, 1e4):
        velocity = np.asarray(field(t, jnp.asarray(x0)))
        assert np.all(np.isfinite(velocity))
        targets = x0 + velocity
        np.testing.assert_allclose(targets, x0[np.argmax(x0 @ x0.T, axis=1)], rtol=0, atol=1e-12)


@pytest.mark.exhaustive
def test_attention_becomes_boolean_in_one_dimension():
    """R5: for d = 1, V > 0, QK > 0 every row of P tends to one of the two extreme tokens, doubly exponentially."""
    x0 = np.array([[-0.9], [-0.65], [-0.12], [0.33], [0.38], [0.67], [0.86], [1.22]])
    ts = np.array([0.0, 3.0, 3.5, 4.0, 6.0])
    attention = SoftmaxAttention(1.0)
    field = RescaledField(attention)
    zs = solve_tightly(field, x0, ts).xs
    weights = np.stack([np.asarray(attention.weights(field.unscale(t, z))) for t, z in zip(ts, zs, strict=True)])
    assert set(weights[-1].argmax(axis=1)) == {0, 7}
    assert weights[-1].max(axis=1).min() > 1 - 1e-12
    assert np.linalg.matrix_rank(weights[-1]) == 2
    missing = -np.log(1 - weights[1:4, 1:-1].max(axis=2))
    rates = np.log(missing[1:] / missing[:-1]) / 0.5
    assert np.all((rates > 0.9) & (rates < 1.3))


def test_scale_of_boolean_attention():
    """R6: A = sqrt(W(n^2)) solves A^2 = n^2 e^{-A^2}."""
    for n, printed in {3: 1.2957686598, 8: 1.7450752714, 40: 2.3762763874}.items():
        a = oracles.boolean_scale(n)
        np.testing.assert_allclose(a, printed, rtol=0, atol=6e-11)
        np.testing.assert_allclose(a * a, n**2 * np.exp(-a * a), rtol=1e-12)
