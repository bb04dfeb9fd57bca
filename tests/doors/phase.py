"""Cases of `clusterjax.phase`: phase diagrams of two systems, their laws, starts and statistics."""

import functools
import tempfile

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax import phase
from tests.doors.cases import Case, case
from tests.doors.rules import (
    ARRAY,
    CLASS_OF_FLOATS,
    COUNT,
    FLAG,
    LIST,
    LONG,
    NONE,
    NUMBER,
    ONE,
    PATH,
    POSITIVE,
    SIZE,
    rule,
)


TS = jnp.asarray([0.0, 1.0])
POINTS = np.ones((2, 3, 2))

BELOW_ONE = rule("minus one, zero", "a cosine")
DTYPE = NONE | CLASS_OF_FLOATS
FLOWN = rule("nan array, inf array", "tokens that are no numbers make no number")
REAL_OR_NOT = rule("other shape", "as many eigenvalues as wanted")
IN_STORE = NONE | PATH


@functools.cache
def starts() -> str:
    path = tempfile.mkdtemp() + "/starts.npy"
    np.save(path, POINTS)
    return path


@functools.cache
def diagram() -> phase.PhaseDiagram:
    return phase.PhaseDiagram(phase.Uniform(2, 3, 2), TS)


@functools.cache
def gathering() -> phase.Branch:
    return phase.branch(cjx.UnnormalisedAttention(1.0), 2, order_parameters=[0.1, 0.2, 0.3], degree=16)


@functools.cache
def mean() -> cjx.MeanField:
    return cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=8, temperature=0.9)


def _cases() -> dict[str, Case]:
    tokens = np.ones((2, 3, 4))
    drawn = {"seed": 0, "dtype": jnp.float32}
    draws = {"seed": COUNT, "dtype": DTYPE}
    return {
        "branch": case(
            lambda: {"attention": cjx.UnnormalisedAttention(1.0), "d": 2, "order_parameters": [0.1, 0.2, 0.3],
                     "degree": 16}, dear=True, order_parameters=NONE | LIST,
        ),
        "Branch.coefficients": case({"index": 0}, gathering, index=rule("minus one, zero", "a point of the branch")),
        "stationary": case(lambda: {"field": mean(), "guess": jnp.zeros((9, 2)).at[0, 0].set(1.0)}, dear=True),
        "read_starts": case(lambda: {"path": starts()}),
        "phase_diagram": case(
            {"betas": np.array([1.0]), "times": np.array([0.0, 1.0]), "n": 3, "samples": 2, "progress": False},
            dear=True, betas=ARRAY, times=ARRAY, unnormalised=FLAG, starts=NONE, dtype=DTYPE, seed=COUNT,
            store=IN_STORE, resume=FLAG, devices=NONE, progress=FLAG,
        ),
        "PhaseDiagram": case(
            lambda: {"starts": phase.Uniform(2, 3, 2), "ts": TS, "chunk": 2}, ts=ARRAY, unnormalised=FLAG, seed=COUNT,
            chunk=NONE,
        ),
        "PhaseDiagram.__call__": case({"beta": jnp.asarray(1.0)}, diagram, dear=True),
        "PhaseDiagram.systems": case({"beta": jnp.asarray(1.0)}, diagram, dear=True),
        "PhaseDiagram.cost": case({"beta": 1.0}, diagram, beta=POSITIVE | COUNT),
        "Uniform": case({"samples": 2, "n": 3, "d": 2}),
        "Uniform.tokens": case(drawn, lambda: phase.Uniform(2, 3, 2), **draws),
        "Given": case({"x0": POINTS}, x0=ARRAY | SIZE),
        "Given.tokens": case(drawn, lambda: phase.Given(jnp.asarray(POINTS)), **draws),
        "ClosePairs": case({"cosine": 0.5}, cosine=BELOW_ONE),
        "ClosePairs.__call__": case({"x": tokens}, phase.ClosePairs, x=ARRAY | SIZE | FLOWN, finite=False),
        "GramRank": case({"threshold": 0.5}),
        "GramRank.__call__": case({"x": tokens}, phase.GramRank, x=ARRAY | SIZE | FLOWN, finite=False),
        "ClusterRank": case({"cosine": 0.5}, cosine=BELOW_ONE),
        "ClusterRank.__call__": case({"x": tokens}, phase.ClusterRank, x=ARRAY | SIZE | FLOWN, finite=False),
        "NormalisedEuler": case({"dt": 0.5}),
        "Adaptive": case({"tolerance": 0.5}, tolerance=NONE),
        "Identity": case({}),
        "Once": case({}),
        "PerBeta": case({}),
        "PerSystem": case({}),
        "Square": case(lambda: {"drawn": phase.Once()}),
        "Product": case(lambda: {"drawn": phase.Once()}),
        "Wigner": case(lambda: {"drawn": phase.Once()}),
        "Gaussian": case(lambda: {"drawn": phase.Once()}),
        "Orthogonal": case(lambda: {"drawn": phase.Once()}),
        "Spectrum": case(
            lambda: {"eigenvalues": np.array([1.0, 0.5]), "drawn": phase.Once()}, eigenvalues=LIST | LONG | REAL_OR_NOT
        ),
        "LikeQueryKey": case({"scale": jnp.asarray(0.5)}, scale=NUMBER | ONE | rule("traced", "may be traced")),
        "Fixed": case({"matrix": np.eye(2)}, matrix=ARRAY),
    }  # fmt: skip


CASES = {f"phase.{name}": one for name, one in _cases().items()}
