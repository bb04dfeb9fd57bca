"""An eager call with shapes seen before compiles nothing, and a user is warned where jax rounds an array."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import hardmax
from clusterjax._base import numerics as _misc
from clusterjax._base.numerics import as_float
from tests.helpers import as_a_user


COMPILED = [0]
# The function has another name before jax 0.8.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


def _count(event: str, duration: float, **_: Any) -> None:
    COMPILED[0] += event == "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module", autouse=True)
def counted():
    jax.monitoring.register_event_duration_secs_listener(_count)
    yield
    # Before jax 0.7 a single listener cannot be removed.
    getattr(jax.monitoring, "unregister_event_duration_listener", lambda _: jax.monitoring.clear_event_listeners())(
        _count
    )


RNG = np.random.default_rng(0)


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.uniform(0.5, 1.5, shape), float)


def tokens(n: int = 5, d: int = 2) -> jax.Array:
    x = RNG.normal(size=(n, d))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), float)


def field() -> cjx.AbstractField:
    return cjx.AttentionField(cjx.SoftmaxAttention(numbers(), query_key=numbers(2, 2)), numbers(2, 2))


def rescaled() -> cjx.RescaledField:
    return cjx.RescaledField(cjx.SoftmaxAttention(numbers()), numbers(2, 2))


def layers() -> cjx.Trajectory:
    return cjx.iterate(cjx.ResidualLayer(field(), numbers()), tokens(), 4)


# Every call draws fresh numbers of the same shapes.
CALLS: dict[str, Callable[[], Any]] = {
    "angular_power on the circle": lambda: cjx.angular_power(tokens(), 3),
    "angular_power on the sphere": lambda: cjx.angular_power(tokens(5, 3), 3, numbers(5)),
    "angular_power by pairs": lambda: cjx.angular_power(tokens(5, 4), 3),
    "cluster_labels": lambda: cjx.cluster_labels(tokens(), float(numbers())),
    "num_clusters": lambda: cjx.num_clusters(tokens(), float(numbers())),
    "cosine_histogram": lambda: cjx.cosine_histogram(tokens(), 4),
    "effective_rank": lambda: cjx.effective_rank(tokens()),
    "energy_dissipation": lambda: cjx.energy_dissipation(tokens(), numbers(5, 2)),
    "interaction_energy": lambda: cjx.interaction_energy(tokens(), float(numbers()), numbers(2, 2)),
    "log_interaction_energy": lambda: cjx.log_interaction_energy(tokens(), numbers()),
    "pairwise_cosine": lambda: cjx.pairwise_cosine(tokens()),
    "rank": lambda: cjx.rank(tokens(), float(numbers()) / 9),
    "renyi_centres": lambda: cjx.renyi_centres(tokens(), float(numbers())),
    "sink_mass": lambda: cjx.sink_mass(numbers(3, 3)),
    "spectrum": lambda: cjx.spectrum(numbers(3, 3)),
    "symmetric_part_spectrum": lambda: cjx.symmetric_part_spectrum(numbers(3, 3)),
    "uniform_energy": lambda: cjx.uniform_energy(float(numbers()), 3),
    "hardmax": lambda: cjx.HardmaxAttention().average(tokens(), None),
    "log_partition": lambda: cjx.SoftmaxAttention(float(numbers())).log_partition(tokens()),
    "weights": lambda: cjx.SoftmaxAttention(float(numbers()), mask=cjx.CausalMask()).weights(tokens()),
    "heads": lambda: cjx.MultiHeadField(numbers(2), numbers(2, 2, 2), numbers(2, 2, 2))(0.0, tokens()),
    "RescaledField": lambda: rescaled()(float(numbers()), tokens()),
    "unscale": lambda: rescaled().unscale(float(numbers()), tokens()),
    "rescale": lambda: rescaled().rescale(float(numbers()), tokens()),
    "Interpolated": lambda: cjx.Interpolated(jnp.arange(3.0), numbers(3))(float(numbers())),
    "PiecewiseConstant": lambda: cjx.PiecewiseConstant(jnp.arange(3.0), numbers(3))(float(numbers())),
    "at of layers": lambda: layers().at(2.0 * float(numbers())),
    "at of layers, many": lambda: layers().at(2.0 * numbers(3)),
    "HardmaxLayer": lambda: hardmax.HardmaxLayer(numbers())(0, tokens(), None),
    "leaders": lambda: hardmax.leaders(tokens(), hardmax.HardmaxLayer(numbers()), 3).count,
}


# `make test` runs one call for each way of computation; the others run with `make exhaustive`.
SECOND = (
    "PiecewiseConstant", "angular_power by pairs", "angular_power on the circle", "at of layers, many", "hardmax",
    "leaders", "log_interaction_energy", "log_partition", "num_clusters", "rank", "symmetric_part_spectrum", "unscale",
)  # fmt: skip


@pytest.mark.exhaustive_cases(*SECOND)
@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_compiles_nothing(name):
    CALLS[name](), CALLS[name]()  # the second call may meet other constants of NumPy than the first
    before = COMPILED[0]
    CALLS[name]()
    assert COMPILED[0] == before


def test_an_array_of_numpy_is_taken_without_a_program():
    before = COMPILED[0]
    for array in (np.ones((3, 17)), np.ones((3, 17), np.float32)):
        assert as_float(array).dtype == array.dtype
    assert as_float(np.arange(17)).dtype == float
    assert COMPILED[0] == before


@pytest.mark.exhaustive
def test_at_of_a_run_compiles_once():
    """`at` continues and interpolates a run with programs compiled before, at one time and at several."""
    run = lambda dense: cjx.simulate(field(), tokens(), jnp.asarray([0.0, 0.5, 1.0]), dense=dense)
    for dense in (False, True):
        first, second = run(dense), run(dense)
        for times, others in ((0.3, 0.4), (np.asarray([0.1, 0.7]), np.asarray([0.2, 0.3]))):
            first.at(times)
            before = COMPILED[0]
            found = first.at(others), second.at(times)
            assert COMPILED[0] == before and np.all(np.isfinite(found[0])) and np.all(np.isfinite(found[1]))


def test_a_first_run_compiles_few_programs():
    """One program is compiled for the tokens, none for the field, and up to three for the run, two by diffrax."""
    key, times = jax.random.key(0), jnp.asarray([0.0, 1.0])
    counts = [COMPILED[0]]
    x0 = cjx.Sphere().sample(key, n=13, d=3)  # a shape that no other test has
    counts.append(COMPILED[0])
    field = cjx.AttentionField(cjx.SoftmaxAttention(9.0, mask=cjx.CausalMask()))
    counts.append(COMPILED[0])
    cjx.simulate(field, x0, times)
    counts.append(COMPILED[0])
    cjx.Sphere().retract(x0)
    tokens, fields, runs, retractions = np.diff([*counts, COMPILED[0]])
    assert (tokens, fields, retractions) == (1, 0, 1) and 1 <= runs <= 3


def test_a_run_whose_times_are_known_has_no_callback():
    """A callback makes compilation slower, and jax stores no program with a callback on disk."""
    words = lambda run, *args: str(jax.make_jaxpr(run)(*args))
    times = jnp.asarray([0.0, 1.0])
    end = lambda x0: cjx.simulate(field(), x0, times, throw=False).x1
    for run in (end, jax.grad(lambda x0: end(x0).sum())):
        assert "callback" not in words(run, tokens())
    # If the times are traced, diffrax checks them within the run.
    assert "callback" in words(lambda x0, ts: cjx.simulate(field(), x0, ts, throw=False).x1, tokens(), times)


PROGRAM = """
import warnings, numpy as np, jax.numpy as jnp, clusterjax as cjx
x = np.eye(3)
field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    field(0.0, x.astype(np.float32)), field(0.0, jnp.asarray(x))
    assert not caught, caught[0]
    assert field(0.0, x).dtype == field(0.0, x).dtype == np.float32
