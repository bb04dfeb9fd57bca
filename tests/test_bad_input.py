"""Bad input is met at the door: a ValueError of one sentence that names the argument, what it was, and what to do."""

import re

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import FORM, MASSES, D, N, X
from tests.helpers import as_a_user, normal


TS = jnp.asarray([0.0, 1.0])
SOFTMAX = cjx.SoftmaxAttention(1.0)
FIELD = cjx.AttentionField(SOFTMAX)


def refuses(call, name, remedy):
    """`call` raises a ValueError: '`name` must ..., but ...; `remedy`.'"""
    with as_a_user(), pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert re.match(rf"^{name} must .*; .*{remedy}.*\.$", message, re.DOTALL), message
    assert len(re.findall(r"[.!?] +[A-Z]", message)) == 0, message


# --- tokens


TOKENS = (
    (X[0], "two dimensions", "map over further axes with jax.vmap"),
    (X[None], "two dimensions", "map over further axes with jax.vmap"),
    (jnp.zeros((0, D)), "at least 1 token", r"pass an array of shape \(n, d\)"),
    (jnp.zeros((N, 0)), "at least one dimension", r"pass an array of shape \(n, d\)"),
    (X.at[2, 1].set(jnp.nan), "finite, but row 2 is", "remove or mend that token"),
    (X.at[3, 0].set(-jnp.inf), "finite, but row 3 is", "remove or mend that token"),
    (X.astype(complex), "real, but its dtype is complex128", "pass its real part"),
)
tokens = pytest.mark.parametrize(
    ("x0", "what", "remedy"),
    TOKENS,
    ids=("rank 1", "rank 3", "no token", "no dimension", "NaN", "infinity", "complex"),
)


@tokens
def test_simulate_refuses(x0, what, remedy):
    refuses(lambda: cjx.simulate(FIELD, x0, TS), "x0", remedy)
    with as_a_user(), pytest.raises(ValueError, match=what):
        cjx.simulate(FIELD, x0, TS)


@tokens
def test_iterate_refuses(x0, what, remedy):
    refuses(lambda: cjx.iterate(cjx.ResidualLayer(FIELD), x0, 2), "x0", remedy)


DOORS = {
    "simulate": lambda x0: cjx.simulate(FIELD, x0, TS),
    "iterate": lambda x0: cjx.iterate(cjx.ResidualLayer(FIELD), x0, 2),
}


@pytest.mark.parametrize("door", ("simulate", pytest.param("iterate")))
def test_a_zero_vector_has_no_place_on_the_sphere(door):
    refuses(lambda: DOORS[door](X.at[4].set(0)), "x0", "give it a direction")


def test_a_zero_vector_is_welcome_in_space():
    field = cjx.AttentionField(SOFTMAX, space=cjx.Euclidean())
    assert np.all(np.isfinite(cjx.iterate(cjx.ResidualLayer(field), X.at[4].set(0), 2).xs))


@pytest.mark.exhaustive_cases("asarray-an array of NumPy-simulate")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("build", "reads"),
    (
        (np.asarray, "an array of NumPy"),
        (lambda x: np.round(np.asarray(x)).astype(int) + np.eye(N, D, dtype=int) * 3 + 1, "whole numbers"),
        pytest.param(lambda x: np.asarray(x).tolist(), "lists"),
    ),
)
def test_what_is_not_an_array_of_jax_is_made_one(door, build, reads):
    with as_a_user():
        assert DOORS[door](build(X)).xs.dtype == jnp.float64, reads


