"""Faults of what many small systems are summed by, of phase diagrams, and of what is refused at the door."""

from tests.mutants.mutant import Mutant


_DENSE = "clusterjax/_summation/dense.py"
_BATCHES = ("tests/base/test_batching.py",)
_PHASE = ("tests/phase/test_diagram.py",)

BATCHES = (
    Mutant(
        "products-normalise-without-masses",
        _DENSE,
        "    weights = weights if masses is None else weights * masses[None, :]\n"
        "    normaliser = jnp.sum(weights, axis=1)",
        "    normaliser = jnp.sum(weights, axis=1)\n"
        "    weights = weights if masses is None else weights * masses[None, :]",
        _BATCHES,
    ),
    Mutant(
        "products-forget-their-mask",
        _DENSE,
        "        scores = jnp.where(mask.matrix(n), scores, -jnp.inf)",
        "        scores = jnp.where(mask.matrix(n).T, scores, -jnp.inf)",
        _BATCHES,
    ),
    Mutant(
        "a-batch-mixes-what-systems-share",
        _DENSE,
        "[next(remaining) if is_batched else leaf for",
        "[leaf[: of_systems[0].shape[0]] if is_batched else leaf for",
        _BATCHES,
    ),
    Mutant(
        "a-batch-holds-all-of-its-scores",
        _DENSE,
        "max(1, most // scores)",
        "len(of_systems[0])",
        _BATCHES,
    ),
    Mutant(
        "a-batch-is-summed-one-system-at-a-time",
        _DENSE,
        "max(1, most // scores)",
        "1",
        _BATCHES,
    ),
    Mutant(
        "a-rule-is-differentiated",
        "clusterjax/_base/batching.py",
        "ad.primitive_jvps[_call] = _derivative",
        "ad.primitive_jvps[_call] = lambda p, t, plain, **_: (plain(*p), list(map(jnp.zeros_like, plain(*p))))",
        _BATCHES,
    ),
    Mutant(
        "a-batch-of-close-pairs-counts-itself",
        "clusterjax/_observables/similarity.py",
        "            close = (cosines > cosine) & (index[:, None] != jnp.arange(n)[None, :])[:, :, None]",
        "            close = cosines > cosine",
        _BATCHES,
    ),
    Mutant(
        "blocks-are-joined-with-their-filling",
        "clusterjax/_base/batching.py",
        "    return a.reshape(-1, *a.shape[2:])[:n]",
        "    return a.reshape(-1, *a.shape[2:])[-n:]",
        _BATCHES,
    ),
    Mutant(
        "a-diagram-saves-a-step-early",
        "clusterjax/phase/_diagram.py",
        "        counts = jnp.ceil(ts * jnp.exp(-log_step) - 1e-3)",
        "        counts = jnp.floor(ts * jnp.exp(-log_step))",
        _PHASE,
    ),
    Mutant(
        "unnormalised-steps-are-not-slowed",
        "clusterjax/phase/_diagram.py",
        "at_time(attention.offset, 0.0, ts.dtype) + log_factor",
        "at_time(attention.offset, 0.0, ts.dtype)",
        _PHASE,
    ),
    Mutant(
        "a-diagram-forgets-its-mask",
        "clusterjax/phase/_diagram.py",
        "kind(beta, query_key=b, mask=self.mask)",
        "kind(beta, query_key=b)",
        _PHASE,
    ),
    Mutant(
        "a-mask-that-is-not-served-passes",
        "clusterjax/_model/summation.py",
        "    if served.masks is not None and mask is not None and not isinstance(mask, served.masks):",
        "    if False and served.masks is not None:",
        ("tests/summation/test_names.py",),
    ),
    Mutant(
        "a-function-mask-may-leave-a-token-alone",
        "clusterjax/_model/mask.py",
        "        return allowed | (i == j)",
        "        return allowed",
        ("tests/model/test_functions.py",),
    ),
)
