"""Saved values have the dtypes that `save` returns, also where an event stops the run."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.helpers import sphere_tokens
from tests.reference.observables import labels


TS = jnp.asarray([0.0, 0.4, 0.8, 8.0, 9.0])
RADIUS = 0.05

# For each dtype, numbers at its ends and in its middle, which a float of its size would round.
KEPT = {
    "int8": (-128, 127, -1),
    "int16": (-(2**15), 2**15 - 1, -2),
    "int32": (-(2**31), 2**31 - 1, -(2**24) - 1),
    "int64": (-(2**63), 2**63 - 1, 2**53 + 1),
    "uint8": (0, 255, 128),
    "uint32": (0, 2**32 - 1, 2**31 + 1),
    "uint64": (0, 2**64 - 1, 2**63 + 3),
    "bool": (True, False, True),
}


def save(t, x, args):
    numbers = {name: jnp.asarray(values, name) for name, values in KEPT.items()}
    return {"x": x, "count": cjx.num_clusters(x, RADIUS), "far": (t > 0.5, None, 3), "kept": numbers}


def run(x0, beta, event):
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta))
    return cjx.simulate(field, x0, TS, save=save, event=event)


@pytest.mark.exhaustive
def test_counts_and_every_other_dtype_with_an_event():
    """In a compiled batch one run starts clustered, and two end on the way."""
    x0 = sphere_tokens(3, 4, 2)
    together = jnp.asarray([[1.0, 0.0], [0.96, 0.28], [0.6, 0.8], [0.8, 0.6]])
    starts = jnp.stack([jnp.ones((4, 2)), together, x0])
    traj = eqx.filter_jit(eqx.filter_vmap(run, in_axes=(0, None, None)))(starts, 1.0, cjx.clustered_event(RADIUS))
    reached = np.asarray(TS)[None, :] <= np.asarray(traj.t1)[:, None]
    assert [row.sum() for row in reached] == [1, 3, 3]
    saved = traj.xs
    assert saved["far"][1] is None
    for b in range(3):
        for k, t in enumerate(TS):
            if reached[b, k]:
                assert saved["count"][b, k] == len(set(labels(saved["x"][b, k], RADIUS)))
                assert (saved["far"][0][b, k], saved["far"][2][b, k]) == (t > 0.5, 3)
                for name, values in KEPT.items():
                    np.testing.assert_array_equal(saved["kept"][name][b, k], np.asarray(values, name))
    assert saved["count"].dtype == jnp.asarray(0).dtype and saved["x"].dtype == x0.dtype
    assert np.isnan(saved["x"][~reached]).all() and not np.isnan(saved["x"][reached]).any()
    assert (saved["count"][~reached] == -1).all() and not saved["far"][0][~reached].any()
    for name in KEPT:
        kept = np.asarray(saved["kept"][name])
        mark = False if name == "bool" else np.iinfo(name).max if name.startswith("u") else -1
        assert kept.dtype == name and (kept[~reached] == mark).all()


@pytest.mark.exhaustive
def test_a_run_that_fails_marks_integers_and_is_differentiable():
    """Six steps are not enough for the run; beside integers the gradient is that of the steps written out."""
    x0 = sphere_tokens(3, 4, 2)
    field = lambda beta: cjx.AttentionField(cjx.SoftmaxAttention(beta))

    def end(beta):
        step = {"stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.2, "solver": dfx.Euler()}
        keep = lambda t, x, args: (x, cjx.num_clusters(x, RADIUS), x[0, 0] > 0)
        traj = cjx.simulate(field(beta), x0, TS, save=keep, max_steps=6, throw=False, **step)
        return jnp.sum(traj.xs[0][2] * x0), traj.xs

    def written_out(beta):
        x = x0
        for _ in range(4):
            x = x + 0.2 * field(beta)(0.0, x)
        return jnp.sum(cjx.Sphere().retract(x) * x0)

    found, (x, count, right) = jax.jit(jax.grad(end, has_aux=True))(1.0)
    np.testing.assert_allclose(found, jax.grad(written_out)(1.0), rtol=1e-10)
    assert found != 0 and np.isfinite(x[:3]).all() and np.isnan(x[3:]).all()
    assert (count[:3] > 0).all() and (count[3:] == -1).all() and not right[3:].any()


@pytest.mark.exhaustive
def test_tokens_and_more_beside_them():
    """Tokens are to the bit those of a run without `save`, `at` finds them, and other values are those of `save`."""
    x0 = sphere_tokens(3, 4, 2)
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
    plain, alone = cjx.simulate(field, x0, TS), cjx.simulate(field, x0, TS, save=save)
    both = cjx.simulate(field, x0, TS, save=cjx.TokensAnd(save))
    assert plain.saved is None and alone.saved is None
    np.testing.assert_array_equal(both.xs, plain.xs)
    np.testing.assert_array_equal(both.at(jnp.asarray([0.2, 5.0])), plain.at(jnp.asarray([0.2, 5.0])))
    assert eqx.tree_equal(both.saved, alone.xs)
    dense = cjx.simulate(field, x0, TS, save=cjx.TokensAnd(save), dense=True)
    np.testing.assert_allclose(dense.at(0.2), both.at(0.2), rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_what_cannot_be_saved_beside_the_tokens_is_refused():
    with pytest.raises(ValueError, match="fn must be a function of t, x and args"):
        cjx.TokensAnd(lambda x: x)
    field, x0 = cjx.AttentionField(cjx.SoftmaxAttention(1.0)), sphere_tokens(3, 4, 2)
    keep, noise = cjx.TokensAnd(save), {"noise": 0.1, "key": jax.random.key(0), "dt0": 0.1}
    with pytest.raises(ValueError, match="save must be None with BacksolveAdjoint"):
        cjx.simulate(field, x0, TS, save=keep, adjoint=dfx.BacksolveAdjoint())
    noisy = cjx.simulate(field, x0, TS[:3], save=keep, **noise)
    np.testing.assert_allclose(noisy.saved["x"], noisy.xs, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="at needs the tokens between the save times"):
        noisy.at(0.2)
