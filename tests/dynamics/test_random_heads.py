"""Random heads and their limit: one layer, the mean cosine of two tokens without samples, and by samples."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._base.random import draw_normal
from clusterjax._dynamics.noise import _CommonDiffusion
from tests.helpers import DTYPES, as_a_user, assert_close, assert_same, name_of, normal, sphere_tokens
from tests.reference import attention as attention_reference, random_heads as reference


BETA, MEAN, SIZE, COSINE = 1.0, 1.0, 0.5, 0.2
X = np.array([[1.0, 0.0], [COSINE, np.sqrt(1 - COSINE**2)]])


def parts(beta=BETA, mean=MEAN, size=SIZE, d=2):
    attention = cjx.SoftmaxAttention(beta)
    return cjx.AttentionField(attention, mean * np.eye(d)), cjx.CommonNoise(attention, size)


def heads(step, key=jr.key(0), **options):
    field, noise = parts(**options)
    return cjx.RandomHeads(field, step, noise=noise, key=key)


def test_a_layer_is_that_of_a_loop():
    """A layer has the matrix that its key draws, the same for both tokens, and the next layer has another matrix."""
    layer = heads(0.1)
    for k in (0, 3):
        matrix = np.asarray(draw_normal(jr.fold_in(jr.key(0), k), (2, 2), jnp.float64))
        assert_close(layer(k, jnp.asarray(X)), reference.layer(X, 0.1, BETA, MEAN, SIZE, matrix))
    assert not np.allclose(layer(0, jnp.asarray(X)), layer(1, jnp.asarray(X)))


@pytest.mark.parametrize(("beta", "mean", "size"), ((1.0, 1.0, 0.5), (4.0, 0.0, 0.7)))
def test_the_mean_cosine_converges_at_first_order(beta, mean, size):
    """Without samples the chain converges to the limit at t = 1, for steps of .1, .05 and .025."""
    exact = reference.limit(COSINE, 1.0, beta, mean, size)
    errors = [reference.chain(COSINE, round(1 / step), step, beta, mean, size) - exact for step in (0.1, 0.05, 0.025)]
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(np.abs(slopes - 1) < 0.05) and abs(errors[0]) > 5e-4


COUNT = 4000


def test_samples_of_layers_have_the_mean_of_the_chain():
    """The means agree to four standard errors."""
    run = lambda key: cjx.iterate(heads(0.2, key, beta=4.0, size=0.9, mean=0.0), jnp.asarray(X), 5).x1
    ends = np.asarray(eqx.filter_jit(jax.vmap(run))(jr.split(jr.key(1), COUNT)))
    cosines = np.sum(ends[:, 0] * ends[:, 1], axis=1)
    error = cosines.std() / np.sqrt(COUNT)
    assert abs(cosines.mean() - reference.chain(COSINE, 5, 0.2, 4.0, 0.0, 0.9)) < 4 * error


def test_each_layer_draws_a_form_of_the_ensemble():
    """Every layer has one of the two forms, and both forms occur; with a stack of one form all layers have it."""
    field, noise = parts()
    build = lambda forms: cjx.RandomHeads(
        field, 0.1, noise=cjx.CommonNoise(noise.attention, SIZE, query_keys=forms), key=jr.key(0)
    )
    layer, drawn = eqx.filter_jit(build([np.eye(2), 3.0 * np.eye(2)])), []
    for k in range(12):
        matrix = np.asarray(draw_normal(jr.fold_in(jr.key(0), k), (2, 2), jnp.float64))
        found = np.asarray(layer(k, jnp.asarray(X)))
        both = [reference.layer(X, 0.1, BETA, MEAN, SIZE, matrix, noise_beta=b) for b in (BETA, 3 * BETA)]
        off = [np.abs(found - each).max() for each in both]
        assert min(off) < 1e-14 < max(off)
        drawn.append(int(np.argmin(off)))
    assert set(drawn) == {0, 1}
    assert_close(build([np.eye(2)])(5, jnp.asarray(X)), heads(0.1)(5, jnp.asarray(X)))


def test_the_noise_of_an_ensemble_is_that_of_a_loop():
    """The mean over m forms has the weight 1/√m; the cloud has equal tokens, antipodes and a token without mass."""
    x, masses = np.asarray(sphere_tokens(9, 5, 3)), np.array([1.0, 2.0, 0.0, 1.0, 0.5])
    x = np.concatenate([x[:3], x[:1], -x[:1]])
    forms, steps = (np.asarray(normal(seed, 4, 3, 3)) for seed in (10, 11))
    attention = cjx.SoftmaxAttention(2.0, mask=cjx.CausalMask())
    noise = cjx.CommonNoise(attention, 0.7, query_keys=forms)
    operator = _CommonDiffusion(cjx.AttentionField(attention, masses=masses), noise)(0.0, jnp.asarray(x), None)
    wanted = np.zeros_like(x)
    for form, step in zip(forms, steps, strict=True):
        weights = attention_reference.softmax_weights(x, 2.0, form, attention_reference.causal, masses)
        for i in range(5):
            push = 0.7 / 2 * step @ sum(weights[i, j] * x[j] for j in range(5))
            wanted[i] += push - (push @ x[i]) * x[i]
    assert_close(operator.mv(jnp.asarray(steps)), wanted)


ENSEMBLE = (0.5, 6.0)  # values of beta


def test_an_ensemble_of_forms_converges_at_first_order():
    exact = reference.limit(COSINE, 1.0, BETA, MEAN, SIZE, noise_betas=ENSEMBLE)
    errors = [reference.chain(COSINE, n, 1 / n, BETA, MEAN, SIZE, ENSEMBLE) - exact for n in (10, 20, 40)]
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(np.abs(slopes - 1) < 0.05) and abs(errors[0]) > 2e-4


@pytest.mark.exhaustive
def test_samples_of_an_ensemble_have_the_means_of_chain_and_limit():
    """The means agree to four standard errors."""
    forms = [b * np.eye(2) for b in ENSEMBLE]
    field, _ = parts(mean=0.0)
    noise = cjx.CommonNoise(cjx.SoftmaxAttention(1.0), 0.9, query_keys=forms)

    def both(key):
        chain = cjx.iterate(cjx.RandomHeads(field, 0.2, noise=noise, key=key), jnp.asarray(X), 5).x1
        run = cjx.simulate(field, jnp.asarray(X), jnp.asarray([0.0, 1.0]), noise=noise, key=key, dt0=1 / 16).x1
        return chain[0] @ chain[1], run[0] @ run[1]

    chain, run = map(np.asarray, eqx.filter_jit(jax.vmap(both))(jr.split(jr.key(5), COUNT)))
    wanted = reference.chain(COSINE, 5, 0.2, BETA, 0.0, 0.9, ENSEMBLE)
    assert abs(chain.mean() - wanted) < 4 * chain.std() / np.sqrt(COUNT)
    wanted = reference.limit(COSINE, 1.0, BETA, 0.0, 0.9, noise_betas=ENSEMBLE)
    assert abs(run.mean() - wanted) < 4 * run.std() / np.sqrt(COUNT) + 3e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("d", (2, 3))
def test_samples_of_the_equation_have_the_mean_of_the_limit(d):
    """The means of `simulate` agree up to four standard errors and the error of its steps, in d = 3 as well."""
    field, noise = parts(beta=2.0, size=0.8, mean=0.0, d=d)
    x0 = jnp.pad(jnp.asarray(X), ((0, 0), (0, d - 2)))
    ts = jnp.asarray([0.0, 1.0])
    run = lambda key: cjx.simulate(field, x0, ts, noise=noise, key=key, dt0=1 / 16).x1
    ends = np.asarray(eqx.filter_jit(jax.vmap(run))(jr.split(jr.key(2), COUNT)))
    cosines = np.sum(ends[:, 0] * ends[:, 1], axis=1)
    exact = reference.limit(COSINE, 1.0, 2.0, 0.0, 0.8, d)
    assert abs(cosines.mean() - exact) < 4 * cosines.std() / np.sqrt(COUNT) + 3e-3
    # Independent noise of equal size for each token has another mean.
    assert abs(exact - COSINE * np.exp(-(0.8**2) * (d - 1))) > 0.05


@pytest.mark.exhaustive
def test_one_token_moves_by_brownian_motion():
    """E<X_t, X_0> = e^{-s^2 (d - 1) t / 2} for one token, which attends to itself."""
    field, noise = parts(size=0.8, mean=0.0, d=3)
    x0, ts = jnp.asarray([[0.0, 0.6, 0.8]]), jnp.asarray([0.0, 1.0])
    run = lambda key: cjx.simulate(field, x0, ts, noise=noise, key=key, dt0=1 / 16).x1
    cosines = np.asarray(eqx.filter_jit(jax.vmap(run))(jr.split(jr.key(3), COUNT)))[:, 0] @ np.asarray(x0)[0]
    assert abs(cosines.mean() - np.exp(-(0.8**2))) < 4 * cosines.std() / np.sqrt(COUNT) + 3e-3


@pytest.mark.exhaustive_cases("float32")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_noise_is_common(dtype):
    """Equal tokens remain equal to rounding, by layers and by the equation."""
    x0 = jnp.asarray(sphere_tokens(3, 4, 3), dtype)
    x0 = jnp.concatenate([x0, x0[:2], -x0[:1]])
    field, noise = parts(d=3)
    even = cjx.AttentionField(cjx.SoftmaxAttention(0.0), np.zeros((3, 3)))
    ends = (
        cjx.iterate(cjx.RandomHeads(field, 0.1, noise=noise, key=jr.key(4)), x0, 20).x1,
        cjx.simulate(field, x0, jnp.asarray([0.0, 1.0]), noise=noise, key=jr.key(4), dt0=0.1).x1,
        cjx.simulate(even, x0, jnp.asarray([0.0, 1.0]), noise=noise, key=jr.key(4), dt0=0.1).x1,
    )
    for end in ends:
        assert end.dtype == dtype
        assert_close(end[4:6], end[:2], "identity")
        assert not np.allclose(end[:2], x0[:2], atol=0.05)


def test_random_numbers_do_not_depend_on_the_depth_and_masses_count():
    layer = heads(0.1, d=3)
    x0 = jnp.asarray(sphere_tokens(5, 6, 3))
    assert_same(cjx.iterate(layer, x0, 8).xs[4], cjx.iterate(layer, x0, 4).x1)
    masses = jnp.asarray([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    attention = cjx.SoftmaxAttention(BETA)
    build = lambda masses: cjx.RandomHeads(
        cjx.AttentionField(attention, masses=masses), 0.1, noise=cjx.CommonNoise(attention, 0.5), key=jr.key(0)
    )
    assert_close(cjx.iterate(build(masses), x0, 5).x1[:5], cjx.iterate(build(None), x0[:5], 5).x1)


def test_schedules_and_gradients():
    attention, x0 = cjx.SoftmaxAttention(BETA), jnp.asarray(sphere_tokens(6, 4, 3))
    jump = cjx.PiecewiseConstant([0.0, 0.45], [0.0, 0.5])
    field = cjx.AttentionField(attention, np.zeros((3, 3)))
    layer = cjx.RandomHeads(field, 0.1, noise=cjx.CommonNoise(attention, jump), key=jr.key(7))
    xs = cjx.iterate(layer, x0, 8).xs
    assert_close(xs[4], x0)
    assert not np.allclose(xs[6], x0, atol=0.01)

    def size(s):
        noise = cjx.CommonNoise(attention, s)
        return jnp.sum(normal(8, 4, 3) * cjx.iterate(cjx.RandomHeads(field, 0.1, noise=noise, key=jr.key(7)), x0, 5).x1)

    slope, h = jax.jit(jax.grad(size))(0.5), 1e-5
    assert float(slope) == pytest.approx((float(size(0.5 + h)) - float(size(0.5 - h))) / (2 * h), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "says"),
    (
        (lambda f, n: cjx.CommonNoise(2.0, 1.0), "^attention must be an attention"),
        (lambda f, n: cjx.CommonNoise(f.attention, "much"), "^size must be"),
        (lambda f, n: cjx.CommonNoise(f.attention, 1.0, query_keys=np.eye(2)), "^query_keys must be an array"),
        (lambda f, n: cjx.CommonNoise(f.attention, 1.0, query_keys=np.ones((4, 2, 3))), "^query_keys must be a stack"),
        (
            lambda f, n: cjx.simulate(
                f, X, jnp.arange(2.0), noise=cjx.CommonNoise(f.attention, 1.0, query_keys=np.ones((4, 3, 3))),
                key=jr.key(0), dt0=0.1,
            ),
            "^query_keys must be matrices for tokens of dimension 2",
        ),
        (lambda f, n: cjx.RandomHeads(f, -0.1, noise=n, key=jr.key(0)), "^step must be"),
        (lambda f, n: cjx.RandomHeads(f, 0.1, noise=0.5, key=jr.key(0)), "^noise must be a CommonNoise"),
        (lambda f, n: cjx.RandomHeads(f, 0.1, noise=n, key=None), "^key must"),
        (lambda f, n: cjx.simulate(f, X, jnp.arange(2.0), noise=n, dt0=0.1), "^key must be given"),
        (lambda f, n: cjx.simulate(f, X, jnp.arange(2.0), noise=n, key=jr.key(0)), "^dt0 must be given"),
        (
            lambda f, n: cjx.simulate(
                f, X, jnp.arange(2.0), noise=n, key=jr.key(0), dt0=0.1, solver=cjx.Retract(dfx.Heun())
            ),
            "^solver must be Retract.*Ito",
        ),
    ),
)  # fmt: skip
def test_what_does_not_fit_is_refused(make, says):
    with as_a_user(), pytest.raises(ValueError, match=says):
        make(*parts())
