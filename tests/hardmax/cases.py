"""Clouds with the same number of tokens in each test, so that tests share compiled programs."""

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax.hardmax import HardmaxLayer


N, DEEP = 7, 20


def padded(z0):
    """Pads `z0` to `N` tokens by smaller copies of its longest token; no token attends to the copies."""
    z0 = np.asarray(z0, float)
    longest = z0[np.argmax(np.linalg.norm(z0, axis=1))]
    return jnp.asarray(np.concatenate([z0, longest * 0.5 ** np.arange(1, N + 1 - len(z0))[:, None]]), float)


def path(z0, depth=DEEP, alpha=1, form=None):
    """The tokens of the plane after each layer, (depth + 1, n, 2)."""
    layer = HardmaxLayer(alpha, np.eye(2) if form is None else np.asarray(form, float))
    return np.asarray(cjx.iterate(layer, padded(z0), DEEP).xs)[: depth + 1, : len(z0)]
