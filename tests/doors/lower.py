"""Cases of `clusterjax`: attention, fields, runs, schedules, masks, spaces, summations."""

import functools
import os
import tempfile

import diffrax as dfx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import clusterjax as cjx
from tests.doors.cases import Case, case
from tests.doors.rules import (
    ANYTHING,
    ARRAY,
    AXIS,
    BATCH,
    CALLABLE,
    CLASS_OF_FLOATS,
    COUNT,
    EMPTY,
    LIST,
    LONG,
    NONE,
    NUMBER,
    OVERFLOWN,
    PARAMETERS,
    PATH,
    POSITIVE,
    SIZE,
    TEXT,
    TRACED,
    rule,
)


N, D = 5, 3


def _sphere(seed: int, n: int = N, d: int = D):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


X, EYE, MASSES = _sphere(0), jnp.eye(D), jnp.full(N, 0.2)
T = jnp.asarray(0.5)
SQUARE = ARRAY | SIZE
TOKENS = ARRAY | SIZE
OPTIONAL = NONE | ARRAY
PARAMETER = NONE | ARRAY | SIZE
ARGS = ANYTHING | rule("list in itself, masked", "the function that is called reads it, if it does")
SCALAR = NUMBER | TRACED
TIME = SCALAR

softmax = functools.cache(lambda: cjx.SoftmaxAttention(1.0))
unnormalised = functools.cache(lambda: cjx.UnnormalisedAttention(1.0))
hardmax = functools.cache(lambda: cjx.HardmaxAttention())
kernel = functools.cache(lambda: cjx.KernelAttention(lambda s: 1 + s * s))
field = functools.cache(lambda: cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=jnp.eye(D))))
layer = functools.cache(lambda: cjx.ResidualLayer(field()))
trajectory = functools.cache(lambda: cjx.simulate(field(), X, jnp.asarray([0.0, 1.0]), dense=True, max_steps=64))
tree = functools.cache(lambda: cjx.coarsen(field(), X, 10.0, tolerance=0.1))
perceptron = functools.cache(lambda: cjx.PerceptronField(jnp.ones((4, D)), jnp.ones((D, 4))))
noisy_layer = functools.cache(lambda: cjx.NoisyLayer(layer(), 0.1, time=0.1, key=jr.key(0)))
rescaled = functools.cache(lambda: cjx.RescaledField(softmax()))
softmax_alone = functools.cache(lambda: cjx.SoftmaxAttention(1.0))
mean = functools.cache(lambda: cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=8, temperature=0.1))
C = jnp.zeros((9, 2)).at[0, 0].set(1.0).at[1, 0].set(0.1)
heads = functools.cache(lambda: cjx.MultiHeadField(1.0, EYE[None], EYE[None]))


def _attentions() -> dict[str, Case]:
    options = {"query_key": PARAMETER, "beta": SCALAR, "offset": SCALAR, "tie_tolerance": NONE | SCALAR}
    found = {}
    own = {"function": lambda s: 1 + s * s, "normalise": False}
    kinds = (softmax, {"beta": T}), (unnormalised, {"beta": T, "offset": T}), (hardmax, {}), (kernel, own)
    for made, first in kinds:
        name = type(made()).__name__
        mine = {key: value for key, value in options.items() if key in (*first, "query_key")}
        if made is hardmax:
            mine["tie_tolerance"] = options["tie_tolerance"]
        found[name] = case(first | {"query_key": EYE}, **mine)
        use = {"x": X, "t": T, "masses": MASSES}
        rules = {"x": TOKENS, "t": TIME, "masses": OPTIONAL}
        found[f"{name}.weights"] = case(use, made, dear=True, **rules)
        found[f"{name}.average"] = case(use | {"values": X}, made, dear=True, **rules, values=OPTIONAL | SIZE)
    found["SoftmaxAttention.log_partition"] = case(use, softmax, dear=True, **rules)
    return found


