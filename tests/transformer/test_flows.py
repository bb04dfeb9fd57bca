"""Schemes of layer normalisation as flows: oracle L1, the equiangular reduction, the tails; rank collapse,
oracle RC1."""

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import clusterjax as cjx
from clusterjax import transformer
from tests.helpers import as_a_user, normal, sphere_tokens
from tests.solving import velocity


SCHEMES = {
    "post": transformer.PostLN(), "pre": transformer.PreLN(), "peri": transformer.PeriLN(),
    "nGPT": transformer.NormalisedGPT(1.0), "root": transformer.RootScaled(),
}  # fmt: skip
# gamma at t = 1, 3, 6, 12, 30 for n = 8, beta = 1, r = 1, from orthogonal tokens.
ORACLE = {
    "post": (0.36258688, 0.97049383, 0.99992465, 1, 1),
    "pre": (0.29643005, 0.79395275, 0.94806857, 0.98797721, 0.99820360),
    "peri": (0.53220644, 0.87861994, 0.96317124, 0.99001972, 0.99833639),
    "nGPT": (0.67827928, 0.99278880, 0.99998205),
    "root": (0.27849346, 0.81634236, 0.98331190, 0.99963507, 0.99999986),
}
TIMES = (1.0, 3.0, 6.0, 12.0, 30.0)
PRECISE = dfx.PIDController(1e-10, 1e-10)


def run(name, x0, times, beta=1.0):
    field = transformer.NormalisationField(cjx.SoftmaxAttention(beta), SCHEMES[name])
    return cjx.simulate(field, x0, jnp.asarray((0.0, *times)), stepsize_controller=PRECISE, max_steps=20_000)


def reduced(name, times, n=8, beta=1.0, r0=1.0):
    """(gamma, r) of tokens that all have the cosine gamma with each other."""

    def slope(t, state):
        gamma, r = state
        own, other = np.exp(beta), np.exp(beta * gamma)
        total = own + (n - 1) * other
        along = (own + (n - 1) * gamma * other) / total
        size = np.sqrt(own**2 + 2 * (n - 1) * gamma * own * other + (n - 1) * (1 + (n - 2) * gamma) * other**2) / total
        brake = {"post": 1, "pre": r, "peri": r * size, "nGPT": size, "root": np.sqrt(t + 1)}[name]
        growth = {"pre": along, "peri": along / size}.get(name, 0.0)
        return 2 / brake * other * (1 - gamma) * (1 + (n - 1) * gamma) / total, growth

    found = solve_ivp(slope, (0, times[-1]), (0.0, r0), t_eval=times, rtol=1e-12, atol=1e-12, method="DOP853")
    return found.y


@pytest.mark.exhaustive_cases("nGPT", "peri", "post", "pre", "root")
@pytest.mark.parametrize("name", SCHEMES)
def test_orthogonal_tokens_follow_the_reduced_equations_and_the_oracle(name):
    times = TIMES[: len(ORACLE[name])]
    found = run(name, jnp.eye(8), times)
    directions = np.asarray(cjx.Sphere().retract(found.xs[1:]))
    gamma = np.sum(directions[:, 0] * directions[:, 1], axis=1)
    expected, lengths = reduced(name, times)
    np.testing.assert_allclose(gamma, expected, atol=3e-8)
    np.testing.assert_allclose(gamma, ORACLE[name], atol=3e-8)
    of_tokens = np.linalg.norm(found.xs[1:], axis=-1)
    np.testing.assert_allclose(of_tokens, np.repeat(lengths[:, None], 8, axis=1), rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "beta", "expected"),
    [
        ("post", 1, 0.03043293), ("post", 4, 0.01700707), ("post", 9, 2.449154e-4), ("peri", 1, 0.23838418),
        ("peri", 4, 0.03625022), ("peri", 9, 2.468195e-4), ("root", 1, 0.03043293),
    ],
)  # fmt: skip
def test_how_fast_64_orthogonal_tokens_start(name, beta, expected):
    x = np.eye(64)
    attention = cjx.SoftmaxAttention(float(beta))
    v = np.asarray(velocity(transformer.NormalisationField(attention, SCHEMES[name]), x))
    assert v[0, 1] + v[1, 0] == pytest.approx(expected, rel=1e-6)
    longer = np.asarray(velocity(transformer.NormalisationField(attention, transformer.PreLN()), 2.0 * x))
    turn = (longer[0] - longer[0, 0] * x[0]) / 2.0
    own = np.exp(beta) + 63
    assert 2 * turn[1] == pytest.approx(2 / (2.0 * own), rel=1e-9)


