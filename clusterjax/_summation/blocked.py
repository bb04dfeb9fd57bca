"""`Blocked`: sums over blocks of rows and columns, without n x n arrays in the forward and backward passes.

**Algorithm.** Each block of rows is a scan over blocks of columns with a running maximum (`rows.py`), and the backward
pass recomputes each block. **Reference.** Rabe, Staats, *Self-attention does not need O(n^2) memory* (2112.05682).
**Invariant.** Beyond inputs and outputs, memory holds one block of scores and its derivatives.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._blocks import map_blocks
from .._check import check_integer
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask
from .base import AbstractExponentialSum, AbstractNearestSearch, ExponentialSums, HardmaxSums, Support
from .rows import exponential_rows, hardmax_rows, make_columns


# The default number of rows and columns of a block: on a CPU, the scores fit the cache; on an accelerator, which has a
# cost per operation, fewer and larger blocks are faster (benchmarks/accelerator.py).
_ON_CPU, _ELSEWHERE = 512, 4096


def _size(name: str) -> Callable[[int | None], int | None]:
    def convert(value: int | None) -> int | None:
        return None if value is None else check_integer(value, name, remedy="512 is a good start")

    return convert


class Blocked(AbstractExponentialSum, AbstractNearestSearch):
    """Blocks of rows times blocks of columns, with O(n^2) time and O(n) memory in the forward and backward passes.

    The backward pass recomputes each block instead of storing it. Blocks that the mask forbids are skipped, which
    halves the time of causal attention.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=100, d=3)
        >>> blocked = cjx.SoftmaxAttention(2.0, summation=cjx.Blocked(32, 32)).average(x, None)
        >>> dense = cjx.SoftmaxAttention(2.0, summation=cjx.Dense()).average(x, None)
        >>> bool(jnp.allclose(blocked, dense, atol=1e-5))
        True
        ```

    **Arguments:**

    - `block_rows`: The number of rows summed at once; None is 512 on a CPU and 4,096 elsewhere, where each system of a
        `jax.vmap` then holds up to 16 million scores: pass a smaller number if memory runs out.
    - `block_columns`: The number of columns in a block, with equal defaults; a block has rows times columns scores.

    **Raises:**

    - `ValueError` if a number of rows or columns is not a positive integer.
    """

    block_rows: int | None = eqx.field(default=None, converter=_size("block_rows"))
    block_columns: int | None = eqx.field(default=None, converter=_size("block_columns"))

    @property
    def supports(self) -> Support:
        return Support()

    def block(self) -> tuple[int, int]:
        """The numbers of rows and columns of a block on this machine."""
        usual = _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE
        return self.block_rows or usual, self.block_columns or usual

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        size, width = self.block()
        # The columns are split once, outside the loop over rows.
        columns = make_columns(tokens, values, masses, width)
        sum_rows = lambda rows, block: exponential_rows(block, rows, columns, mask)
        # With `recompute`, the backward pass holds the scores of one block of rows at a time.
        shift, sums = map_blocks(sum_rows, size, jnp.arange(queries.shape[0]), queries, recompute=True)
        return ExponentialSums(shift, sums[:, 0], sums[:, 1:])

    @eqx.filter_jit
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        size, width = self.block()
        columns = make_columns(tokens, values, masses, width)
        sum_rows = lambda rows, block: hardmax_rows(block, rows, columns, mask, tie_tolerance)
        sums = map_blocks(sum_rows, size, jnp.arange(queries.shape[0]), queries, recompute=True)
        return HardmaxSums(sums[:, 0], sums[:, 1:])
