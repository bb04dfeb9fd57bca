"""What the tests of `coarsen` share: fields, starting tokens, and the comparison with the loops."""

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from tests.reference import coarsening as reference


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


def agrees(x0, beta, t_end, tolerance, options, *, fast=False):
    """Times and pairs are those of the loops, and the difference is within the bound."""
    tree = coarsen(
        field(
            beta,
            options.get("value"),
            options.get("masses"),
            causal=options.get("causal", False),
            normalised=options.get("normalised", True),
            **({"query_key": options["form"]} if "form" in options else {}),
            **({"offset": options["offset"]} if "offset" in options else {}),
        ),
        x0,
        t_end,
        tolerance=tolerance,
    )
    times, pairs, tokens = reference.mergers(x0, beta, t_end, tolerance, fast=fast, **options)
    assert len(tree) == len(times)
    off = np.abs(tree.times - times)
    # The reference is right to some 1e-10 itself.
    assert np.all(off <= (tree.bound + 1e-9) * times), (off / np.maximum(times, 1e-300), tree.bound)
    if len(set(np.round(times, 6))) == len(times):
        assert tree.pairs.tolist() == [list(pair) for pair in pairs]
    for t in (0.1 * t_end, 0.4 * t_end, t_end):
        # Tokens of a cluster are at one point, and chains of tokens that are 1e-5 apart are; later causal ones lag.
        np.testing.assert_allclose(tree.at(t), tokens(t), atol=1e-3 if options.get("causal") else 1e-5 * (len(x0) - 1))
    return tree
