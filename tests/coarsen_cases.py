"""Fields, starting tokens and the comparison with the loops, which the tests of `coarsen` share."""

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax._coarsen import bound
from tests.oracles import unit_tokens
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
    return unit_tokens(seed, n, d)


def unit(x):
    return np.asarray(x) / np.linalg.norm(x, axis=-1, keepdims=True)


def agrees(x0, beta, t_end, tolerance, options):
    """Check that times and pairs equal those of the reference by loops, up to the bound, and return the merge tree."""
    given = {"query_key" if name == "form" else name: value for name, value in options.items()}
    tree = coarsen(field(beta, **given), x0, t_end, tolerance=tolerance)
    times, pairs, tokens = reference.mergers(x0, beta, t_end, tolerance, **options)
    assert len(tree) == len(times)
    off = np.abs(tree.times - times)
    # The reference itself has an error of about 1e-10.
    assert np.all(off <= (tree.bound + 1e-9) * times), (off / np.maximum(times, 1e-300), tree.bound)
    if len(set(np.round(times, 6))) == len(times):
        assert tree.pairs.tolist() == [list(pair) for pair in pairs]
    for t in (0.1 * t_end, 0.4 * t_end, t_end):
        # A cluster is one point in the tree, but a chain of tokens 1e-5 apart in the reference; causal tokens lag.
        np.testing.assert_allclose(tree.at(t), tokens(t), atol=1e-3 if options.get("causal") else 1e-5 * (len(x0) - 1))
    return tree


def gradient_of_time(law, followed, merger, first=0):
    """The gradient of the logarithm of a merger time with respect to the clusters at the start of leg `first`."""
    gradients, after = None, followed.last
    for index in range(len(followed.legs) - 1, first - 1, -1):
        leg = followed.legs[index]
        if gradients is not None:
            nothing = np.zeros(len(leg.cloud.first))
            gradients = bound._before_change(law, leg.cloud, after, nothing, gradients, [0], np.zeros(1))
            gradients = bound.backwards(law, leg, gradients, np.array([merger.time]))
        if index == merger.index:
            gradients = bound._gradient(law, leg, merger)[0][None]
        after = leg.cloud
    return gradients[0]
