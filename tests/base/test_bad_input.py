"""Arguments that do not fit together raise one sentence with the argument, its value and the remedy.

`tests/doors/test_doors.py` tries bad values of each argument alone; this file tests the remedies, and arguments that
contradict each other.
"""

import re
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special

import clusterjax as cjx
from tests.attention_cases import FORM, MASSES, D, N, X
from tests.helpers import as_a_user, normal


TS = jnp.asarray(np.array([0.0, 1.0]), float)
SOFTMAX = cjx.SoftmaxAttention(1.0)
FIELD = cjx.AttentionField(SOFTMAX)
simulate: Any = cjx.simulate
num_clusters: Any = cjx.num_clusters
STACK = normal(1, 2, D, D)
run: Any = lambda x0=X, ts=TS, **options: simulate(FIELD, x0, jnp.asarray(ts), **options)
layers = lambda x0: cjx.iterate(cjx.ResidualLayer(FIELD), x0, 2)
with_masses = lambda masses: cjx.AttentionField(SOFTMAX, masses=masses)
perceptron = lambda w_in, w_out, **options: cjx.PerceptronField(jnp.ones(w_in), jnp.ones(w_out), **options)
AXES = r"map over further axes with jax.vmap"
HEADS, STACKED = "beta, query_key and value", "stack each along its first axis"
TURNED = "transpose what is the other way round"
MASK = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.MatrixMask(np.eye(4, dtype=bool))))
HULLS = cjx.MultiHeadField(1.0, None, np.eye(2)[None], summation=cjx.Hull())
REFUSED = (
    *((lambda call=call: call(X[0]), "x0", AXES) for call in (run, layers)),
    *((lambda call=call: call(X.at[4].set(0)), "x0", "give it a direction") for call in (run, layers)),
    (lambda: run(jnp.zeros((0, D))), "x0", r"pass an array of shape \(n, d\)"),
    (lambda: cjx.UnnormalisedAttention(jnp.ones(2)), "beta", "map over several inverse temperatures with equinox"),
    (lambda: cjx.SoftmaxAttention(cjx.Interpolated([0.0, 1.0], jnp.ones((2, 3)))), "beta", "with equinox.filter_vmap"),
    (lambda: cjx.UnnormalisedAttention(1.0, offset=jnp.ones(2)), "offset", "map over several numbers"),
    (lambda: cjx.HardmaxAttention(tie_tolerance=-1e-6), "tie_tolerance", "pass a small number, or None"),
    (lambda: cjx.HardmaxAttention(tie_tolerance=cjx.Interpolated([0.0], [1e-6])), "tie_tolerance", "pass a number"),
    (lambda: cjx.SoftmaxAttention(1.0, query_key=jnp.ones((2, 3))), "query_key", r"pass one of shape \(d, d\)"),
    (lambda: cjx.RescaledField(SOFTMAX, cjx.PiecewiseConstant([0.0], FORM[None])), "value", "use AttentionField with"),
    (lambda: cjx.query_key_form(jnp.ones((2, 3)), jnp.ones((3, 3))), "query and key", "give both as many rows"),
    *((lambda m=m: with_masses(m), "masses", "mend them") for m in (-np.ones(N), np.zeros(N), np.full(N, np.inf))),
    (lambda: with_masses(np.ones((1, N))), "masses", "reshape it"),
    (lambda: cjx.MultiHeadField(1.0, STACK, normal(1, 4, D, D)), HEADS, STACKED),
    (lambda: cjx.MultiHeadField(jnp.ones(3), STACK, STACK), HEADS, STACKED),
    (lambda: cjx.MultiHeadField(jnp.ones((2, 1)), STACK, STACK), HEADS, STACKED),
    (lambda: cjx.MultiHeadField(1.0, FORM, FORM), "query_key", r"pass \(h, d, d\)"),
    (lambda: perceptron((5, 3), (5, 3)), "w_in, w_out, bias_in and bias_out", TURNED),
    (lambda: perceptron((5, 3), (3, 5), bias_in=jnp.ones(3)), "w_in, w_out, bias_in and bias_out", TURNED),
    (lambda: perceptron((5, 3), (3, 5), bias_out=jnp.ones(5)), "w_in, w_out, bias_in and bias_out", TURNED),
    (lambda: perceptron((5, 2), (2, 5))(0.0, X), "w_in", r"pass \(m, 3\)"),
    *((lambda ts=ts: run(ts=ts), "ts", "pass the start and the end") for ts in ([0.0], 1.0, [[0.0, 1.0]])),
    *((lambda ts=ts: run(ts=ts), "ts", "sort it, or run backwards") for ts in ([0.0, 1.0, 1.0], [0.0, np.inf])),
    (lambda: run(X.astype(jnp.float32), [0.0, 1.0, 1.0 + 1e-9]), "ts", "sort it"),
    (lambda: run(stepsize_controller=dfx.ConstantStepSize()), "dt0", "pass the length of a step"),
    (lambda: run(dt0=-0.1), "dt0", "pass the length of a step"),
    (lambda: run(noise=0.1, dt0=0.1), "key", r"pass jax\.random\.key\(0\)"),
    (lambda: run(noise=0.1, key=jr.key(0)), "dt0", "pass the length of a step"),
    (lambda: run(noise=-0.1, key=jr.key(0), dt0=0.1), "noise", "None is no noise"),
    (lambda: run(dense=True, adjoint=dfx.BacksolveAdjoint()), "dense", "leave it out"),
    (lambda: simulate(lambda t, x, args: x, X, TS), "field", "FunctionField"),
    (lambda: simulate(SOFTMAX, X, TS), "field", r"wrap it, AttentionField\(attention\)"),
    (lambda: cjx.clustered_event(0.0), "radius", "pass a number above zero"),
    *((lambda call=call: call(X), "mask", r"pass a MatrixMask of shape \(n, n\)")
      for call in (lambda x: MASK(0.0, x), lambda x: cjx.simulate(MASK, x, TS))),
    (lambda: simulate(HULLS, X[:, :2], TS), "summation", r"pass Auto\(\), Dense\(\)"),
    (lambda: cjx.ResidualLayer(FIELD, jnp.ones(2)), "step", "map over several numbers with equinox"),
    (lambda: cjx.FunctionField(lambda t, x, args: x[:1])(0.0, X), r"fn\(t, x, args\)", "return the velocity of each"),
    (lambda: cjx.Interpolated([0.0, 1.0], [1.0, 2.0, 3.0]), "values", "pass as many of both"),
    (lambda: run(args={"words": np.array(["a"])}), "args", "pass numbers, or a list"),
)  # fmt: skip