# Called directly, as by a solver: the rank, the sizes and the kind of numbers tell, also while compiling.
CALLS = {
    "softmax": SOFTMAX.weights,
    "unnormalised": cjx.UnnormalisedAttention(1.0).weights,
    "hardmax": cjx.HardmaxAttention().weights,
    "average": lambda x: SOFTMAX.average(x, x),
    "log_partition": SOFTMAX.log_partition,
    "field": lambda x: FIELD(0.0, x),
    "heads": lambda x: cjx.MultiHeadField(1.0, FORM[None], FORM[None])(0.0, x),
    "perceptron": lambda x: cjx.PerceptronField(FORM, FORM)(0.0, x),
    "rescaled": lambda x: cjx.RescaledField(SOFTMAX)(0.0, x),
    "sum": lambda x: (FIELD + FIELD)(0.0, x),
    "multiple": lambda x: (-FIELD)(0.0, x),
    "layer": lambda x: cjx.ResidualLayer(FIELD)(0, x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("x", (X[0], X[None]), ids=("rank 1", "rank 3"))
def test_tokens_of_another_rank(call, x):
    refuses(lambda: CALLS[call](x), "x", "map over further axes with jax.vmap")


@pytest.mark.parametrize("call", [call for call in CALLS if call != "perceptron"])
def test_no_token_at_all(call):
    refuses(lambda: CALLS[call](jnp.zeros((0, D))), "x", r"pass an array of shape \(n, d\)")


@pytest.mark.parametrize("call", ("softmax", "field"))
def test_whole_numbers_are_refused_or_understood(call):
    """With the promotion of dtypes that users have."""
    attention = cjx.SoftmaxAttention(0.5)
    use = {"softmax": attention.weights, "field": lambda x: cjx.AttentionField(attention, 0.5 * jnp.eye(2))(0.0, x)}
    x = jnp.asarray([[1, 0], [1, 1]])
    with as_a_user(), jax.numpy_dtype_promotion("standard"):
        try:
            found = use[call](x)
        except ValueError:
            return
        np.testing.assert_allclose(found, use[call](x.astype(float)), rtol=1e-12)


@pytest.mark.parametrize("wrap", (eqx.filter_jit, eqx.filter_vmap), ids=("jit", "vmap"))
@pytest.mark.parametrize("call", ("simulate", "iterate", "softmax", "field", "rescaled"))
def test_shapes_tell_while_compiling(wrap, call):
    use = DOORS.get(call, CALLS.get(call))
    wrong = X[0] if wrap is eqx.filter_jit else X
    with as_a_user(), pytest.raises(ValueError, match=r"^x0? must have two dimensions, .*jax\.vmap\."):
        wrap(use)(wrong)


# --- inverse temperature, matrices, masses


@pytest.mark.parametrize(
    ("beta", "remedy"),
    (
        *((beta, "pass a finite real inverse temperature") for beta in (np.nan, np.inf, -np.inf, 1 + 0j)),
        (jnp.asarray([1.0, 2.0]), "map over several inverse temperatures with equinox.filter_vmap"),
        (cjx.Interpolated([0.0, 1.0], jnp.ones((2, 3))), "with equinox.filter_vmap"),
    ),
)
@pytest.mark.parametrize("kind", (cjx.SoftmaxAttention, cjx.UnnormalisedAttention), ids=("softmax", "unnormalised"))
def test_a_beta_that_is_none(kind, beta, remedy):
    refuses(lambda: kind(beta), "beta", remedy)


@pytest.mark.parametrize("beta", (0.0, -2.0, 0, -3, 1e4, np.float32(2.0), jnp.asarray(-1)))
def test_zero_and_negative_betas_are_legitimate(beta):
    for kind in (cjx.SoftmaxAttention, cjx.UnnormalisedAttention):
        assert float(kind(beta).beta) == float(beta)
        assert jnp.issubdtype(kind(beta).beta.dtype, jnp.floating)


@pytest.mark.parametrize("offset", (np.nan, 1j, jnp.ones(2)), ids=("nan", "complex", "vector"))
def test_an_offset_that_is_none(offset):
    refuses(lambda: cjx.UnnormalisedAttention(1.0, offset=offset), "offset", "(pass a finite real|map over)")


@pytest.mark.parametrize(
    "tie_tolerance",
    (
        np.nan,
        1j,
        pytest.param(-1e-6),
        pytest.param(jnp.ones(2)),
        pytest.param(cjx.Interpolated([0.0], [1e-6])),
    ),
)
def test_a_tolerance_of_ties_that_is_none(tie_tolerance):
    refuses(lambda: cjx.HardmaxAttention(tie_tolerance=tie_tolerance), "tie_tolerance", "(pass a|map over)")


NOT_SQUARE = {
    "(2, 3)": (jnp.ones((2, 3)), "a square matrix"),
    "(3,)": (jnp.ones(3), "a square matrix"),
    "()": (1.0, "a square matrix"),
    "(1, 3, 3)": (jnp.ones((1, 3, 3)), "a square matrix"),
    "NaN": (FORM.at[0, 1].set(jnp.nan), "finite"),
    "complex": (FORM.astype(complex), "real"),
    "schedule": (cjx.PiecewiseConstant([0.0], jnp.ones((1, 2, 3))), "a square matrix"),
}
BUILDERS = {
    "value": lambda matrix: cjx.AttentionField(SOFTMAX, matrix),
    "value, rescaled": lambda matrix: cjx.RescaledField(SOFTMAX, matrix),
    "query_key": lambda matrix: cjx.SoftmaxAttention(1.0, query_key=matrix),
    "query_key, unnormalised": lambda matrix: cjx.UnnormalisedAttention(1.0, query_key=matrix),
    "query_key, hardmax": lambda matrix: cjx.HardmaxAttention(query_key=matrix),
}


@pytest.mark.parametrize("matrix", NOT_SQUARE)
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_matrix_that_is_not_square(builder, matrix):
    value, what = NOT_SQUARE[matrix]
    if (builder, matrix) == ("value, rescaled", "schedule"):
        refuses(lambda: BUILDERS[builder](value), "value", "use AttentionField with space=Euclidean()")
    else:
        refuses(lambda: BUILDERS[builder](value), builder.split(",")[0], r"pass .*\(d, d\)")
        with pytest.raises(ValueError, match=f"must be {what}"):
            BUILDERS[builder](value)


@pytest.mark.parametrize("wrap", (lambda fn: fn, eqx.filter_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_matrix_of_another_dimension(builder, wrap):
    built = BUILDERS[builder](jnp.eye(D + 1))
    field = built if isinstance(built, cjx.AbstractField) else cjx.AttentionField(built)
    message = rf"^{builder.split(',')[0]} must act on tokens of dimension 3, but its shape is \(4, 4\); pass a matrix"
    for use in (
        lambda x: field(0.0, x),
        lambda x: cjx.simulate(field, x, TS).x1,
        lambda x: cjx.iterate(cjx.ResidualLayer(field), x, 2).x1,
    ):
        with pytest.raises(ValueError, match=message):
            wrap(use)(X)


def test_queries_and_keys_of_unlike_shape():
    for query, key in ((jnp.ones((2, 3)), jnp.ones((3, 3))), (jnp.ones((2, 3)), jnp.ones((3, 2))), (1.0, 1.0)):
        refuses(lambda q=query, k=key: cjx.query_key_form(q, k), "query and key", "give both as many rows and columns")
    scheduled = cjx.PiecewiseConstant([0.0], jnp.ones((1, 2, 3)))
    refuses(lambda: cjx.query_key_form(scheduled, jnp.ones((3, 3))), "query and key", "give both as many rows")
    spoilt = FORM.at[0, 0].set(jnp.nan)
    refuses(lambda: cjx.query_key_form(spoilt, FORM), "query", r"pass a real matrix of shape \(k, d\)")
    refuses(lambda: cjx.query_key_form(FORM, FORM.astype(complex)), "key", r"pass a real matrix of shape \(k, d\)")
    with pytest.raises(ValueError, match="^query and key must be matrices of the same shape"):
        jax.jit(cjx.query_key_form)(jnp.ones((2, 3)), jnp.ones((3, 3)))


PAIRS = (
    r"each coordinate a \+ ib of tokens as the pair a, b, and each entry a \+ ib of matrices as \[\[a, -b\], \[b, a\]\]"
)


@pytest.mark.parametrize(
    ("call", "name"),
    (
        *((lambda m, builder=builder: builder(m), name.split(",")[0]) for name, builder in BUILDERS.items()),
        (lambda m: cjx.query_key_form(m, m), "query"),
        (lambda m: cjx.MultiHeadField(1.0, m[None].real, m[None]), "value"),
        (lambda m: cjx.simulate(FIELD, m, TS), "x0"),
    ),
)
def test_complex_numbers_are_told_to_be_pairs(call, name):
    refuses(lambda: call(FORM.astype(complex)), name, PAIRS)


def test_pairs_are_complex_numbers():
    """As the message writes them: B as the Hermitian product, V as multiplication, in a field of C^d."""
    drawn = ((5, 2), (2, 2), (2, 2))
    x, value, form = (np.asarray(normal(k, *s)) + 1j * np.asarray(normal(k + 9, *s)) for k, s in enumerate(drawn))
    coordinates = lambda x: np.stack([x.real, x.imag], axis=-1).reshape(len(x), -1)
    blocks = lambda m: np.kron(m.real, np.eye(2)) + np.kron(m.imag, [[0.0, -1.0], [1.0, 0.0]])
    attention = cjx.SoftmaxAttention(1.0, query_key=blocks(form))
    field = cjx.AttentionField(attention, blocks(value), cjx.Euclidean())
    weights = np.asarray(jax.nn.softmax(jnp.asarray((x.conj() @ form @ x.T).real), axis=1))
    expected = coordinates(weights @ (x @ value.T))
    np.testing.assert_allclose(field(0.0, jnp.asarray(coordinates(x))), expected, rtol=0, atol=1e-12)


WITH_MASSES = {
    "attention": lambda masses: cjx.AttentionField(SOFTMAX, masses=masses),
    "rescaled": lambda masses: cjx.RescaledField(SOFTMAX, masses=masses),
    "heads": lambda masses: cjx.MultiHeadField(1.0, FORM[None], FORM[None], masses=masses),
}


@pytest.mark.parametrize("field", WITH_MASSES)
@pytest.mark.parametrize(
    ("masses", "remedy"),
    (
        (MASSES.at[0].set(-1e-9), "mend them"),
        (MASSES.at[0].set(jnp.nan), "mend them"),
        (MASSES.at[0].set(jnp.inf), "mend them"),
        (jnp.zeros(N), "mend them"),
        (MASSES[None], "reshape it"),
        (1.0, "reshape it"),
        pytest.param(MASSES.astype(complex), "mend them"),
    ),
    ids=("negative", "NaN", "infinity", "all zero", "matrix", "number", "complex"),
)
def test_masses_that_are_none(field, masses, remedy):
    refuses(lambda: WITH_MASSES[field](masses), "masses", remedy)


@pytest.mark.parametrize("field", WITH_MASSES)
@pytest.mark.parametrize("wrap", (lambda fn: fn, jax.jit), ids=("eager", "jit"))
def test_masses_of_another_length(field, wrap):
    short = WITH_MASSES[field](MASSES[:-1])
    with pytest.raises(ValueError, match="^masses must hold one mass for each of the 9 tokens, but it holds 8; pass a"):
        wrap(lambda x: short(0.0, x))(X)
    with pytest.raises(ValueError, match="^masses must hold one mass for each of the 9 tokens, but it holds 8; pass a"):
        wrap(lambda x: cjx.simulate(short, x, TS).x1)(X)


# --- fields of several parts


@pytest.mark.parametrize(
    ("arguments", "name", "remedy"),
    (
        ((1.0, normal(1, 2, D, D), normal(1, 4, D, D)), "beta, query_key and value", "stack each along its first axis"),
        ((jnp.ones(3), normal(1, 2, D, D), normal(1, 2, D, D)), "beta, query_key and value", "stack each along"),
        ((jnp.ones((2, 1)), normal(1, 2, D, D), normal(1, 2, D, D)), "beta, query_key and value", "stack each along"),
        ((jnp.asarray([1.0, jnp.nan]), normal(1, 2, D, D), normal(1, 2, D, D)), "beta", "pass finite real inverse"),
        (
            (1.0, normal(1, 2, D, D).astype(complex), normal(1, 2, D, D)),
            "query_key",
            r"pass a real stack of shape \(h, d, d\)",
        ),
        pytest.param((1.0, FORM, FORM), "query_key", "(pass|stack)"),
        pytest.param((1.0, normal(1, 2, D, D), normal(1, 2, D, 2)), "value", "(pass|stack)"),
    ),
)
def test_heads_that_do_not_fit(arguments, name, remedy):
    refuses(lambda: cjx.MultiHeadField(*arguments), name, remedy)


@pytest.mark.parametrize(
    ("arguments", "options", "name", "remedy"),
    (
        ((jnp.ones((5, 3)), jnp.ones((5, 3))), {}, "w_in", "transpose what is the other way round"),
        ((jnp.ones((5, 3)), jnp.ones((3, 4))), {}, "w_in", "transpose what is the other way round"),
        ((jnp.ones((5, 3)), jnp.ones((3, 5))), {"bias_in": jnp.ones(3)}, "w_in", "transpose what is the other way"),
        ((jnp.ones((5, 3)), jnp.ones((3, 5))), {"bias_out": jnp.ones(5)}, "w_in", "transpose what is the other way"),
        ((jnp.full((5, 3), jnp.nan), jnp.ones((3, 5))), {}, "w_in", "pass real weights"),
        ((jnp.ones((5, 3)), jnp.ones((3, 5), complex)), {}, "w_out", "pass real weights"),
    ),
)
def test_perceptrons_that_do_not_fit(arguments, options, name, remedy):
    with as_a_user(), pytest.raises(ValueError, match=rf"^{name}\b.* must be .*but .*; {remedy}"):
        cjx.PerceptronField(*arguments, **options)


def test_a_perceptron_of_another_dimension():
    refuses(lambda: cjx.PerceptronField(jnp.ones((5, 2)), jnp.ones((2, 5)))(0.0, X), "w_in", r"pass \(m, 3\)")


# --- times, steps, noise, and options that do not fit together


@pytest.mark.parametrize(
    ("ts", "remedy"),
    (
        ([0.0], "pass the start and the end"),
        (1.0, "pass the start and the end"),
        ([[0.0, 1.0]], "pass the start and the end"),
        ([0.0, 2.0, 1.0], "sort it"),
        ([0.0, 1.0, 1.0], "sort it"),
        ([1.0, 0.0], "run backwards with the field -field"),
        ([0.0, np.nan], "sort it"),
        ([0.0, np.inf], "sort it"),
    ),
    ids=str,
)
def test_times_that_are_none(ts, remedy):
    refuses(lambda: cjx.simulate(FIELD, X, jnp.asarray(ts)), "ts", remedy)


def test_times_that_single_precision_cannot_tell_apart():
    ts = jnp.asarray([0.0, 1.0, 1.0 + 1e-9])
    refuses(lambda: cjx.simulate(FIELD, X.astype(jnp.float32), ts), "ts", "sort it")


@pytest.mark.parametrize(
    ("options", "name", "remedy"),
    (
        ({"stepsize_controller": dfx.ConstantStepSize()}, "dt0", "pass the length of a step"),
        ({"noise": 0.1, "dt0": 0.1}, "key", r"pass jax\.random\.key\(0\)"),
        ({"noise": 0.1, "key": jr.key(0)}, "dt0", "pass the length of a step"),
        ({"noise": -0.1, "key": jr.key(0), "dt0": 0.1}, "noise", "None is no noise"),
        ({"noise": np.nan, "key": jr.key(0), "dt0": 0.1}, "noise", "None is no noise"),
        ({"dense": True, "adjoint": dfx.BacksolveAdjoint()}, "dense", "leave it out"),
    ),
)
def test_options_that_do_not_fit_together(options, name, remedy):
    refuses(lambda: cjx.simulate(FIELD, X, TS, **options), name, remedy)


@pytest.mark.parametrize("dt0", (0.0, -0.1, np.nan))
def test_a_step_of_no_length(dt0):
    options = {"solver": dfx.Euler(), "stepsize_controller": dfx.ConstantStepSize(), "max_steps": 16}
    refuses(lambda: cjx.simulate(FIELD, X, TS, dt0=dt0, **options), "dt0", "pass")


def test_what_is_no_field():
    refuses(lambda: cjx.simulate(lambda t, x, args: x, X, TS), "field", "FunctionField")
    refuses(lambda: cjx.simulate(SOFTMAX, X, TS), "field", r"wrap it, AttentionField\(attention\)")


@pytest.mark.parametrize("radius", (0.0, -1.0))
def test_a_radius_that_is_none(radius):
    for call in (cjx.clustered_event, lambda r: cjx.num_clusters(X, r), lambda r: cjx.cluster_labels(X, r)):
        refuses(lambda call=call: call(radius), "radius", "pass a number above zero")


def test_a_mask_of_another_size():
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.MatrixMask(np.eye(4, dtype=bool))))
    for call in (lambda: field(0.0, X), lambda: cjx.simulate(field, X, TS)):
        refuses(call, "mask", r"pass a MatrixMask of shape \(n, n\)")


def test_args_of_text():
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
    for call in (lambda a: cjx.simulate(field, X, TS, a), lambda a: cjx.iterate(cjx.ResidualLayer(field), X, 2, a)):
        refuses(lambda call=call: call({"words": np.array(["a"])}), "args", "pass numbers, or a list")


def test_integers_that_jax_cannot_hold_are_floats():
    rescaled = cjx.RescaledField(cjx.SoftmaxAttention(1.0), -jnp.eye(D))
    np.testing.assert_array_equal(rescaled.rescale(10**30, X), rescaled.rescale(1e30, X))
    assert cjx.interaction_energy(X, 10**30) == cjx.interaction_energy(X, 1e30)
    layer = cjx.ResidualLayer(cjx.AttentionField(cjx.SoftmaxAttention(1.0)))
    np.testing.assert_array_equal(layer(10**30, X), layer(0, X))
    with as_a_user():
        assert int(cjx.num_clusters(X.tolist(), 1e-6)) == N
