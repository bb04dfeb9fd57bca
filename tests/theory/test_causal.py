"""Causal attention, oracle 2: the first token moves freely, and the others follow it in turn."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import iv

from clusterjax import (
    AttentionField,
    Blocked,
    CausalMask,
    Dense,
    Euclidean,
    Retract,
    SoftmaxAttention,
    Sphere,
    UnnormalisedAttention,
    renyi_centres,
    simulate,
)
from tests import oracles
from tests.solving import angles, gram, solve_tightly, velocity


def causal_field(beta, form=None, value=None, **options):
    return AttentionField(SoftmaxAttention(beta, query_key=form, mask=CausalMask()), value, **options)


@pytest.mark.exhaustive
def test_first_token_is_known_exactly():
    """C1: x_1(t) = e^{Vt} x_1(0) / |e^{Vt} x_1(0)| for any V, Q, K, to 1e-9; for V = diag(2, 1, -1) it tends to the
    first eigenvector at the rate 1, and for V = +-I it is constant. C8, in this case: all tokens tend to +-v_1.
    """
    rng = np.random.default_rng(1)
    ts = np.array([0.0, 0.5, 2.0, 5.0, 10.0, 60.0])
    values = np.stack([rng.normal(size=(3, 3)), np.diag([2.0, 1.0, -1.0]), np.eye(3), -np.eye(3)])
    x0 = oracles.unit_tokens(2, 5, 3)
    form = jnp.asarray(rng.normal(size=(3, 3)))
    solve = lambda value: solve_tightly(causal_field(1.3, form, value), x0, ts).xs
    xs = np.asarray(eqx.filter_vmap(solve)(jnp.asarray(values)))
    grown = np.array([[expm(t * value) @ x0[0] for t in ts] for value in values])
    expected = grown / np.linalg.norm(grown, axis=-1, keepdims=True)
    np.testing.assert_allclose(xs[:, :, 0], expected, rtol=0, atol=1e-9)
    assert np.abs(xs[2:, :, 0] - x0[0]).max() < 1e-15
    distance = np.linalg.norm(xs[1, :, 0] - np.sign(x0[0, 0]) * np.eye(3)[0], axis=1)
    np.testing.assert_allclose(np.log(distance[3] / distance[4]) / 5, 1.0, rtol=0, atol=1e-3)
    np.testing.assert_allclose(np.abs(xs[1, -1, :, 0]), 1.0, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def followers():
    """Runs of five tokens up to t = 44, with V = I, beta = 1 and 3, and Q^T K the identity or random."""
    ts = np.array([0.0, 20.0, 30.0, 40.0, 44.0])
    rng = np.random.default_rng(3)
    forms = jnp.asarray(np.stack([np.eye(3), 0.4 * rng.normal(size=(3, 3)), 0.4 * rng.normal(size=(3, 3))]))
    starts = jnp.stack([jnp.asarray(oracles.unit_tokens(seed, 5, 3)) for seed in (4, 5, 6)])
    solve = lambda beta, form, x0: solve_tightly(causal_field(beta, form), x0, ts).xs
    return ts, np.asarray(eqx.filter_vmap(solve)(jnp.asarray([1.0, 1.0, 3.0]), forms, starts))


@pytest.mark.exhaustive
def test_all_tokens_come_to_the_first(followers):
    """C2: all tokens tend to the first for V = I, any Q, K and d >= 2."""
    _, xs = followers
    assert np.abs(xs[:, 0] - xs[:, 0, :1]).max() > 1
    assert np.abs(xs[:, -1] - xs[:, 0, :1]).max() < 1e-6


@pytest.mark.exhaustive
def test_second_token_comes_at_the_rate_one_half(followers):
    """C3: |x_2 - x_1| decays at the rate 1/2, for any Q, K and beta."""
    ts, xs = followers
    distance = np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1)
    rates = np.log(distance[:, 2] / distance[:, 3]) / (ts[3] - ts[2])
    np.testing.assert_allclose(rates, 0.5, rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_ladder(followers):
    """C4: (x_k - x_1) / (x_2 - x_1) tends to k - 1, in one direction, with corrections of order e^{-t/6}."""
    _, xs = followers
    steps = xs[:, -1, 1:] - xs[:, -1, :1]
    lengths = np.linalg.norm(steps, axis=-1)
    ratio, cosine = lengths / lengths[:, :1], np.einsum("akd,ad->ak", steps, steps[:, 0]) / lengths / lengths[:, :1]
    np.testing.assert_allclose(ratio, np.tile(np.arange(1.0, 5.0), (3, 1)), rtol=0.02)
    assert np.all(cosine > 1 - 1e-4)


@eqx.filter_jit
def consensus_jacobian(field, n, point):
    x = jnp.broadcast_to(point, (n, point.shape[0]))
    return jax.jacfwd(lambda y: field(0.0, y))(x).reshape(n * point.shape[0], -1)


@pytest.mark.parametrize("beta", (0.0, 1.0, 9.0))
@pytest.mark.parametrize("form", (np.eye(3), np.random.default_rng(7).normal(size=(3, 3))), ids=("B = I", "B random"))
def test_consensus_spectrum_of_causal_attention(beta, form):
    """C3: for V = I, any Q, K, the rates are -(k - 1) / k (d - 1 times) for k = 1..n; radial directions have rate 0."""
    n, d = 6, 3
    point = jnp.asarray(oracles.unit_tokens(9, 1, d)[0])
    jacobian = consensus_jacobian(causal_field(beta, jnp.asarray(form)), n, point)
    expected = np.concatenate([np.zeros(n + d - 1), np.repeat(-np.arange(1.0, n) / np.arange(2.0, n + 1), d - 1)])
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(jacobian).real), np.sort(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", (0.0, 1.0, 4.0))
def test_consensus_spectrum_of_full_attention(beta):
    """1.4: for V = I, SA with any Q, K has 0 (d - 1 times) and -1 ((n - 1)(d - 1) times); USA with B = I, -e^beta."""
    n, d = 6, 3
    point = jnp.asarray(oracles.unit_tokens(10, 1, d)[0])
    form = jnp.asarray(np.random.default_rng(11).normal(size=(d, d)))
    for attention, decay in (
        (SoftmaxAttention(beta, query_key=form), 1.0),
        (UnnormalisedAttention(beta), np.exp(beta)),
    ):
        spectrum = np.linalg.eigvals(consensus_jacobian(AttentionField(attention), n, point)).real
        expected = np.sort(np.concatenate([np.zeros(n + d - 1), np.full((n - 1) * (d - 1), -decay)]))
        np.testing.assert_allclose(np.sort(spectrum), expected, rtol=0, atol=1e-12 * decay)


@pytest.mark.exhaustive
def test_two_tokens_take_the_exact_time():
    """C5: for V = I, token 2 moves from the angle 2 to the cosine 0.95 with token 1 in the exact time, to 1e-9."""
    printed = {0.0: 4.549607094, 1.0: 6.526625009, 4.0: 81.968569804}
    cosines = np.array([0.0, 0.6, 0.95])
    times = [np.append(0, [oracles.causal_pair_time(2.0, c, beta) for c in cosines]) for beta in printed]
    for beta, row in zip(printed, times, strict=True):
        np.testing.assert_allclose(row[-1], printed[beta], rtol=0, atol=6e-10)
    x0 = oracles.circle_tokens(np.array([0.3, 2.3]))
    solve = lambda beta, ts: solve_tightly(causal_field(beta), x0, ts).xs
    xs = np.asarray(eqx.filter_vmap(solve)(jnp.asarray(list(printed)), jnp.asarray(np.stack(times))))
    found = np.sum(xs[:, 1:, 0] * xs[:, 1:, 1], axis=-1)
    np.testing.assert_allclose(found, np.tile(cosines, (3, 1)), rtol=0, atol=1e-9)


def degrees_from_the_first(xs):
    return np.degrees(angles(xs) - angles(xs)[..., :1]) % 360


@pytest.mark.exhaustive
@pytest.mark.slow
def test_repelled_tokens_halve_the_circle():
    """C6: for V = -I on the circle and beta = 1, the limits relative to token 1 are 180, then {90, 270}, then the odd
    multiples of 45 degrees; at beta = 4 the second token is still far from its limit at t = 400.
    """
    starts = jnp.stack([jnp.asarray(oracles.unit_tokens(seed, 8, 2)) for seed in (0, 1, 2, 3)])
    times = jnp.asarray([[0.0, 1000.0]] * 3 + [[0.0, 400.0]])
    solve = lambda beta, x0, ts: solve_tightly(causal_field(beta, value=-jnp.eye(2)), x0, ts).xs
    xs = np.asarray(eqx.filter_vmap(solve)(jnp.asarray([1.0, 1.0, 1.0, 4.0]), starts, times))
    found = degrees_from_the_first(xs[:, -1])
    for row in found[:3]:
        np.testing.assert_allclose(row[1], 180, rtol=0, atol=1e-6)
        np.testing.assert_allclose(np.sort(row[2:4]), [90, 270], rtol=0, atol=1e-6)
        np.testing.assert_allclose(np.sort(row[4:]), [45, 135, 225, 315], rtol=0, atol=1e-6)
    assert abs(found[3, 1] - 180) > 1


@pytest.mark.exhaustive
@pytest.mark.slow
def test_full_attention_repels_into_polygon_and_simplex():
    """C7: for V = -I, beta = 1 and full attention, the limit is the regular n-gon on the circle for n = 2..8, and the
    simplex where d >= n - 1; at beta = 9 two, three and four tokens of the circle are far from it at t = 500.

    The first n of eight tokens have mass one and the others mass zero, so that one compiled program serves all cases.
    """
    circle = np.pad(oracles.unit_tokens(3, 8, 2), ((0, 0), (0, 1)))
    sphere = oracles.unit_tokens(4, 8, 3)
    counts, betas = [2, 3, 4, 5, 6, 7, 8, 4, 2, 3, 4], [1.0] * 8 + [9.0] * 3
    starts = jnp.asarray(np.stack([circle] * 7 + [sphere] + [circle] * 3))
    masses = jnp.asarray([[1.0] * n + [0.0] * (8 - n) for n in counts])

    def run(beta, masses, x0):
        field = AttentionField(SoftmaxAttention(beta), -jnp.eye(3), masses=masses)
        return solve_tightly(field, x0, [0.0, 500.0]).xs[-1]

    last = np.asarray(eqx.filter_vmap(run)(jnp.asarray(betas), masses, starts))
    for n, x in zip(counts[:7], last[:7], strict=True):
        placed = np.sort(degrees_from_the_first(x[:n]))
        np.testing.assert_allclose(np.diff(np.append(placed, 360)), np.full(n, 360 / n), rtol=0, atol=1e-6)
    off = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(gram(last[7, :4])[off], -1 / 3, rtol=0, atol=6e-9)
    for n, x in zip(counts[8:], last[8:], strict=True):
        placed = np.sort(degrees_from_the_first(x[:n]))
        assert np.abs(np.diff(np.append(placed, 360)) - 360 / n).max() > 1


def test_interaction_is_strongest_at_its_peak():
    """C9: e^{beta (cos x - 1)} sin x has its maximum at tau*, between (beta + 1/2)^{-1/2} and beta^{-1/2}; token 2 of
    the causal unnormalised flow moves at half this speed.
    """
    betas = np.array([1.0, 9.0, 64.0, 81.0])
    peaks = oracles.interaction_peak(betas)
    np.testing.assert_allclose(peaks, [0.9045568943, 0.3301723971, 0.1248366701, 0.1109964829], rtol=0, atol=6e-11)
    assert np.all(((betas + 0.5) ** -0.5 < peaks) & (peaks < betas**-0.5))

    def speed(beta, angle):
        field = AttentionField(UnnormalisedAttention(beta, mask=CausalMask(), offset=beta))
        moved = field(0.0, jnp.stack([jnp.array([1.0, 0.0]), jnp.stack([jnp.cos(angle), jnp.sin(angle)])]))
        return moved[1, 0] * jnp.sin(angle) - moved[1, 1] * jnp.cos(angle)

    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(speed, argnums=1)))(betas, peaks)
    np.testing.assert_allclose(values, np.exp(betas * (np.cos(peaks) - 1)) * np.sin(peaks) / 2, rtol=1e-12)
    assert np.abs(slopes).max() < 1e-12


def count_centres(n, d, draws):
    starts = jnp.asarray(oracles.unit_tokens(12, draws * n, d).reshape(draws, n, d))
    counts = np.asarray(jnp.sum(jax.vmap(lambda x: renyi_centres(x, 0.5))(starts), axis=1))
    return counts.mean(), counts.std() / np.sqrt(draws)


@pytest.mark.exhaustive
def test_number_of_greedy_centres():
    """C11: 200 tokens of the circle have 9.135 +- 0.030 centres at delta = 1/2, and tokens of d = 3 have 27.13 +- 0.06;
    on the circle the number tends to Rényi's constant times 2 pi / delta, 9.3946, with a deficit of order 1 / n.
    """
    limit = oracles.RENYI_PARKING * 2 * np.pi / 0.5
    np.testing.assert_allclose(limit, 9.3946, rtol=0, atol=6e-5)
    for d, printed, sigma in ((2, 9.135, 0.030), (3, 27.13, 0.06)):
        mean, error = count_centres(200, d, 4000)
        assert abs(mean - printed) < 4 * np.hypot(error, sigma)
    mean, error = count_centres(1600, 2, 1000)
    assert abs(mean - limit) < 4 * error + 60 / 1600


@pytest.mark.parametrize("summation", (Dense(), Blocked(4, 3)), ids=("dense", "blocked"))
@pytest.mark.parametrize("attention", (SoftmaxAttention, UnnormalisedAttention))
def test_no_token_sees_the_later_ones(attention, summation):
    """C15, oracle 7.5: the Jacobian is block lower triangular with exact zeros, and later tokens change no bit. C1: the
    first token moves along the tangential part of V x_1.
    """
    n, d = 9, 3
    rng = np.random.default_rng(14)
    form, value = jnp.asarray(rng.normal(size=(2, d, d)))
    field = AttentionField(attention(2.0, query_key=form, mask=CausalMask(), summation=summation), value)
    x = jnp.asarray(oracles.unit_tokens(15, n, d))
    blocks = np.abs(jax.jit(jax.jacfwd(lambda y: field(0.0, y)))(x)).max(axis=(1, 3))
    assert np.all(blocks[np.triu_indices(n, 1)] == 0.0)
    assert np.all(blocks[np.tril_indices(n)] > 0.0)
    found, first = np.asarray(velocity(field, x)), np.asarray(x[0])
    kernel = np.exp(2 * first @ np.asarray(form) @ first) if attention is UnnormalisedAttention else 1
    grown = kernel * np.asarray(value) @ first
    np.testing.assert_allclose(found[0], grown - first @ grown * first, rtol=0, atol=1e-12)
    other = oracles.unit_tokens(16, n, d)
    for k in (1, 4, 8):
        changed = np.asarray(velocity(field, jnp.asarray(np.concatenate([x[:k], other[k:]]))))
        np.testing.assert_array_equal(changed[:k], found[:k])
        assert np.abs(changed[k:] - found[k:]).min() > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_seed_setting():
    """C14: in 128 runs of the authors' scheme, 64 tokens of d = 3 have the printed mean cosine to token 1 (4 sigma)."""
    starts = jax.vmap(lambda key: Sphere().sample(key, 64, 3))(jax.random.split(jax.random.key(13), 128))

    def run(beta, x0):
        ts = jnp.asarray([0.0, 6.0, 15.0, 30.0])
        mean_cosine = lambda t, x, args: jnp.mean(x @ x[0])
        options = {"solver": Retract(dfx.Euler()), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.1}
        return simulate(causal_field(beta, space=Euclidean()), x0, ts, save=mean_cosine, **options).xs

    found = eqx.filter_vmap(lambda beta: eqx.filter_vmap(lambda x: run(beta, x))(starts))(jnp.asarray([1.0, 9.0]))
    mean, error = np.mean(found, axis=1), np.std(found, axis=1) / np.sqrt(128)
    for index, printed in {(0, 1): 0.5956, (0, 2): 0.9637, (0, 3): 0.9995, (1, 2): 0.0555, (1, 3): 0.0823}.items():
        assert abs(mean[index] - printed) < 4 * np.sqrt(2) * error[index] + 6e-5