def _fields() -> dict[str, Case]:
    call = lambda made: case({"t": T, "x": X}, made, dear=True, t=TIME, x=TOKENS, args=ARGS)
    return {
        "AttentionField": case(
            lambda: {"attention": softmax(), "value": EYE, "masses": MASSES}, value=PARAMETER, masses=OPTIONAL | SIZE
        ),
        "MultiHeadField": case(
            {"beta": T, "query_key": EYE[None], "value": EYE[None], "masses": MASSES},
            beta=SCALAR | ARRAY, query_key=PARAMETER, value=PARAMETER, masses=OPTIONAL | SIZE, attention=CALLABLE,
        ),
        "PerceptronField": case(
            {"w_in": jnp.ones((4, D)), "w_out": jnp.ones((D, 4)), "bias_in": jnp.ones(4), "bias_out": jnp.ones(D)},
            bias_in=OPTIONAL, bias_out=OPTIONAL, activation=CALLABLE,
        ),
        "FunctionField": case({"fn": lambda t, x, args: x}),
        "FunctionField.__call__": call(lambda: cjx.FunctionField(lambda t, x, args: x)),
        "RescaledField": case(
            lambda: {"attention": softmax(), "value": EYE, "masses": MASSES}, value=PARAMETER, masses=OPTIONAL | SIZE
        ),
        "ScaledField": case(lambda: {"field": field(), "factor": T}, factor=SCALAR),
        "SumField": case(lambda: {"fields": (field(), perceptron())}),
        "AttentionField.__call__": call(field),
        "MultiHeadField.__call__": call(heads),
        "MultiHeadField.factored": case(
            {"beta": T, **{name: EYE[None] for name in ("query", "key", "value", "output")}, "masses": MASSES},
            beta=SCALAR | ARRAY, masses=OPTIONAL | SIZE, attention=CALLABLE,
            **{name: PARAMETER for name in ("query", "key", "value", "output", "bias")},
        ),
        "PerceptronField.__call__": call(perceptron),
        "RescaledField.__call__": call(rescaled),
        "ScaledField.__call__": call(lambda: 2.0 * field()),
        "SumField.__call__": call(lambda: field() + perceptron()),
        "RescaledField.rescale": case({"t": T, "x": X}, rescaled, dear=True, t=TIME, x=TOKENS),
        "RescaledField.unscale": case({"t": T, "z": X}, rescaled, dear=True, finite=False, t=TIME, z=TOKENS),
    }  # fmt: skip


def _mean_field() -> dict[str, Case]:
    circle, key = X[:, :2], jr.key(0)
    given = {"attention": softmax_alone, "value": jnp.eye(2), "d": 2, "degree": 8, "temperature": T, "tolerance": 0.1}
    found = {
        "MeanField": case(
            lambda: given | {"attention": softmax_alone()}, value=PARAMETER, temperature=COUNT | POSITIVE | TRACED
        ),
        "MeanField.__call__": case({"t": T, "x": C}, mean, dear=True, t=TIME, x=TOKENS, args=ARGS),
        "MeanField.to_coefficients": case(
            {"x": circle, "masses": MASSES}, mean, dear=True, x=ARRAY | SIZE, masses=OPTIONAL
        ),
        "MeanField.from_density": case({"density": lambda x: 2 + x[:, 0]}, mean),
        "MeanField.density": case({"c": C, "points": circle}, mean, dear=True, c=TOKENS, points=ARRAY | SIZE),
        "MeanField.sample": case({"c": C, "key": key, "n": 3}, mean, dear=True, c=TOKENS, key=TRACED),
        "MeanField.smoothed": case({"c": C, "time": 0.1}, mean, c=TOKENS, time=POSITIVE | COUNT),
    }
    for name in ("mean_token", "order_parameter", "lowest", "tail", "entropy"):
        found[f"MeanField.{name}"] = case({"c": C}, mean, dear=True, c=TOKENS)
    for name in ("energy", "free_energy", "dissipation"):
        found[f"MeanField.{name}"] = case({"c": C, "t": T}, mean, dear=True, c=TOKENS, t=TIME)
    return found