print(len(caught), caught[0].category.__name__, caught[0].message)
"""


@pytest.mark.exhaustive
def test_double_precision_that_jax_rounds_is_told_once():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("1 UserWarning x is float64, but jax rounds it to float32")
    assert 'call jax.config.update("jax_enable_x64", True) first' in run.stdout


PLAIN = cjx.AttentionField(cjx.SoftmaxAttention(1.0))


@pytest.mark.exhaustive_cases("masses-<lambda>1", "ts-<lambda>1", "x0-<lambda>0", "x0-<lambda>1")
@pytest.mark.parametrize(
    ("name", "door"),
    (
        ("query_key", lambda wide: cjx.SoftmaxAttention(1.0, query_key=wide(np.eye(3)))),
        ("value", lambda wide: cjx.AttentionField(cjx.SoftmaxAttention(1.0), wide(np.eye(3)))),
        ("masses", lambda wide: cjx.AttentionField(cjx.SoftmaxAttention(1.0), masses=wide(np.ones(3)))),
        ("masses", lambda wide: cjx.SoftmaxAttention(1.0).weights(jnp.eye(3), masses=wide(np.ones(3)))),
        ("beta", lambda wide: cjx.MultiHeadField(wide(np.ones(2)), jnp.ones((2, 3, 3)), None)),
        ("ts", lambda wide: cjx.PiecewiseConstant(wide(np.arange(2.0)), [1.0, 2.0])),
        ("ts", lambda wide: jax.eval_shape(
            lambda: cjx.simulate(cjx.FunctionField(lambda t, x, args: x), jnp.eye(3), wide(np.arange(2.0))))),
        ("w_in", lambda wide: cjx.PerceptronField(wide(np.eye(3)), jnp.eye(3))),
        ("x", lambda wide: jax.eval_shape(lambda: PLAIN(0.0, wide(np.eye(3))))),
        ("x0", lambda wide: jax.eval_shape(lambda: cjx.iterate(cjx.ResidualLayer(PLAIN, 1.0), wide(np.eye(3)), 1).xs)),
        ("x0", lambda wide: jax.eval_shape(lambda: cjx.simulate(PLAIN, wide(np.eye(3)), jnp.asarray([0.0, 1.0])).x1)),
        ("x", lambda wide: jax.eval_shape(lambda: cjx.interaction_energy(wide(np.eye(3)), 1.0))),
        ("x", lambda wide: jax.eval_shape(lambda: cjx.num_clusters(wide(np.eye(3)), 0.1))),
        ("x", lambda wide: jax.eval_shape(lambda: cjx.SoftmaxAttention(1.0).weights(wide(np.eye(3))))),
    ),
)  # fmt: skip
def test_every_array_of_double_precision_that_is_rounded_is_told_once_with_its_name(monkeypatch, name, door):
    """The warning names the caller's line; float32, Python numbers and double precision kept by jax cause none."""
    monkeypatch.setattr(_misc, "_WARNED", set())
    with as_a_user():
        with enable_x64(False):
            door(lambda array: array.astype(np.float32))
            door(lambda array: array.tolist()) if name not in ("x", "x0", "ts") else None
            with pytest.warns(UserWarning, match=f"^{name} is float64, but jax rounds it to float32") as told:
                door(lambda array: array)
                door(lambda array: array)
        assert len(told) == 1 and told[0].filename == __file__
        monkeypatch.setattr(_misc, "_WARNED", set())
        door(lambda array: array)