def test_linear_hierarchy_of_the_causal_flow():
    """C13: the linear hierarchy of 512 tokens, c_i' = (a / i)(1 + sum_{i* < l < i} c_l), is near its limit for many
    tokens, sqrt(a t / Y) I_1(2 sqrt(a t Y)) with Y = log(n / i*).
    """
    n, a, t = 512, oracles.coefficient(1, 1.0, 2), 1.0
    for share, finite, profile in ((0.25, 0.8163, 0.8174), (0.5, 0.6828, 0.6833), (0.75, 0.6120, 0.6124)):
        first = int(share * n)
        later = np.arange(first + 1, n + 1)
        matrix = np.tril(np.ones((len(later), len(later))), -1) * (a / later)[:, None]
        augmented = np.block([[matrix, (a / later)[:, None]], [np.zeros((1, len(later) + 1))]])
        c = expm(t * augmented)[:-1, -1]
        np.testing.assert_allclose(n * c[-1], finite, rtol=0, atol=6e-5)
        y = np.log(1 / share)
        np.testing.assert_allclose(np.sqrt(a * t / y) * iv(1, 2 * np.sqrt(a * t * y)), profile, rtol=0, atol=6e-5)
        np.testing.assert_allclose(n * c[-1], profile, rtol=2e-3)
