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


N, D = 5, 3


def _sphere(seed: int, n: int = N, d: int = D):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


X, EYE, MASSES = _sphere(0), jnp.eye(D), jnp.full(N, 0.2)
T = jnp.asarray(0.5)

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
    use, found = {"x": X, "t": T, "masses": MASSES}, {}
    own = {"function": lambda s: 1 + s * s, "normalise": False}
    for made, first in (softmax, {"beta": T}), (unnormalised, {"beta": T, "offset": T}), (hardmax, {}), (kernel, own):
        name = type(made()).__name__
        found[name] = case(first | {"query_key": EYE})
        found[f"{name}.weights"] = case(use, made)
        found[f"{name}.average"] = case(use | {"values": X}, made)
    return found | {"SoftmaxAttention.log_partition": case(use, softmax)}


def _fields() -> dict[str, Case]:
    call = lambda made: case({"t": T, "x": X}, made)
    return {
        "AttentionField": case(lambda: {"attention": softmax(), "value": EYE, "masses": MASSES}),
        "MultiHeadField": case({"beta": T, "query_key": EYE[None], "value": EYE[None], "masses": MASSES}),
        "PerceptronField": case(
            {"w_in": jnp.ones((4, D)), "w_out": jnp.ones((D, 4)), "bias_in": jnp.ones(4), "bias_out": jnp.ones(D)}
        ),
        "FunctionField": case({"fn": lambda t, x, args: x}),
        "FunctionField.__call__": call(lambda: cjx.FunctionField(lambda t, x, args: x)),
        "RescaledField": case(lambda: {"attention": softmax(), "value": EYE, "masses": MASSES}),
        "ScaledField": case(lambda: {"field": field(), "factor": T}),
        "SumField": case(lambda: {"fields": (field(), perceptron())}),
        "AttentionField.__call__": call(field),
        "MultiHeadField.__call__": call(heads),
        "MultiHeadField.factored": case(
            {"beta": T, **{name: EYE[None] for name in ("query", "key", "value", "output")}, "masses": MASSES}
        ),
        "PerceptronField.__call__": call(perceptron),
        "RescaledField.__call__": call(rescaled),
        "ScaledField.__call__": call(lambda: 2.0 * field()),
        "SumField.__call__": call(lambda: field() + perceptron()),
        "RescaledField.rescale": case({"t": T, "x": X}, rescaled),
        "RescaledField.unscale": case({"t": T, "z": X}, rescaled, finite=False),
    }


def _mean_field() -> dict[str, Case]:
    circle, key = X[:, :2], jr.key(0)
    given = {"attention": softmax_alone, "value": jnp.eye(2), "d": 2, "degree": 8, "temperature": T, "tolerance": 0.1}
    found = {
        "MeanField": case(lambda: given | {"attention": softmax_alone()}),
        "MeanField.__call__": case({"t": T, "x": C}, mean),
        "MeanField.to_coefficients": case({"x": circle, "masses": MASSES}, mean),
        "MeanField.from_density": case({"density": lambda x: 2 + x[:, 0]}, mean),
        "MeanField.density": case({"c": C, "points": circle}, mean),
        "MeanField.sample": case({"c": C, "key": key, "n": 3}, mean),
        "MeanField.smoothed": case({"c": C, "time": 0.1}, mean),
    }
    for name in ("mean_token", "order_parameter", "lowest", "tail", "entropy"):
        found[f"MeanField.{name}"] = case({"c": C}, mean)
    for name in ("energy", "free_energy", "dissipation"):
        found[f"MeanField.{name}"] = case({"c": C, "t": T}, mean)
    return found


