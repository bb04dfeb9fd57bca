"""The message says why a run stopped: it names the cause, also for a batch, and under `jit` all causes."""

import dataclasses
import sys
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._base.summary import Setup
from clusterjax._trajectory.interpolants import Stored
from tests.helpers import as_a_user, sphere_tokens


X = sphere_tokens(1, 6, 3)
TS = jnp.asarray(np.array([0.0, 5.0]), float)
SPACE = cjx.Euclidean()
SOFT = cjx.SoftmaxAttention(1.0)
FLOW = cjx.AttentionField(SOFT)
OFFSET = cjx.AttentionField(cjx.UnnormalisedAttention(100.0, offset=100.0))


def until(end, row=0):
    """A field whose velocity is NaN for one token from `end` on, or from `args` on if `end` is None."""
    fn = lambda t, x, args: jnp.where(t < (args if end is None else end), x[::-1], x[::-1].at[row].set(jnp.nan))
    return cjx.FunctionField(fn, SPACE)


def single(x):
    return jnp.asarray(x, jnp.float32)


# The field, the start, the times, and the words of the error.
CAUSES = {
    "NaN from a time on": (
        until(2.0, row=3), X, TS,
        r"stopped at t = 2, before the end 5, .*: the velocity of token 3 is not finite at t = 2; give the field a",
    ),
    "NaN of a schedule": (
        cjx.AttentionField(cjx.SoftmaxAttention(lambda t: jnp.where((t > 2) & (t < 4), jnp.nan, 1.0))), X, TS,
        r"is not finite at t = 2: beta\(t\) must be finite, but at t = 2\.0+\d* it is nan; return finite numbers",
    ),
    "weights that overflow": (
        cjx.AttentionField(cjx.UnnormalisedAttention(100.0)), single(X), single(TS),
        r"token 0 is not finite at t = 0: weights as large as e\^beta .* overflow float32; pass offset=beta, which",
    ),
    "a kernel that overflows": (
        cjx.AttentionField(cjx.KernelAttention(lambda s: jnp.exp(100 * s))), single(X), single(TS),
        r"is not finite at t = 0: function\(s\) of KernelAttention is not finite in float32 at s = \S+; return finite",
    ),
    "large tokens": (
        cjx.AttentionField(SOFT, space=SPACE), jnp.asarray(1e300 * np.asarray(X)), TS,
        r"is not finite at t = 0: coordinates are as large as \S+e\+\d+, and their squares overflow float64; pass ",
    ),
    "tokens that grow": (
        cjx.FunctionField(lambda t, x, args: 300 * x, SPACE), X, TS,
        r"coordinates are as large as \S+e\+\d+, and their squares overflow float64; end earlier\.",
    ),
    "late times": (
        FLOW, single(X), jnp.asarray([1e7, 1e7 + 1], jnp.float32),
        r"t = 10000000, before the end 10000001, .* shorter than 1, the spacing of float32 at t = 1e\+07; let ts begin "
        r"at 0, .* float64, with jax_enable_x64 set\.$",
    ),
    "steps that no longer advance": (
        FLOW, single(X), jnp.asarray([1e6, 1e6 + 10], jnp.float32),
        r"shorter than 0\.0625, the spacing of float32 at t = 1e\+06; let ts begin at 0",
    ),
    "late times in float64": (
        FLOW, X, jnp.asarray([1e17, 1e17 + 100]),
        r"shorter than 16, the spacing of float64 at t = 1e\+17; let ts begin at 0, .* with it\.$",
    ),
    "infinity in finite time": (
        cjx.FunctionField(lambda t, x, args: 9 * jnp.abs(x) * x, SPACE), X, TS,
        r"the spacing of float64 at t = 0\.\d+, for the velocity of token \d, \S+e\+\d+ there, jumps or grows without",
    ),
    "stiff": (
        cjx.AttentionField(cjx.SoftmaxAttention(6.0)), X, jnp.asarray([0.0, 1e6]),
        r"steps of an explicit solver stay short; for a very long run pass solver=Rodas5P\(\), which is implicit, else",
    ),
    "stiff in float32": (
        cjx.AttentionField(cjx.SoftmaxAttention(6.0)), single(X), jnp.asarray([0.0, 1e6], jnp.float32),
        r"stay short; pass x0 in float64, with jax_enable_x64 set, and solver=Rodas5P\(\), or follow",
    ),
    "stiff where Rodas5P serves not": (
        cjx.AttentionField(cjx.HardmaxAttention(), jnp.diag(jnp.asarray([1.0, -1.0, 0.5]))), X, jnp.asarray([0.0, 1e6]),
        r"steps of an explicit solver stay short, as they do where the velocity jumps; pass a larger max_steps\.$",
    ),
}  # fmt: skip


@pytest.mark.exhaustive_cases(
    *(
        name
        for name in CAUSES
        if name
        not in (
            "steps that no longer advance",
            "stiff in float32",
            "a kernel that overflows",
            "NaN of a schedule",
            "tokens that grow",
            "stiff",
            "infinity in finite time",
            "tokens that grow",
            "NaN of a schedule",
            "steps that no longer advance",
            "a kernel that overflows",
        )
    )
)
@pytest.mark.parametrize("name", CAUSES)
def test_a_run_that_stopped_names_its_cause(name):
    field, x0, ts, words = CAUSES[name]
    with as_a_user(), pytest.raises(RuntimeError, match=words) as caught:
        cjx.simulate(field, x0, ts, max_steps=3000)
    run = cjx.simulate(field, x0, ts, max_steps=3000, throw=False)
    assert run.failure == str(caught.value)