def _runs() -> dict[str, Case]:
    return {
        "coarsen": case(
            lambda: {"field": field(), "x0": X, "t_end": 10.0, "tolerance": 0.1},
            dear=True, x0=LIST | SIZE, t_end=POSITIVE, tolerance=rule("one and a half", "a distance below 2"),
        ),
        "MergeTree.at": case({"t": 0.5}, tree, t=rule("one and a half, zero", "a time of the run")),
        "MergeTree.clusters": case({"t": 0.5}, tree, t=rule("one and a half, zero", "a time of the run")),
        "simulate": case(
            lambda: {
                "field": field(), "x0": X, "ts": jnp.asarray([0.0, 1.0]), "solver": dfx.Heun(), "dt0": T,
                "stepsize_controller": dfx.PIDController(rtol=1e-3, atol=1e-3), "max_steps": 1024,
                "adjoint": dfx.RecursiveCheckpointAdjoint(), "throw": False, "noise": None, "key": jr.key(0),
            },
            dear=True, x0=TOKENS, ts=ARRAY | SIZE, args=ANYTHING, dt0=NONE | POSITIVE | TRACED,
            noise=NONE | COUNT | POSITIVE | TRACED | rule("", "much noise may want more steps than there are", True),
            key=NONE | TRACED,
            solver=NONE, stepsize_controller=NONE, adjoint=NONE, save=NONE, max_steps=NONE,
            dense=rule("true", "the steps that a run did not take are infinite", True),
        ),
        "TokensAnd": case({"fn": lambda t, x, args: x}),
        "iterate": case(
            lambda: {"layer": layer(), "x0": X, "depth": 2}, dear=True, x0=TOKENS, depth=COUNT, args=ANYTHING
        ),
        "ResidualLayer": case(
            lambda: {"field": field(), "step": T, "normalise_to": cjx.Sphere()}, step=SCALAR, normalise_to=NONE
        ),
        "ResidualLayer.__call__": case({"k": T, "x": X}, layer, dear=True, k=SCALAR, x=TOKENS, args=ARGS),
        "NoisyLayer": case(
            lambda: {"layer": layer(), "temperature": T, "time": 0.1, "key": jr.key(0)},
            temperature=COUNT | POSITIVE | TRACED,
            time=COUNT | POSITIVE | TRACED, key=TRACED,
        ),
        "NoisyLayer.__call__": case({"k": T, "x": X}, noisy_layer, dear=True, k=SCALAR, x=TOKENS, args=ARGS),
        "Trajectory.at": case({"t": T}, trajectory, dear=True, t=COUNT | ARRAY | TRACED | EMPTY | SIZE | LONG),
        "Trajectory.save": case({"path": "run"}, trajectory, path=PATH),
        "Trajectory.load": case(lambda: {"path": _kept()}, path=PATH),
        "Trajectory.settings": case({}, trajectory),
        "Trajectory.to_xarray": case({}, trajectory),
        "Retract": case(lambda: {"solver": dfx.Euler()}),
        "Rodas5P": case({"max_growth": 1.0}, max_growth=POSITIVE | NONE),
        "clustered_event": case({"radius": T}, radius=POSITIVE | TRACED, root_finder=NONE),
        "stationary_event": case({"speed": T}, speed=POSITIVE | TRACED, root_finder=NONE),
        "query_key_form": case({"query": EYE, "key": EYE}, query=ARRAY, key=ARRAY),
    }  # fmt: skip


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()  # removed when the tests end


def _kept() -> str:
    path = os.path.join(_folder().name, "kept")
    trajectory().save(path)
    return path


