"""`Fused`: sums of exponentials in one kernel of an NVIDIA card, which is checked before it is used.

The kernels are in `kernels.py`, which is imported at the first use, since importing Pallas takes seconds.
"""

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import get_backend

from .._base.batching import FEW_DIMENSIONS
from .._base.checks import check_flag
from .._base.types import Masses, Tokens, Values
from .._model.mask import AbstractMask, CausalMask, FullMask, MatrixMask, SinkMask, WindowMask
from .._model.position import ALiBi, Decay, LogWeights
from .._model.summation import AbstractExponentialSum, ExponentialSums, Support, ratio
from .blocked import Blocked
from .dense import Dense


def _flag(value: bool) -> bool:
    # A converter refuses an array before equinox warns that it is static.
    check_flag(value, "interpret")
    return value


class Fused(AbstractExponentialSum):
    """All pairs of tokens in one kernel of an NVIDIA card, with O(n^2) time and O(n) memory, in float32.

    Derivatives recompute the pairs, in reverse mode and in forward mode. A batch under `jax.vmap` is one launch;
    systems of at most 64 tokens in at most four dimensions share a program of the kernel. `Auto` chooses `Fused` on
    NVIDIA cards for float32.

    The kernel adds log-weights of `ALiBi` and `Decay` to the scores. At its first use in a process, `Fused` sums a
    small cloud and compares the sums with those of `Dense`. Where the kernel cannot be built or its sums are wrong,
    `Fused` warns once, and `Blocked` sums in its place, as it does on other devices than NVIDIA cards;
    `stats["summation"]` of a run names the one that summed.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=100, d=3)
        >>> fused = cjx.SoftmaxAttention(2.0, summation=cjx.Fused(interpret=True)).average(x, None)
        >>> dense = cjx.SoftmaxAttention(2.0, summation=cjx.Dense()).average(x, None)
        >>> bool(jnp.allclose(fused, dense, atol=1e-5))
        True
        ```

    **Arguments:**

    - `interpret`: If True, the kernel is interpreted, operation by operation, on any device. This is slow, and meant
        for tests.

    ??? cite "Source"

        Milakov, Gimelshein, *Online normalizer calculation for softmax* (1805.02867); Dao et al., *FlashAttention*
        (2205.14135).
    """

    interpret: bool = eqx.field(default=False, static=True, converter=_flag)

    @property
    def supports(self) -> Support:
        masks = (FullMask, CausalMask, WindowMask, SinkMask, MatrixMask)
        return Support(masks=masks, dtypes=("float32",), positions=(ALiBi, Decay))

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values | None,
        masses: Masses | None,
        mask: AbstractMask,
        log_weights: LogWeights | None = None,
    ) -> ExponentialSums:
        widths = (part.shape[1] for part in (tokens, values) if part is not None)
        if in_use(self, is_few(*widths), log_weights is not None) is not self:
            return _IN_PLACE.exponential(queries, tokens, values, masses, mask, log_weights)
        return _exponential(queries, tokens, values, masses, mask, log_weights, interpret=self.interpret)


# The summation that replaces the kernel where the kernel cannot be used.
_IN_PLACE = Blocked()


def in_use(summation: Fused, few: bool, sloped: bool) -> AbstractExponentialSum:
    """The summation that sums: `summation`, or `Blocked` where the kernel cannot run or is wrong.

    `few` is True for tokens and values in at most four dimensions, `sloped` is True for sums with log-weights: each has
    a separate kernel.
    """
    return summation if summation.interpret or usable(few, sloped) else _IN_PLACE


def is_few(*dimensions: int) -> bool:
    """True if the products of tokens and values in these dimensions are elementwise."""
    return max(dimensions) <= FEW_DIMENSIONS


def _exponential(
    queries: Any, tokens: Any, values: Any, masses: Any, mask: AbstractMask, log_weights: Any = None, *, interpret: bool
) -> ExponentialSums:
    """The sums by the kernel."""
    slope = None if log_weights is None else log_weights.slope
    from .kernels import exponential

    return exponential(queries, tokens, values, masses, mask, slope, interpret)


@functools.cache
def usable(few: bool, sloped: bool) -> bool:
    """True if this process has an NVIDIA card on which the kernel gives the sums of `Dense`; warns once if not."""
    trouble = _trouble(few, sloped)
    if trouble:
        warnings.warn(f"Fused is not used in this process: {trouble}. Blocked sums in its place.", stacklevel=2)
    return not trouble


def on_nvidia() -> bool:
    """True if jax computes on an NVIDIA card."""
    return jax.default_backend() == "gpu" and "cuda" in get_backend().platform_version.lower()


def _trouble(few: bool, sloped: bool) -> str | None:
    """The reason why the kernel cannot be used here; None if it can."""
    if not on_nvidia():
        return f"its kernel is for NVIDIA cards, and jax computes on {jax.default_backend()}"
    d, n = (3, 150) if few else (20, 150)
    random = np.random.default_rng(0)
    queries, tokens, other = (random.normal(size=(n, d)).astype(np.float32) for _ in range(3))
    masses = random.integers(0, 3, n).astype(np.float32)

    slope = np.float32(0.02) if sloped else None

    def results(sums):
        def function(queries, tokens, masses, slope):
            extra = () if slope is None else (LogWeights(slope=slope),)
            out = sums(queries, tokens, None, masses, CausalMask(), *extra)
            return jnp.sum(ratio(out.total, out.normaliser) * other)

        return jax.jit(jax.value_and_grad(function, (0, 1, 2, 3)))(queries, tokens, masses, slope)

    # In another thread the sums are concrete even if the caller is traced, since jax traces each thread separately.
    with ThreadPoolExecutor(1) as thread:
        try:
            fused = thread.submit(results, functools.partial(_exponential, interpret=False)).result()
        except Exception as error:  # the compiler of Pallas raises its own types
            first = str(error).strip().split("\n")[0]
            return f"its kernel cannot be built here ({type(error).__name__}: {first})"
        dense = thread.submit(results, Dense().exponential).result()
    pairs = zip(jax.tree.leaves(fused), jax.tree.leaves(dense), strict=True)
    errors = [float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs]
    if not max(errors) < 1e-4:
        return f"its kernel is wrong here, by {max(errors):.1e} of the largest number of a small cloud"
    return None