def test_tails():
    """1 - gamma falls like e^(-2t) for Post, t^-2 for Pre and Peri, e^(-4 sqrt(t + 1)) for the root."""
    rest = {name: 1 - reduced(name, (4.0, 5.0))[0] for name in ("post", "root")}
    assert np.log(rest["post"][0] / rest["post"][1]) == pytest.approx(2, abs=0.05)
    far = 1 - reduced("root", (20.0, 30.0))[0]
    assert np.log(far[0] / far[1]) / (4 * (np.sqrt(31) - np.sqrt(21))) == pytest.approx(1, abs=1e-4)
    for name in ("pre", "peri"):
        gamma, r = reduced(name, (1000.0, 2000.0))
        assert (1 - gamma[0]) / (1 - gamma[1]) == pytest.approx(4, rel=0.02)
        np.testing.assert_allclose((1 - gamma) * r**2, 1.533148, rtol=5e-3)


def test_the_flow_of_post_is_that_of_the_sphere():
    x0 = sphere_tokens(0, 6, 3)
    value = normal(1, 3, 3)
    ours = transformer.NormalisationField(cjx.SoftmaxAttention(2.0), transformer.PostLN(), value)
    theirs = cjx.AttentionField(cjx.SoftmaxAttention(2.0), value)
    expected = np.asarray(velocity(theirs, x0))
    np.testing.assert_allclose(velocity(ours, x0), expected, atol=1e-14)
    np.testing.assert_allclose(velocity(ours, 3.0 * x0), 3.0 * expected, atol=1e-13)


def test_what_is_no_scheme_is_refused():
    with as_a_user(), pytest.raises(ValueError, match=r"space must be Euclidean\(\), but it is Sphere\(\)"):
        transformer.NormalisationField(cjx.SoftmaxAttention(1.0), space=cjx.Sphere())
    with as_a_user(), pytest.raises(ValueError, match=r"alpha must be a number, but its shape is \(2,\)"):
        transformer.NormalisedGPT(jnp.ones(2))
    flow = transformer.NormalisationField(cjx.SoftmaxAttention(1.0))
    with as_a_user(), pytest.raises(ValueError, match="x must have no zero row, .* but row 1 is zero"):
        flow(0.0, normal(0, 3, 2).at[1].set(0.0))
    with as_a_user(), pytest.raises(ValueError, match="value must act on tokens of dimension 2"):
        transformer.NormalisationField(cjx.SoftmaxAttention(1.0), value=jnp.eye(3))(0.0, normal(0, 3, 2))


def pure_attention(beta, d):
    """Attention with Q = K = V = the identity, and nothing else."""
    eye = jnp.eye(d)[None]
    return transformer.MultiHeadAttention(eye, eye, eye, eye, jnp.asarray(beta))


def test_rank_collapses_doubly_exponentially_without_skip_connections():
    """Oracle RC1: the distance of two tokens obeys an exact recursion, whose exponent is 3^L."""
    n, beta = 6, 1.5
    attention = pure_attention(beta, n)
    call, x = eqx.filter_jit(lambda module, x: module(x)), np.eye(n)
    distance, found = np.sqrt(2.0), []
    for _ in range(3):
        x = np.asarray(call(attention, x))
        found.append(np.linalg.norm(x[0] - x[1]))
        lift = np.expm1(beta * distance**2 / 2)
        distance = distance * lift / (lift + n)
        assert found[-1] == pytest.approx(distance, rel=1e-6, abs=3e-16)
    np.testing.assert_allclose(found, [0.5193011, 0.01870241, 8.177873e-7], rtol=1e-6)
    block = transformer.Block(attention, None, (None, None), transformer.NoNorm())
    y = np.eye(n)
    for _ in range(3):
        y = np.asarray(call(block, y))
    apart = np.linalg.norm(y[0] - y[1]) / np.linalg.norm(y[0])
    assert apart > 0.1, "with skip connections nothing of the kind happens"


def test_pre_and_peri_follow_one_curve():
    pre, peri = (reduced(name, tuple(np.linspace(0.1, 20, 400))) for name in ("pre", "peri"))
    lengths = np.linspace(1.2, 10, 30)
    np.testing.assert_allclose(np.interp(lengths, pre[1], pre[0]), np.interp(lengths, peri[1], peri[0]), atol=2e-4)


def test_ngpt_moves_by_alpha():
    x0 = sphere_tokens(0, 6, 3)
    slow, fast = (
        velocity(transformer.NormalisationField(cjx.SoftmaxAttention(2.0), transformer.NormalisedGPT(alpha)), x0)
        for alpha in (0.5, 1.0)
    )
    np.testing.assert_allclose(fast, 2 * np.asarray(slow), rtol=1e-12)
