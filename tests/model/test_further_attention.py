"""Sigmoid, distance, cosine and Sinkhorn attention: double loops, degenerate clouds, limits, energies, derivatives."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import BETA, FORM, GRAPH, MASSES, VALUES, D, N, X, outcome
from tests.clouds import CLOUDS, MASSES as MASSES_OF, cloud, masses as masses_of
from tests.helpers import (
    DTYPES,
    CountTraces,
    as_a_user,
    assert_close,
    assert_derivatives,
    name_of,
    normal,
    sphere_tokens,
)
from tests.model.derivatives_and_maps import assert_maps, assert_slopes
from tests.reference import attention as reference


SYMMETRIC = GRAPH | GRAPH.T
MASKS = {
    "full": (cjx.FullMask(), reference.full),
    "window": (cjx.WindowMask(3), reference.window(3)),
    "matrix": (cjx.MatrixMask(SYMMETRIC), reference.permitted(SYMMETRIC)),
}
CAUSAL = {"causal": (cjx.CausalMask(), reference.causal), "sink": (cjx.SinkMask(3, 1), reference.sink(3, 1))}
FORMS = {"I": np.eye(2), "-I": -np.eye(2), "general": np.array([[0.3, 1.0], [-0.7, -0.2]])}
COUNT = 24  # the number of tokens of a degenerate cloud

sinkhorn = eqx.filter_jit(
    lambda x, beta, form=None, masses=None, mask=cjx.FullMask(): cjx.SinkhornAttention(
        beta, query_key=form, mask=mask
    ).weights(x, masses=masses)
)


def marginals(weights, masses):
    """Returns the largest error of a row sum and of a column sum."""
    weights, share = np.asarray(weights, float), np.asarray(masses, float) / np.sum(masses, dtype=float)
    present = share > 0
    columns = (share @ weights)[present] / share[present]
    return np.abs(weights.sum(axis=1) - 1).max(), np.abs(columns - 1).max()


# --- definition


@pytest.mark.parametrize("offset", (None, 0.3))
@pytest.mark.parametrize("mask", MASKS | CAUSAL)
@pytest.mark.parametrize("masses", (None, MASSES), ids=("no masses", "masses"))
def test_sigmoids_are_the_double_loop(mask, masses, offset):
    mask, allowed = (MASKS | CAUSAL)[mask]
    x = np.asarray(X) * np.linspace(0.5, 2.0, N)[:, None]
    weights, average = outcome(cjx.SigmoidAttention(BETA, offset, query_key=FORM, mask=mask), x, masses=masses)
    heavy = None if masses is None else np.asarray(masses)
    expected = reference.sigmoid_weights(x, BETA, np.asarray(FORM), allowed, heavy, offset)
    assert_close(weights, expected)
    assert_close(average, reference.average(expected, np.asarray(VALUES)))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("masses", (None, MASSES), ids=("no masses", "masses"))
def test_sinkhorn_is_the_double_loop(mask, masses):
    """Weights and averages equal the double loop, in which tokens without mass use the potentials of the other
    tokens."""
    mask, allowed = MASKS[mask]
    x = np.asarray(X) * np.linspace(0.5, 2.0, N)[:, None]
    weights, average = outcome(cjx.SinkhornAttention(BETA, query_key=FORM, mask=mask), x, masses=masses)
    heavy = None if masses is None else np.asarray(masses)
    expected = reference.sinkhorn_weights(x, BETA, np.asarray(FORM), allowed, heavy)
    assert_close(weights, expected, "composed")
    assert_close(average, reference.average(expected, np.asarray(VALUES)), "composed")


def test_two_tokens_have_a_doubly_stochastic_matrix_in_closed_form():
    """Both off-diagonal entries are the sigmoid of half of s12 + s21 - s11 - s22."""
    x = np.asarray(normal(1, 2, D))
    score = 3.0 * x @ np.asarray(FORM) @ x.T
    off = 1 / (1 + np.exp(-(score[0, 1] + score[1, 0] - score[0, 0] - score[1, 1]) / 2))
    assert_close(sinkhorn(x, 3.0, FORM), [[1 - off, off], [off, 1 - off]])


def test_lifted_sums_are_distances_also_far_from_the_origin():
    """A cloud of size 1e-3 at a distance of 1e3 keeps its weights; squares that are not centred would lose ten
    digits."""
    x = 1e3 + 1e-3 * np.asarray(normal(2, N, D))
    near = cjx.DistanceAttention(1e6)
    assert_close(outcome(near, x, x - 1e3)[0], reference.distance_weights(x - 1e3, 1e6), "composed")
    # The first token, without mass and far from the cloud, must not become the centre.
    absent = np.concatenate([np.zeros((1, D)), x]), np.r_[0.0, np.ones(N)]
    rows = outcome(near, absent[0], absent[0], masses=absent[1])[0][1:]
    assert_close(rows[:, 1:], reference.distance_weights(x - 1e3, 1e6), "composed")
    shifted = outcome(near, x + np.array([4.0, -2.0, 8.0]), VALUES)
    assert_close(shifted[1], outcome(near, x, VALUES)[1], "composed")


def test_distances_and_cosines_are_softmax_on_the_sphere():
    for d in (2, 3, 5):
        x, values = sphere_tokens(3, 40, d), normal(4, 40, 2)
        for beta in (1.0, 30.0, -4.0):
            for mask in (cjx.FullMask(), cjx.CausalMask()):
                expected = outcome(cjx.SoftmaxAttention(beta, mask=mask), x, values)[:2]
                for kind in (cjx.DistanceAttention, cjx.CosineAttention):
                    for one, two in zip(outcome(kind(beta, mask=mask), x, values), expected, strict=True):
                        assert_close(one, two)


@pytest.mark.parametrize("kind", ("distance", "cosine"))
def test_heads_in_factors_have_queries_and_keys(kind):
    """Scores are -|Q x - K y|^2 / 2, or the cosine of Q x and K y, for one head with a bias and without."""
    query, key = normal(5, 1, D, 2), normal(6, 1, D, 2)
    bias = np.asarray(normal(7, 1, N, N))
    built = {"distance": cjx.DistanceAttention, "cosine": cjx.CosineAttention}[kind]
    q, k = (np.asarray(X) @ np.asarray(part)[0] for part in (query, key))
    size = lambda a: np.linalg.norm(a, axis=1, keepdims=True)
    scores = (q / size(q)) @ (k / size(k)).T
    if kind == "distance":
        scores = -((q[:, None, :] - k[None, :, :]) ** 2).sum(axis=2) / 2
    for added in (None, bias):
        powers = np.exp(BETA * (scores + (0 if added is None else added[0])))
        expected = powers / powers.sum(axis=1, keepdims=True) @ np.asarray(X)
        eye = np.eye(D)[None]
        field = cjx.MultiHeadField.factored(
            BETA, query, key, eye, eye, attention=built, bias=added, space=cjx.Euclidean()
        )
        assert_close(eqx.filter_jit(field)(0.0, X), expected)


@pytest.mark.exhaustive_cases("DistanceAttention")
@pytest.mark.parametrize("kind", (cjx.DistanceAttention, cjx.CosineAttention))
def test_many_tokens_of_few_dimensions_are_summed_right(kind):
    """Averages are right where `Auto` would choose a series for the sphere, although these tokens are off the
    sphere."""
    x = np.asarray(normal(8, 4200, 2, dtype=np.float32))
    found = eqx.filter_jit(lambda x: kind(2.0).average(x, None))(x)[:50]
    deep = x.astype(float)
    scores = -((deep[:50, None] - deep[None]) ** 2).sum(axis=2) / 2
    if kind is cjx.CosineAttention:
        unit = deep / np.linalg.norm(deep, axis=1, keepdims=True)
        scores = unit[:50] @ unit.T
    powers = np.exp(2.0 * scores)
    if kind is cjx.DistanceAttention:
        # The series holds on the sphere alone, so that `Auto` sums in blocks.
        field = cjx.AttentionField(kind(2.0))
        run = lambda: cjx.simulate(field, jnp.asarray(x), jnp.asarray([0.0, 1.0], jnp.float32)).stats
        assert jax.eval_shape(run)["summation"] == "Blocked"
    assert_close(found, powers / powers.sum(axis=1, keepdims=True) @ deep, "composed")


# --- degenerate clouds


@pytest.mark.exhaustive_cases("-I-float64", "I-float32", "general-float64", "-I-float32")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("form", FORMS)
def test_marginals_are_the_masses_of_degenerate_clouds(form, dtype):
    """Rows err by at most 16 epsilons, columns by at most these times 1 plus the largest score, for beta up to 1e4."""
    for name in CLOUDS:
        for kind in MASSES_OF:
            masses = masses_of(kind, COUNT).astype(dtype)
            for beta, sphere in ((1.0, False), (30.0, True), (1e4, True)):
                x = cloud(name, COUNT, seed=3, sphere=sphere).astype(dtype)
                weights = sinkhorn(x, beta, FORMS[form], masses)
                largest = beta * np.abs(x.astype(float) @ FORMS[form] @ x.T.astype(float)).max()
                rows, columns = marginals(weights, masses)
                # The bounds are 20 machine epsilons, since the sums of the test round, too.
                assert rows <= 20 * np.finfo(dtype).eps, (name, kind, beta)
                assert columns <= 20 * np.finfo(dtype).eps * (1 + largest), (name, kind, beta)
                assert np.all(np.asarray(weights) >= 0)


def test_weights_of_degenerate_clouds_are_a_scaled_kernel():
    """log w_ij - s_ij is f_i + g_j: this property and the marginals define the matrix."""
    for name in CLOUDS:
        x = cloud(name, COUNT, seed=5, sphere=True)
        for form in FORMS.values():
            rest = np.log(np.asarray(sinkhorn(x, 3.0, form))) - 3.0 * x @ form @ x.T
            off = rest - rest[:1] - rest[:, :1] + rest[0, 0]
            assert np.abs(off).max() < 1e-11, name


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_degenerate_clouds_are_the_double_loop(dtype):
    """Sigmoid, distance and cosine weights equal the double loop, with a token at zero, whose cosine is zero by
    definition."""
    loops = {
        "sigmoid": (cjx.SigmoidAttention, reference.sigmoid_weights),
        "distance": (cjx.DistanceAttention, reference.distance_weights),
        "cosine": (cjx.CosineAttention, reference.cosine_weights),
    }
    for name in CLOUDS:
        x = cloud(name, 12, seed=1).astype(dtype)
        x[3] = 0
        for kind, (build, loop) in loops.items():
            for masses in ("some zero", "first zero", "one"):
                heavy = masses_of(masses, 12).astype(dtype)
                weights = np.asarray(outcome(build(0.7, mask=cjx.CausalMask()), x, x, heavy)[0])
                expected = loop(x.astype(float), 0.7, None, reference.causal, heavy.astype(float))
                # The squares of the far token are 2^16, and the exponents round accordingly.
                allowed = 4 * np.finfo(dtype).eps * (1 + np.square(x.astype(float)).sum(axis=1).max())
                np.testing.assert_allclose(weights, expected, atol=4 * allowed, err_msg=f"{name}, {kind}")


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_nothing_overflows(dtype):
    """Averages and their gradients are finite at beta = 1e4 and -1e4, and averages at offsets of 1e4 and -1e4."""
    x = cloud("antipodes", 16, 3, seed=2, sphere=True).astype(dtype)
    for beta in (1e4, -1e4):
        for kind in (cjx.SigmoidAttention, cjx.DistanceAttention, cjx.CosineAttention, cjx.SinkhornAttention):
            value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda x, a: jnp.sum(a.average(x, None) ** 2)))(
                x, kind(beta)
            )
            assert np.isfinite(value) and np.all(np.isfinite(gradient)), kind
    for offset in (1e4, -1e4):
        assert np.all(np.isfinite(outcome(cjx.SigmoidAttention(1.0, offset), x, x)[0]))


def test_scores_that_are_not_finite_give_nan():
    """The iteration ends, and the row of the token that is NaN is NaN."""
    x = np.asarray(X) * np.where(np.arange(N) == 2, np.nan, 1.0)[:, None]
    assert np.all(np.isnan(np.asarray(sinkhorn(x, 1.0))[2]))


# --- masses


def test_a_mass_counts_tokens():
    """In sigmoid and Sinkhorn attention a token of mass k acts as k equal tokens, of mass zero as no token."""
    masses = np.array([1.0, 2.0, 1.0, 0.0, 1.0, 3.0, 1.0, 0.0, 0.0])
    copies = np.repeat(np.arange(N), masses.astype(int))
    for kind in (cjx.SigmoidAttention(2.0), cjx.SigmoidAttention(2.0, -0.4), cjx.SinkhornAttention(2.0)):
        average = np.asarray(outcome(kind, masses=masses)[1])
        apart = np.asarray(outcome(kind, np.asarray(X)[copies], np.asarray(VALUES)[copies])[1])
        assert_close(average[copies], apart, "composed")


def test_only_the_ratios_of_masses_matter_to_sinkhorn():
    assert_close(sinkhorn(X, BETA, FORM, 7.0 * MASSES), sinkhorn(X, BETA, FORM, MASSES), "identity")


# --- limits


def test_without_beta_the_average_is_the_mean():
    assert_close(sinkhorn(X, 0.0), np.full((N, N), 1 / N))


def test_distinct_tokens_attend_to_themselves_as_beta_grows():
    """The weights tend to the identity, so that tokens on the sphere come to rest; for B = -I they tend to a
    permutation."""
    x = sphere_tokens(4, 16, 3)
    assert_close(sinkhorn(x, 1e4), np.eye(16), "identity")
    weights = np.asarray(sinkhorn(x, 1e5, -np.eye(3)))
    assert_close(np.sort(weights, axis=1)[:, -1], np.ones(16), "composed")
    assert sorted(weights.argmax(axis=1)) == list(range(16))


def test_sigmoids_tend_to_unnormalised_attention():
    """With n tokens w = e^{beta s} / (n + e^{beta s}), and e^{beta s} / n exceeds w by the relative difference e^{beta
    s} / n."""
    for n in (64, 1024):
        x = sphere_tokens(5, n, D)
        sigmoid, plain = (
            np.asarray(outcome(a, x, x)[0]) for a in (cjx.SigmoidAttention(2.0), cjx.UnnormalisedAttention(2.0))
        )
        assert_close(plain / sigmoid - 1, np.exp(2.0 * np.asarray(x @ x.T)) / n, "composed")


# --- energies


SYMMETRIC_FORM = np.asarray(FORM) + np.asarray(FORM).T


@pytest.mark.parametrize("masses", (None, MASSES + 0.1), ids=("no masses", "masses"))
@pytest.mark.parametrize(
    "attention",
    (
        cjx.SigmoidAttention(BETA, query_key=SYMMETRIC_FORM),
        cjx.SigmoidAttention(BETA, 0.4, query_key=SYMMETRIC_FORM),
        cjx.SinkhornAttention(BETA, query_key=SYMMETRIC_FORM),
        cjx.SinkhornAttention(-BETA, query_key=SYMMETRIC_FORM),
        cjx.SinkhornAttention(BETA, query_key=SYMMETRIC_FORM, mask=cjx.MatrixMask(SYMMETRIC)),
    ),
    ids=("sigmoid", "offset", "Sinkhorn", "negative beta", "mask"),
)
def test_the_velocity_is_the_gradient_of_the_energy(attention, masses):
    """For V = B the velocity of x_i is the gradient in x_i over its share of the mass: the gradient in Wasserstein
    space."""
    share = np.full((N, 1), 1 / N) if masses is None else np.asarray(masses)[:, None] / np.sum(masses)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda x: attention.energy(x, masses=masses)))(X)
    velocity = eqx.filter_jit(attention.average)(X, X @ SYMMETRIC_FORM, masses=masses)
    assert_close(gradient / share, velocity, "composed")


def test_without_a_symmetric_form_the_velocity_is_no_gradient():
    """For V = B the Jacobian of the velocity is not symmetric; with B + B^T it is symmetric to rounding."""
    skew = {}
    for name, form in (("general", np.asarray(FORM)), ("symmetric", SYMMETRIC_FORM)):
        attention = cjx.SinkhornAttention(BETA, query_key=form)
        jacobian = eqx.filter_jit(jax.jacfwd(lambda x, a=attention, b=form: a.average(x, x @ b.T)))(X)
        matrix = np.asarray(jacobian).reshape(N * D, N * D)
        skew[name] = np.abs(matrix - matrix.T).max() / np.abs(matrix).max()
    assert skew["symmetric"] < 1e-10 and skew["general"] > 0.1


def test_the_energy_of_sinkhorn_is_its_definition():
    """For a form that is not symmetric, the energy is the score less the divergence of the coupling, the maximiser."""
    masses = np.asarray(MASSES)
    form, share = np.asarray(FORM), masses / masses.sum()
    attention = cjx.SinkhornAttention(BETA, query_key=form)
    coupling = reference.sinkhorn_weights(np.asarray(X), BETA, form, masses=masses) * share[:, None]
    score = np.asarray(reference.scores(np.asarray(X), form))

    def value(coupling):
        some = coupling > 0
        return (coupling * score).sum() / 2 - (
            coupling[some] * np.log(coupling[some] / np.outer(share, share)[some])
        ).sum() / (2 * BETA)

    found = float(eqx.filter_jit(attention.energy)(X, masses=MASSES))
    assert found == pytest.approx(value(coupling), rel=1e-10)
    assert found > value(np.outer(share, share)) and found > value(0.9 * coupling + 0.1 * np.outer(share, share))


def test_the_energy_of_sigmoids_is_its_double_sum():
    score, m = BETA * np.asarray(reference.scores(np.asarray(X), np.asarray(FORM))), np.asarray(MASSES)
    expected = m @ np.log1p(np.exp(score - np.log(m.sum()))) @ m / (2 * BETA * m.sum())
    assert float(cjx.SigmoidAttention(BETA, query_key=FORM).energy(X, masses=MASSES)) == pytest.approx(expected)


def test_the_mean_shift_is_a_gradient_weighted_by_normalisers():
    x = normal(9, N, D)
    kernel = lambda x: jnp.exp(-BETA * jnp.sum((x[:, None] - x[None]) ** 2, axis=2) / 2)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(kernel(x)) / (2 * BETA * N**2)))(x)
    velocity = outcome(cjx.DistanceAttention(BETA), x, x)[1] - x
    assert_close(np.asarray(kernel(x)).sum(axis=1)[:, None] / N * velocity, N * gradient)


@pytest.mark.parametrize("kind", (cjx.SigmoidAttention, cjx.SinkhornAttention))
def test_the_energy_never_decreases_along_a_run(kind):
    attention = kind(4.0)
    ts = jnp.linspace(0.0, 20.0, 41)
    run = cjx.simulate(cjx.AttentionField(attention), sphere_tokens(6, 12, 3), ts)
    energies = np.asarray(eqx.filter_jit(jax.vmap(attention.energy))(run.xs))
    assert np.all(np.diff(energies) > -1e-9) and energies[-1] > energies[0] + 0.01
    assert run.stats["summation"] == type(attention).__name__


# --- contract


@pytest.mark.parametrize("kind", ("sigmoid", "sigmoid with offset", "Sinkhorn", "distance", "cosine"))
def test_derivatives_in_tokens_and_parameters(kind):
    """Weights and averages are differentiated in x, beta, the form and the masses at once."""
    build = {
        "sigmoid": cjx.SigmoidAttention,
        "sigmoid with offset": functools.partial(cjx.SigmoidAttention, offset=0.3),
        "Sinkhorn": cjx.SinkhornAttention,
        "distance": cjx.DistanceAttention,
        "cosine": cjx.CosineAttention,
    }[kind]
    fn = lambda x, form, masses, beta: outcome(build(beta, query_key=form), x, x, masses)
    assert_slopes(fn, X, FORM, MASSES + 1, BETA)


@pytest.mark.parametrize("kind", (cjx.SigmoidAttention, cjx.SinkhornAttention))
def test_the_derivative_by_a_mass_of_zero_is_one_sided(kind):
    fn = jax.jit(lambda m: kind(BETA).average(X, VALUES, masses=m))
    masses, step = jnp.asarray(MASSES), 1e-4
    towards = jnp.zeros(N).at[jnp.asarray([0, 4])].set(jnp.asarray([1.0, 0.5]))
    _, tangent = jax.jvp(fn, (masses,), (towards,))
    zero, one, two = (np.asarray(fn(masses + k * step * towards)) for k in range(3))
    np.testing.assert_allclose(tangent, (4 * one - 3 * zero - two) / (2 * step), rtol=1e-5, atol=1e-6)
    assert np.abs(tangent).max() > 0.01


@pytest.mark.exhaustive
def test_second_derivatives_of_sinkhorn():
    """Second derivatives are right, also in reverse over reverse mode through a checkpoint and a scan."""
    attention = cjx.SinkhornAttention(3.0, query_key=FORM)
    size = lambda x: jnp.sum(jnp.sin(attention.average(x, None)))
    looped = lambda x: jax.lax.scan(
        lambda y, _: (jax.checkpoint(lambda y: attention.average(y, None))(y), None), x, None, 2
    )[0]
    for fn in (size, lambda x: jnp.sum(jnp.sin(looped(x)))):
        slope = jax.grad(fn)
        assert_derivatives(lambda x, g=slope: g(x), X)


@pytest.mark.exhaustive_cases("SinkhornAttention")
@pytest.mark.parametrize("kind", (cjx.SigmoidAttention, cjx.SinkhornAttention))
def test_mapping_and_tracing(kind):
    """vmap over tokens and betas equals a loop; one trace serves all betas; the dtype is that of the tokens."""
    body = CountTraces(lambda attention, x: attention.average(x, VALUES))
    compiled = eqx.filter_jit(body)
    betas, x = np.array([0.5, 2.0, 9.0]), np.asarray(X)
    for beta in betas:
        compiled(kind(beta, query_key=FORM), X)
    assert body.traces == 1
    assert_maps(lambda beta: kind(beta, query_key=FORM).average(X, VALUES), betas, kind="identity")
    assert_maps(lambda x: kind(2.0).average(x, None), np.stack([x, x[::-1], 2 * x]), kind="identity")
    single = outcome(kind(2.0), *(np.asarray(a, np.float32) for a in (X, VALUES)))[1]
    assert single.dtype == jnp.float32
    assert_close(single, outcome(kind(2.0))[1], "composed")


@pytest.mark.parametrize("kind", (cjx.SigmoidAttention, cjx.SinkhornAttention))
def test_parameters_may_depend_on_time(kind):
    beta = cjx.Interpolated([0.0, 2.0], [1.0, 3.0])
    then = outcome(kind(beta, query_key=FORM), t=jnp.asarray(0.5))
    for one, two in zip(then, outcome(kind(1.5, query_key=FORM)), strict=True):
        assert_close(one, two)
    if kind is cjx.SigmoidAttention:
        then = outcome(kind(1.0, beta), t=jnp.asarray(0.5))
        assert_close(then[0], outcome(kind(1.0, 1.5))[0])


def test_sigmoids_sum_in_blocks(monkeypatch):
    attention = cjx.SigmoidAttention(BETA, query_key=FORM, mask=cjx.WindowMask(4))
    size = lambda x: jnp.sum(jnp.sin(attention.average(x, None, masses=MASSES)))
    energy = lambda x: cjx.SigmoidAttention(BETA, query_key=FORM).energy(x)
    whole = size(X), jax.grad(size)(X), energy(X)
    monkeypatch.setattr("clusterjax._model.further_attention._PAIRS", 4 * N)
    for one, two in zip((size(X), jax.grad(size)(X), energy(X)), whole, strict=True):
        assert_close(one, two)


def test_no_theorem_of_softmax_is_applied():
    """`limit_shape` certifies one point from an open hemisphere for softmax attention only."""
    x = 0.2 * sphere_tokens(7, 6, 3) + jnp.array([[1.0, 0, 0]])
    assert cjx.limit_shape(x, cjx.AttentionField(cjx.SoftmaxAttention(2.0)), t=0.0).applies
    for kind in (cjx.SigmoidAttention, cjx.SinkhornAttention, cjx.DistanceAttention, cjx.CosineAttention):
        assert not cjx.limit_shape(x, cjx.AttentionField(kind(2.0)), t=0.0).applies


# --- what is refused


@pytest.mark.parametrize("mask", (cjx.CausalMask(), cjx.SinkMask(2, 1), cjx.WindowMask(2, causal=True)), ids=name_of)
def test_sinkhorn_refuses_masks_without_a_doubly_stochastic_matrix(mask):
    with as_a_user(), pytest.raises(ValueError, match="^mask must allow j to attend to i wherever"):
        cjx.SinkhornAttention(1.0, mask=mask)
    lopsided = cjx.MatrixMask(np.tri(4, dtype=bool))
    with as_a_user(), pytest.raises(ValueError, match="^mask must allow j to attend"):
        cjx.SinkhornAttention(1.0, mask=lopsided)
    late = cjx.FunctionMask(lambda i, j: (j <= i) | (i < 3))
    with as_a_user(), pytest.raises(ValueError, match="^mask must allow j to attend"):
        jax.jit(lambda x: cjx.SinkhornAttention(1.0, mask=late).weights(x))(X)


@pytest.mark.parametrize(
    ("make", "says"),
    (
        (lambda: cjx.SigmoidAttention(1.0, jnp.ones(2)), "^offset must be a number"),
        (lambda: cjx.SigmoidAttention(None), "^beta must be a number"),
        (lambda: cjx.SinkhornAttention(1.0, query_key=np.ones((2, 3))), "^query_key must be a square"),
        (lambda: cjx.DistanceAttention(1.0, summation=cjx.Harmonic()), "^summation must serve tokens of any dimension"),
        (lambda: cjx.SigmoidAttention(1.0, mask=cjx.CausalMask()).energy(X), r"^mask must be FullMask\(\)"),
        (lambda: cjx.MeanField(cjx.SigmoidAttention(1.0), d=2, degree=8), "^attention must be Softmax.*Sigmoid"),
        (lambda: cjx.phase.branch(cjx.SinkhornAttention(1.0), 2), "^attention must be Softmax.*Sinkhorn"),
        (
            lambda: cjx.coarsen(cjx.AttentionField(cjx.DistanceAttention(1.0)), X, 1.0, tolerance=0.1),
            "^field.attention must be Softmax.*Distance",
        ),
    ),
)  # fmt: skip
def test_what_does_not_fit_is_refused(make, says):
    with as_a_user(), pytest.raises(ValueError, match=says):
        make()
