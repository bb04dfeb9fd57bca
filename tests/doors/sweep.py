"""Cases of `clusterjax.sweep`: grids of points, their stores, and phase diagrams of two systems."""

import functools
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from clusterjax import sweep

from .cases import Case, case
from .rules import (
    ANY_TEXT,
    ARRAY,
    CLASS_OF_FLOATS,
    COUNT,
    EMPTY,
    FLAG,
    LONG,
    NONE,
    NUMBER,
    ONE,
    PATH,
    POSITIVE,
    SIZE,
    TEXTS,
    rule,
)


TS = jnp.asarray([0.0, 1.0])
POINTS = np.ones((2, 3, 2))

# Values that are no numbers are handed to the function as they are, one compilation for each.
STATIC = LONG | TEXTS | SIZE | rule(
    "ragged, list of none, inf array, complex array, more axes", "values that are no numbers are static"
)  # fmt: skip
BELOW_ONE = rule("minus one, zero", "a cosine")
DTYPE = NONE | CLASS_OF_FLOATS
FLOWN = rule("nan array, inf array", "tokens that are no numbers make no number")
IN_STORE = NONE | PATH
INTEGER = rule("minus one, zero", "an integer")


def double(beta):
    return 2 * beta


@functools.cache
def folder() -> str:
    """A folder with a sweep in it, of an absolute name: the tests go from one folder to the next."""
    path = tempfile.mkdtemp() + "/sweep"
    sweep.run(double, {"beta": [1.0, 2.0]}, batch_size=2, store=path, progress=False)
    return path


@functools.cache
def starts() -> str:
    path = tempfile.mkdtemp() + "/starts.npy"
    np.save(path, POINTS)
    return path


@functools.cache
def diagram() -> sweep.PhaseDiagram:
    return sweep.PhaseDiagram(sweep.Uniform(2, 3, 2), TS)


def _of_runs() -> dict[str, Case]:
    return {
        "Axis": case(
            {"values": np.array([1.0, 2.0]), "unit": "s"}, values=ARRAY | STATIC, unit=ANY_TEXT, description=ANY_TEXT,
            static=FLAG,
        ),
        "Variable": case(
            {"dims": ("time",), "coords": {"time": [1.0]}, "unit": "s"}, dims=NONE | EMPTY | TEXTS,
            coords=rule("empty dict", "no values"), unit=ANY_TEXT, description=ANY_TEXT,
        ),
        "run": case(
            lambda: {
                "function": double, "axes": {"beta": [1.0, 2.0]}, "batch_size": 2, "progress": False,
                "devices": jax.local_devices()[:1], "variables": {"result": sweep.Variable()},
            },
            dear=True, store=IN_STORE, resume=FLAG, devices=NONE, progress=FLAG, seed=COUNT, finite=FLAG,
            cost=NONE | rule("class", "what makes a number of nothing"),
            variables=NONE | rule("empty dict", "no labels"),
            version=NONE | ANY_TEXT | INTEGER,
        ),
        "open": case(lambda: {"store": folder()}),
        "read_starts": case(lambda: {"path": starts()}),
    }  # fmt: skip


def _of_diagrams() -> dict[str, Case]:
    tokens = np.ones((2, 3, 4))
    drawn = {"seed": 0, "dtype": jnp.float32}
    draws = {"seed": COUNT, "dtype": DTYPE}
    return {
        "phase_diagram": case(
            {"betas": np.array([1.0]), "times": np.array([0.0, 1.0]), "n": 3, "samples": 2, "progress": False},
            dear=True, betas=ARRAY, times=ARRAY, unnormalised=FLAG, starts=NONE, dtype=DTYPE, seed=COUNT,
            store=IN_STORE, resume=FLAG, devices=NONE, progress=FLAG,
        ),
        "PhaseDiagram": case(
            lambda: {"starts": sweep.Uniform(2, 3, 2), "ts": TS, "chunk": 2}, ts=ARRAY, unnormalised=FLAG, seed=COUNT,
            chunk=NONE,
        ),
        "PhaseDiagram.__call__": case({"beta": jnp.asarray(1.0)}, diagram, dear=True),
        "PhaseDiagram.systems": case({"beta": jnp.asarray(1.0)}, diagram, dear=True),
        "PhaseDiagram.cost": case({"beta": 1.0}, diagram, beta=POSITIVE | COUNT),
        "Uniform": case({"samples": 2, "n": 3, "d": 2}),
        "Uniform.tokens": case(drawn, lambda: sweep.Uniform(2, 3, 2), **draws),
        "Given": case({"x0": POINTS}, x0=ARRAY | SIZE),
        "Given.tokens": case(drawn, lambda: sweep.Given(jnp.asarray(POINTS)), **draws),
        "ClosePairs": case({"cosine": 0.5}, cosine=BELOW_ONE),
        "ClosePairs.__call__": case({"x": tokens}, sweep.ClosePairs, x=ARRAY | SIZE | FLOWN, finite=False),
        "GramRank": case({"threshold": 0.5}),
        "GramRank.__call__": case({"x": tokens}, sweep.GramRank, x=ARRAY | SIZE | FLOWN, finite=False),
        "ClusterRank": case({"cosine": 0.5}, cosine=BELOW_ONE),
        "ClusterRank.__call__": case({"x": tokens}, sweep.ClusterRank, x=ARRAY | SIZE | FLOWN, finite=False),
        "NormalisedEuler": case({"dt": 0.5}),
        "Adaptive": case({"tolerance": 0.5}, tolerance=NONE),
        "Identity": case({}),
        "Once": case({}),
        "PerBeta": case({}),
        "PerSystem": case({}),
        "Square": case(lambda: {"drawn": sweep.Once()}),
        "Product": case(lambda: {"drawn": sweep.Once()}),
        "Wigner": case(lambda: {"drawn": sweep.Once()}),
        "LikeQueryKey": case({"scale": jnp.asarray(0.5)}, scale=NUMBER | ONE | rule("traced", "may be traced")),
        "Fixed": case({"matrix": np.eye(2)}, matrix=ARRAY),
    }  # fmt: skip


CASES = {f"sweep.{name}": one for name, one in {**_of_runs(), **_of_diagrams()}.items()}