def _schedules() -> dict[str, Case]:
    ts, values = jnp.asarray([0.0, 1.0]), jnp.asarray([1.0, 2.0])
    found = {"Combined": case({"fn": jnp.add, "parts": (T, T)}, fn=CALLABLE, parts=PARAMETERS)}
    for cls in (cjx.Interpolated, cjx.PiecewiseConstant):
        found[cls.__name__] = case({"ts": ts, "values": values}, ts=ARRAY, values=ARRAY | BATCH)
        found[f"{cls.__name__}.__call__"] = case({"t": T}, lambda cls=cls: cls(ts, values), dear=True, t=TIME)
    found["FunctionSchedule"] = case({"fn": lambda t: 1 + t, "name": "fn"}, name=TEXT)
    found["FunctionSchedule.__call__"] = case({"t": T}, lambda: cjx.FunctionSchedule(jnp.sin), dear=True, t=TIME)
    found["Combined.__call__"] = case({"t": T}, lambda: cjx.Combined(jnp.add, (T, T)), dear=True, t=TIME)
    return found


def _masks_and_spaces() -> dict[str, Case]:
    permitted = np.ones((N, N), bool)
    found = {
        "CausalMask": case(),
        "FullMask": case(),
        "FunctionMask": case({"allowed": lambda i, j: j <= i}),
        "MatrixMask": case({"permitted": permitted}, permitted=ARRAY),
        "SinkMask": case({"width": 2, "kept": 1}, kept=COUNT),
        "WindowMask": case({"width": 2}),
        "Euclidean": case(),
        "Sphere": case(),
    }
    rule = lambda: cjx.FunctionMask(lambda i, j: j <= i)
    given = (rule, lambda: cjx.MatrixMask(permitted))
    masks = (cjx.CausalMask, cjx.FullMask, *given, lambda: cjx.SinkMask(2, 1), lambda: cjx.WindowMask(2))
    for mask in masks:
        found[f"{type(mask()).__name__}.matrix"] = case({"n": N}, mask)
    for space in (cjx.Euclidean, cjx.Sphere):
        name, many = space.__name__, ARRAY | BATCH | SIZE | LONG
        pair = ARRAY
        found[f"{name}.retract"] = case({"x": X}, space, dear=True, x=many)
        found[f"{name}.tangent"] = case({"x": X, "v": X}, space, dear=True, x=pair, v=pair)
        found[f"{name}.distance"] = case({"x": X, "y": X}, space, dear=True, x=pair, y=pair)
        found[f"{name}.sample"] = case(
            {"key": jr.key(0), "n": N, "d": D}, space, key=TRACED, dtype=NONE | CLASS_OF_FLOATS
        )
    return found


def _summations() -> dict[str, Case]:
    return {
        "Auto": case(),
        "Auto.choose": case(
            {"n": N, "d": D}, cjx.Auto, dtype=NONE | CLASS_OF_FLOATS, queries=OPTIONAL | SIZE | OVERFLOWN
        ),
        "Auto.choose_hardmax": case({"n": N, "d": D, "mask": cjx.FullMask()}, cjx.Auto),
        "Blocked": case({"block_rows": 2, "block_columns": 2}, block_rows=NONE, block_columns=NONE),
        "Blocked.block": case({}, lambda: cjx.Blocked(2, 2)),
        "Dense": case(),
        "Harmonic": case({"tolerance": 1e-3}, tolerance=NONE),
        "Harmonic.certified": case(
            lambda: {"queries": _sphere(1, N, 2), "tokens": _sphere(2, N, 2), "masses": MASSES},
            lambda: cjx.Harmonic(1e-3), dear=True, queries=ARRAY, tokens=ARRAY, masses=OPTIONAL,
        ),
        "Hull": case(),
        "Sharded": case(lambda: {"inner": cjx.Dense(), "axis": "tokens"}, axis=AXIS, mesh=NONE),
    }  # fmt: skip


CASES = {
    **_attentions(), **_fields(), **_mean_field(), **_runs(), **_schedules(), **_masks_and_spaces(), **_summations(),
}  # fmt: skip
