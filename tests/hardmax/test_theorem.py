"""The theorem on thousands of random clouds, many small and some large, with forms of every condition."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.hardmax import HardmaxLayer
from clusterjax.hardmax._certificate import make_certificate
from clusterjax.hardmax._limit import run_to_fixed_point, settled_tolerance


KINDS = ("normal", "heavy tails", "beside the origin", "on a shell", "clumps", "lattice", "flat", "mirrored", "late")
LATE = np.array([[-1.0, -0.75], [0.75, 0.25], [-0.25, -1.75], [-1.5, -0.25], [-2.0, 2.0]])  # token 0 from layer 1 on


def cloud(rng, kind, n, d):
    """Returns n nonzero, distinct tokens."""
    x = rng.normal(size=(n, d))
    if kind == "heavy tails":
        x = x / rng.uniform(0.05, 1, (n, 1))
    elif kind == "beside the origin":
        x = x + 3 * rng.normal(size=(1, d))
    elif kind == "on a shell":
        x = x / np.linalg.norm(x, axis=1, keepdims=True) * rng.uniform(0.95, 1, (n, 1))
    elif kind == "clumps":
        x = 3 * rng.normal(size=(3, d))[rng.integers(0, 3, n)] + 0.05 * x
    elif kind == "lattice":  # many ties
        drawn = np.unique(rng.integers(-8, 9, (20 * n, d)), axis=0)
        x = rng.permutation(drawn[drawn.any(axis=1)])[:n] / 4
    elif kind == "flat" and d > 1:
        x[:, -1] = x[:, 0]
    elif kind == "mirrored":  # the first tokens are on the axis, between pairs
        half = n // 3
        x[:half, 0] = 0
        x[half : 2 * half] = x[2 * half : 3 * half] * np.append(-1, np.ones(d - 1))
    elif kind == "late" and n > 5 and d > 1:
        x = 0.05 * x
        x[:5, :2] += LATE
        x[:5] *= 1 / np.append(1, np.where(np.arange(1, d) > 1, 20, 1))
    return x


def form_of(rng, d, condition):
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    A = (axes * condition ** -rng.uniform(0, 1, d)) @ axes.T
    return (A + A.T) / 2


GROUPS = {  # tokens, dimension, clouds, the largest condition of A
    "pairs on a line": (2, 1, 200, 1e0),
    "few in the plane": (6, 2, 900, 1e2),
    "few in the plane, badly conditioned": (6, 2, 500, 1e8),
    "some in space": (15, 3, 500, 1e6),
    "some in 5": (30, 5, 200, 1e6),
    "many in the plane": (200, 2, 35, 1e6),
    "many in 8": (200, 8, 21, 1e6),
}


@pytest.mark.exhaustive_cases(
    "few in the plane",
    "few in the plane, badly conditioned",
    "many in 8",
    "many in the plane",
    "some in 5",
    "some in space",
)
@pytest.mark.parametrize("group", GROUPS)
def test_theorem_holds(group):
    """Every clause holds for every cloud, also with late leaders and with points that are no vertices."""
    n, d, count, condition = GROUPS[group]
    rng = np.random.default_rng(sum(map(ord, group)))
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    clouds = np.stack([cloud(rng, "normal" if d == 1 and kind == "lattice" else kind, n, d) for kind in kinds])
    plain = [kind in ("mirrored", "late") or kind == "lattice" and i % 2 == 0 for i, kind in enumerate(kinds)]
    forms = np.stack([np.eye(d) if p else form_of(rng, d, condition ** rng.uniform()) for p in plain])
    alphas = np.where(plain, 1.0, 10 ** rng.uniform(-0.7, 1, count))
    run = lambda z, A, alpha: run_to_fixed_point(
        z, HardmaxLayer(alpha, A), jnp.asarray(5000), settled_tolerance(z.dtype)
    )
    ends = jax.tree.map(np.asarray, eqx.filter_jit(jax.vmap(run))(*map(jnp.asarray, (clouds, forms, alphas))))
    late = others = 0
    for b in range(count):
        end = jax.tree.map(lambda leaf, b=b: leaf[b], ends)
        found = make_certificate(end, clouds[b], np.ones(n, bool), forms[b])
        assert found.held, f"cloud {b}, {kinds[b]}, alpha {alphas[b]}:\n{found}"
        assert all(clause.margin > 0 for clause in found.clauses)
        late += int(end.leaders.first.max() > 0)
        others += int(not found.limit.is_vertex.all())
    if group == "few in the plane":
        assert late > 5, "hardly a cloud had a late leader"
        assert others > 5, "hardly a cloud had a point that is no vertex"