def _runs() -> dict[str, Case]:
    return {
        "coarsen": case(lambda: {"field": field(), "x0": X, "t_end": 10.0, "tolerance": 0.1}),
        "MergeTree.at": case({"t": 0.5}, tree),
        "MergeTree.clusters": case({"t": 0.5}, tree),
        "simulate": case(
            lambda: dict(
                field=field(),
                x0=X,
                ts=jnp.asarray([0.0, 1.0]),
                solver=dfx.Heun(),
                dt0=T,
                stepsize_controller=dfx.PIDController(rtol=1e-3, atol=1e-3),
                max_steps=1024,
                adjoint=dfx.RecursiveCheckpointAdjoint(),
                throw=False,
                noise=None,
                key=jr.key(0),
            )
        ),
        "TokensAnd": case({"fn": lambda t, x, args: x}),
        "iterate": case(lambda: {"layer": layer(), "x0": X, "depth": 2}),
        "ResidualLayer": case(lambda: {"field": field(), "step": T, "normalise_to": cjx.Sphere()}),
        "ResidualLayer.__call__": case({"k": T, "x": X}, layer),
        "NoisyLayer": case(lambda: {"layer": layer(), "temperature": T, "time": 0.1, "key": jr.key(0)}),
        "NoisyLayer.__call__": case({"k": T, "x": X}, noisy_layer),
        "Trajectory.at": case({"t": T}, trajectory),
        "Trajectory.save": case({"path": "run"}, trajectory),
        "Trajectory.load": case(lambda: {"path": _kept()}),
        "Trajectory.settings": case({}, trajectory),
        "Trajectory.to_xarray": case({}, trajectory),
        "Retract": case(lambda: {"solver": dfx.Euler()}),
        "Rodas5P": case({"max_growth": 1.0}),
        "clustered_event": case({"radius": T}),
        "stationary_event": case({"speed": T}),
        "query_key_form": case({"query": EYE, "key": EYE}),
    }


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()  # removed when the tests end


def _kept() -> str:
    path = os.path.join(_folder().name, "kept")
    trajectory().save(path)
    return path


def _schedules() -> dict[str, Case]:
    ts, values = jnp.asarray([0.0, 1.0]), jnp.asarray([1.0, 2.0])
    found = {"Combined": case({"fn": jnp.add, "parts": (T, T)})}
    for cls in (cjx.Interpolated, cjx.PiecewiseConstant):
        found[cls.__name__] = case({"ts": ts, "values": values})
        found[f"{cls.__name__}.__call__"] = case({"t": T}, lambda cls=cls: cls(ts, values))
    found["FunctionSchedule"] = case({"fn": lambda t: 1 + t, "name": "fn"})
    found["FunctionSchedule.__call__"] = case({"t": T}, lambda: cjx.FunctionSchedule(jnp.sin))
    found["Combined.__call__"] = case({"t": T}, lambda: cjx.Combined(jnp.add, (T, T)))
    return found


def _masks_and_spaces() -> dict[str, Case]:
    permitted = np.ones((N, N), bool)
    found = {
        "CausalMask": case(),
        "FullMask": case(),
        "FunctionMask": case({"allowed": lambda i, j: j <= i}),
        "MatrixMask": case({"permitted": permitted}),
        "SinkMask": case({"width": 2, "kept": 1}),
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
        name = space.__name__
        found[f"{name}.retract"] = case({"x": X}, space)
        found[f"{name}.tangent"] = case({"x": X, "v": X}, space)
        found[f"{name}.distance"] = case({"x": X, "y": X}, space)
        found[f"{name}.sample"] = case({"key": jr.key(0), "n": N, "d": D}, space)
    return found


def _summations() -> dict[str, Case]:
    return {
        "Auto": case(),
        "Auto.choose": case({"n": N, "d": D}, cjx.Auto),
        "Auto.choose_hardmax": case({"n": N, "d": D, "mask": cjx.FullMask()}, cjx.Auto),
        "Blocked": case({"block_rows": 2, "block_columns": 2}),
        "Blocked.block": case({}, lambda: cjx.Blocked(2, 2)),
        "Dense": case(),
        "Harmonic": case({"tolerance": 1e-3}),
        "Harmonic.certified": case(
            lambda: {"queries": _sphere(1, N, 2), "tokens": _sphere(2, N, 2), "masses": MASSES},
            lambda: cjx.Harmonic(1e-3),
        ),
        "Hull": case(),
        "Sharded": case(lambda: {"inner": cjx.Dense(), "axis": "tokens"}),
    }


CASES = _attentions() | _fields() | _mean_field() | _runs() | _schedules() | _masks_and_spaces() | _summations()
