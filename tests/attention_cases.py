"""The kinds of attention that several files of tests share: how each is built, and the double loop that defines it."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.helpers import normal, sphere_tokens
from tests.reference import attention as reference


N, D = 9, 3
BETA = 1.7
X = sphere_tokens(1, N, D)
FORM = normal(2, D, D)
VALUES = normal(3, N, 2)
MASSES = jnp.asarray([0.0, 0.0, 0.5, 2.0, 0.0, 1.0, 0.3, 0.0, 4.0])
GRAPH = np.random.default_rng(5).random((N, N)) < 0.4
np.fill_diagonal(GRAPH, True)

MASKS = {
    "full": (cjx.FullMask(), reference.full),
    "causal": (cjx.CausalMask(), reference.causal),
    "window": (cjx.WindowMask(3), reference.window(3)),
    "matrix": (cjx.MatrixMask(GRAPH), reference.permitted(GRAPH)),
}


def softmax(beta=BETA, **options):
    return cjx.SoftmaxAttention(beta, **options)


def unnormalised(beta=BETA, **options):
    return cjx.UnnormalisedAttention(beta, offset=0.4, **options)


def distance(beta=BETA, **options):
    return cjx.DistanceAttention(beta, **options)


def cosine(beta=BETA, **options):
    return cjx.CosineAttention(beta, **options)


def hardmax(beta=BETA, **options):
    return cjx.HardmaxAttention(**options)


def KERNEL(s):
    return 1 / (1.5 - 0.4 * s) + 0.2 * s * s


def kernel(**options):
    return lambda beta=None, **more: cjx.KernelAttention(KERNEL, **options, **more)


# Each entry says how a kind is built in the tests, and gives its double loop.
KINDS = {
    "softmax": (softmax, lambda x, *how: reference.softmax_weights(x, BETA, *how)),
    "unnormalised": (unnormalised, lambda x, *how: reference.unnormalised_weights(x, BETA, *how, 0.4)),
    "hardmax": (hardmax, reference.hardmax_weights),
    "distance": (distance, lambda x, *how: reference.distance_weights(x, BETA, *how)),
    "cosine": (cosine, lambda x, *how: reference.cosine_weights(x, BETA, *how)),
    "kernel": (kernel(), lambda x, *how: reference.kernel_weights(x, KERNEL, True, *how)),
    "kernel, not normalised": (
        kernel(normalise=False),
        lambda x, *how: reference.kernel_weights(x, KERNEL, False, *how),
    ),
}
# Both kernels are compared with double loops; for tests of identities the unnormalised kernel is enough.
every_kind = pytest.mark.parametrize("kind", KINDS)
kinds = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kernel"])


@eqx.filter_jit
def outcome(attention, x=X, values=VALUES, masses=None, t=0.0):
    """The weights, the averages and, for softmax, the logarithms of the partition functions."""
    out = attention.weights(x, t, masses), attention.average(x, values, t, masses)
    if isinstance(attention, cjx.SoftmaxAttention):
        return *out, attention.log_partition(x, t, masses)
    return out


def masks_of(n):
    """Masks for n tokens by name, each with the reference of its double loop."""
    graph = np.random.default_rng(5).random((n, n)) < 0.3
    np.fill_diagonal(graph, True)
    return {
        "full": (cjx.FullMask(), reference.full),
        "causal": (cjx.CausalMask(), reference.causal),
        "window": (cjx.WindowMask(5), reference.window(5)),
        "causal window": (cjx.WindowMask(5, causal=True), reference.causal_window(5)),
        "sink": (cjx.SinkMask(5, kept=2), reference.sink(5, 2)),
        "matrix": (cjx.MatrixMask(graph), reference.permitted(graph)),
    }
