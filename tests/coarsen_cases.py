"""What the tests of `coarsen` share: fields and starting tokens."""

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx


def field(beta, value=None, masses=None, *, causal=False, normalised=True, **options):
    mask = cjx.CausalMask() if causal else cjx.FullMask()
    kind = cjx.SoftmaxAttention if normalised else cjx.UnnormalisedAttention
    return cjx.AttentionField(kind(beta, mask=mask, **options), value, masses=masses)


def coarsen(flow, x0, t_end, **options):
    return cjx.coarsen(flow, jnp.asarray(x0), t_end, **options)


def on_the_circle(*angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def sphere(n, d, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)