@pytest.mark.parametrize(("call", "name", "remedy"), REFUSED)
def test_what_does_not_fit_is_refused(call, name, remedy):
    with as_a_user(), pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert re.match(rf"^{name} must .*; .*{remedy}.*\.$", message, re.DOTALL), message
    assert len(re.findall(r"[.!?] +[A-Z]", message)) == 0, message


@pytest.mark.parametrize("wrap", (eqx.filter_jit, eqx.filter_vmap), ids=("jit", "vmap"))
@pytest.mark.parametrize("call", (run, layers, SOFTMAX.weights, lambda x: FIELD(0.0, x)))
def test_shapes_tell_while_compiling(wrap, call):
    wrong = X[0] if wrap is eqx.filter_jit else X
    with as_a_user(), pytest.raises(ValueError, match=r"^x0? must have two dimensions, .*jax\.vmap\."):
        wrap(call)(wrong)


BUILDERS = {
    "value": lambda matrix: cjx.AttentionField(SOFTMAX, matrix),
    "value, rescaled": lambda matrix: cjx.RescaledField(SOFTMAX, matrix),
    "query_key": lambda matrix: cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=matrix)),
    "query_key, hardmax": lambda matrix: cjx.AttentionField(cjx.HardmaxAttention(query_key=matrix)),
}


@pytest.mark.parametrize("wrap", (lambda fn: fn, eqx.filter_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("builder", BUILDERS)
def test_matrices_and_masses_of_other_sizes(builder, wrap):
    matrix = rf"^{builder.split(',')[0]} must act on tokens of dimension 3, but its shape is \(4, 4\); pass a matrix"
    masses = "^masses must hold one mass for each of the 9 tokens, but it holds 8; pass a"
    for field, message in ((BUILDERS[builder](jnp.eye(D + 1)), matrix), (with_masses(MASSES[:-1]), masses)):
        for use in (field, lambda t, x, field=field: cjx.simulate(field, x, TS).x1):
            with pytest.raises(ValueError, match=message):
                wrap(use)(0.0, X)


@pytest.mark.parametrize("beta", (0.0, -2.0, -3, 1e4, np.float32(2.0), jnp.asarray(-1)))
def test_zero_and_negative_betas_are_legitimate(beta):
    for kind in (cjx.SoftmaxAttention, cjx.UnnormalisedAttention):
        assert float(kind(beta).beta) == float(beta)
        assert jnp.issubdtype(kind(beta).beta.dtype, jnp.floating)


def test_complex_numbers_are_told_to_be_pairs_and_pairs_are_complex_numbers():
    """In a field of C^d, B acts as the Hermitian product and V as multiplication."""
    words = "each coordinate a + ib of tokens as the pair a, b, and each entry a + ib of matrices as [[a, -b], [b, a]]"
    for call in (*BUILDERS.values(), run, lambda m: cjx.MultiHeadField(1.0, m[None].real, m[None])):
        with as_a_user(), pytest.raises(ValueError, match=re.escape(words)):
            call(FORM.astype(complex))
    drawn = ((5, 2), (2, 2), (2, 2))
    x, value, form = (np.asarray(normal(k, *s)) + 1j * np.asarray(normal(k + 9, *s)) for k, s in enumerate(drawn))
    coordinates = lambda x: np.stack([x.real, x.imag], axis=-1).reshape(len(x), -1)
    blocks = lambda m: np.kron(m.real, np.eye(2)) + np.kron(m.imag, [[0.0, -1.0], [1.0, 0.0]])
    attention = cjx.SoftmaxAttention(1.0, query_key=blocks(form))
    field = cjx.AttentionField(attention, blocks(value), cjx.Euclidean())
    weights = scipy.special.softmax((x.conj() @ form @ x.T).real, axis=1)
    expected = coordinates(weights @ (x @ value.T))
    np.testing.assert_allclose(eqx.filter_jit(field)(0.0, coordinates(x)), expected, rtol=0, atol=1e-12)


def test_a_zero_vector_is_welcome_in_space():
    field = cjx.AttentionField(SOFTMAX, space=cjx.Euclidean())
    assert np.all(np.isfinite(cjx.iterate(cjx.ResidualLayer(field), X.at[4].set(0), 1).xs))


def test_integers_that_jax_cannot_hold_are_floats():
    assert cjx.interaction_energy(X, 10**30) == cjx.interaction_energy(X, 1e30)
    assert jax.eval_shape(lambda: cjx.ResidualLayer(FIELD)(10**30, X)).shape == X.shape
    with as_a_user():
        assert int(num_clusters(X.tolist(), 1e-6)) == N
