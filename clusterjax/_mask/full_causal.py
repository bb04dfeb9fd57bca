"""`FullMask`, in which tokens attend to all tokens, and `CausalMask`, in which they attend to earlier tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._custom_types import IntScalar
from .base import AbstractMask


class FullMask(AbstractMask):
    """Every token attends to every token.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> print(cjx.FullMask().matrix(2))
        [[ True  True]
         [ True  True]]
        ```

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eq. (SA).
    """

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return jnp.ones(jnp.broadcast_shapes(jnp.shape(i), jnp.shape(j)), dtype=bool)

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return True

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return True

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(jnp.sum(masses), masses.shape)

    def check(self, n: int) -> None:
        pass


class CausalMask(AbstractMask):
    r"""Token i attends to the tokens $j \le i$: itself and its predecessors.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> print(cjx.CausalMask().matrix(3).astype(int))
        [[1 0 0]
         [1 1 0]
         [1 1 1]]
        >>> attention = cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask())
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=6, d=3)
        >>> whole, first = attention.average(x, None), attention.average(x[:4], None)
        >>> bool(jnp.allclose(whole[:4], first, atol=1e-5))  # later tokens have no effect on earlier ones
        True
        ```

    ??? cite "Source"

        Karagodin, Polyanskiy, Rigollet, *Clustering in causal attention masking* (2411.04990), eq. (CSA); Peat,
        *Clustering in Transformers*, eq. (3).
    """

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return j <= i

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # The last row sees the most columns: the block is reached if this row sees the first column.
        return first_j <= last_i

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # A block is covered if its last column is not after its first row.
        return last_j <= first_i

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.cumsum(masses)

    def check(self, n: int) -> None:
        pass
