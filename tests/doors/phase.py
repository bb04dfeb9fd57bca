"""Cases of `clusterjax.phase`: phase diagrams of two systems, their laws, starts and statistics."""

import functools
import tempfile

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax import phase
from tests.doors.cases import Case, case


TS = jnp.asarray([0.0, 1.0])
POINTS = np.ones((2, 3, 2))


@functools.cache
def starts() -> str:
    path = tempfile.mkdtemp() + "/starts.npy"
    np.save(path, POINTS)
    return path


diagram = functools.cache(lambda: phase.PhaseDiagram(phase.Uniform(2, 3, 2), TS))
gathering = functools.cache(
    lambda: phase.branch(cjx.UnnormalisedAttention(1.0), 2, order_parameters=[0.1, 0.2, 0.3], degree=16)
)
mean = functools.cache(lambda: cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=8, temperature=0.9))


def _cases() -> dict[str, Case]:
    tokens = np.ones((2, 3, 4))
    drawn = {"seed": 0, "dtype": jnp.float32}
    return {
        "branch": case(
            lambda: dict(attention=cjx.UnnormalisedAttention(1.0), d=2, order_parameters=[0.1, 0.2, 0.3], degree=16)
        ),
        "Branch.coefficients": case({"index": 0}, gathering),
        "stationary": case(lambda: {"field": mean(), "guess": jnp.zeros((9, 2)).at[0, 0].set(1.0)}),
        "read_starts": case(lambda: {"path": starts()}),
        "phase_diagram": case(
            {"betas": np.array([1.0]), "times": np.array([0.0, 1.0]), "n": 3, "samples": 2, "progress": False}
        ),
        "PhaseDiagram": case(lambda: {"starts": phase.Uniform(2, 3, 2), "ts": TS, "chunk": 2}),
        "PhaseDiagram.__call__": case({"beta": jnp.asarray(1.0)}, diagram),
        "PhaseDiagram.systems": case({"beta": jnp.asarray(1.0)}, diagram),
        "PhaseDiagram.cost": case({"beta": 1.0}, diagram),
        "Uniform": case({"samples": 2, "n": 3, "d": 2}),
        "Uniform.tokens": case(drawn, lambda: phase.Uniform(2, 3, 2)),
        "Given": case({"x0": POINTS}),
        "Given.tokens": case(drawn, lambda: phase.Given(jnp.asarray(POINTS))),
        "ClosePairs": case({"cosine": 0.5}),
        "ClosePairs.__call__": case({"x": tokens}, phase.ClosePairs, finite=False),
        "GramRank": case({"threshold": 0.5}),
        "GramRank.__call__": case({"x": tokens}, phase.GramRank, finite=False),
        "ClusterRank": case({"cosine": 0.5}),
        "ClusterRank.__call__": case({"x": tokens}, phase.ClusterRank, finite=False),
        "NormalisedEuler": case({"dt": 0.5}),
        "Adaptive": case({"tolerance": 0.5}),
        "Identity": case({}),
        "Once": case({}),
        "PerBeta": case({}),
        "PerSystem": case({}),
        "Square": case(lambda: {"drawn": phase.Once()}),
        "Product": case(lambda: {"drawn": phase.Once()}),
        "Wigner": case(lambda: {"drawn": phase.Once()}),
        "Gaussian": case(lambda: {"drawn": phase.Once()}),
        "Orthogonal": case(lambda: {"drawn": phase.Once()}),
        "Spectrum": case(lambda: {"eigenvalues": np.array([1.0, 0.5]), "drawn": phase.Once()}),
        "LikeQueryKey": case({"scale": jnp.asarray(0.5)}),
        "Fixed": case({"matrix": np.eye(2)}),
    }


CASES = {f"phase.{name}": one for name, one in _cases().items()}