@pytest.mark.exhaustive
def test_the_remedies_work():
    assert np.isfinite(cjx.simulate(OFFSET, single(X), single(TS)).x1).all()
    shifted = cjx.AttentionField(cjx.KernelAttention(lambda s: jnp.exp(100 * (s - 1))))
    assert np.isfinite(cjx.simulate(shifted, single(X), single(TS)).x1).all()
    late = jnp.asarray([1e7, 1e7 + 1])
    np.testing.assert_allclose(cjx.simulate(FLOW, X, late).x1, cjx.simulate(FLOW, X, late - 1e7).x1, rtol=0, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", ({"dense": True}, {"save": lambda t, x, args: x}), ids=("dense", "save"))
def test_the_cause_of_runs_that_keep_no_field(options):
    """The error names the cause, since the field is known there; `failure` names all causes, since no field is kept."""
    with pytest.raises(RuntimeError, match="the velocity of token 0 is not finite at t = 2; "):
        cjx.simulate(until(2.0), X, TS, max_steps=256, **options)
    run = cjx.simulate(until(2.0), X, TS, max_steps=256, throw=False, **options)
    words = "steps: the velocity may not be finite from there on, or ts may be too large"
    assert words in run.failure and "stiff" in run.failure
    implicit = eqx.tree_at(lambda run: run.interpolant, run, Stored(Setup.of(solver=cjx.Rodas5P())))
    assert words.partition(",")[0] in implicit.failure and "or, steps of Rodas5P" in implicit.failure


@pytest.mark.exhaustive_cases("Kvaerno5")
@pytest.mark.parametrize("solver", (cjx.Rodas5P(), dfx.Kvaerno5()), ids=("Rodas5P", "Kvaerno5"))
def test_of_an_implicit_solver(solver):
    with pytest.raises(RuntimeError, match="the velocity of token 0 is not finite at t = 2; "):
        cjx.simulate(until(2.0), X, TS, max_steps=256, solver=solver)


@pytest.mark.exhaustive
def test_steps_of_constant_length():
    options: dict[str, Any] = {"dt0": 0.001, "max_steps": 50, "stepsize_controller": dfx.ConstantStepSize()}
    words = r"stopped at t = 0\.05, .*: steps of the constant length dt0 reach the end after about 5e\+03 of them; pass"
    with pytest.raises(RuntimeError, match=words):
        cjx.simulate(FLOW, X, TS, **options)
    with pytest.raises(RuntimeError, match=words):
        cjx.simulate(FLOW, X, TS, noise=0.1, key=jax.random.key(0), **dict(options, stepsize_controller=None))
    assert cjx.simulate(FLOW, X, TS, **dict(options, max_steps=5100)).failure == ""


def test_of_a_batch_the_run_that_stopped_first():
    """The failure names the first run that stopped and its token; if the field holds a traced number, all causes."""
    field = until(None, row=4)
    run = lambda end: cjx.simulate(field, X, TS, jnp.asarray(end), max_steps=256, throw=False)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run, (9.0, 3.0, 2.0, 9.0)))
    words = "2 of 4 runs stopped, the first of them run 2 at t = 2, before the end 5, after max_steps = 256 steps: the "
    assert batch.failure.startswith(f"{words}velocity of token 4 is not finite at t = 2; ")
    # The field holds a traced `end`, as in a batch that was mapped over `end`.
    fields: list[cjx.AbstractField] = []
    jax.make_jaxpr(lambda end: fields.append(until(end, row=4)))(3.0)
    law = dataclasses.replace(batch.interpolant, rest=(fields[0], *batch.interpolant.rest[1:]))
    batch = eqx.tree_at(lambda run: run.interpolant, batch, law)
    assert batch.failure.startswith(f"{words}velocity may not be finite from there on, or ts may be")


@pytest.mark.exhaustive
def test_under_jit_all_causes_are_named():
    solve = jax.jit(lambda x0: cjx.simulate(until(2.0), x0, TS, max_steps=256).x1)
    words = r"A run stopped before ts\[-1\] .*: with a constant dt0 more steps may be needed; the velocity may not be"
    with pytest.raises(Exception, match=words):
        jax.block_until_ready(solve(X))


@pytest.mark.exhaustive
def test_a_derivative_outside_of_jit_raises_after_the_run(monkeypatch):
    """The compiled run has no check, whose callback jax could not store on disk; a failed run raises nevertheless."""
    end = lambda x0, most: jnp.sum(cjx.simulate(until(2.0), x0, TS, max_steps=most).x1)
    with pytest.raises(RuntimeError, match=r"A run stopped before ts\[-1\] after max_steps steps"):
        jax.grad(end)(X, 16)
    monkeypatch.setattr(sys.modules[cjx.simulate.__module__], "with_error", None)
    assert jnp.all(jnp.isfinite(jax.grad(lambda x0: jnp.sum(cjx.simulate(-FLOW, x0, TS / 10).x1))(X)))


@pytest.mark.parametrize("dtype", (jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn), ids=lambda dtype: dtype.__name__)
def test_tokens_of_few_bits_are_refused(dtype):
    words = (
        rf"^x0 must be of float32 or float64, but its dtype is {dtype.__name__}, .*; pass x0.astype\(jax.numpy.float32"
    )
    with as_a_user(), pytest.raises(ValueError, match=words):
        cjx.simulate(FLOW, X.astype(dtype), TS)
