"""The four kinds of position: sinusoidal, learned, relative, rotary.

Sinusoidal and learned positions are vectors that are added to the embedding (Vaswani et al., 1706.03762, Section 3.5;
Devlin et al., *BERT*, 1810.04805). Relative positions are vectors of the clipped distance j - i that attention adds to
keys and values (Shaw et al., 1803.02155, eqs. (3) to (5)). Rotary positions rotate queries and keys by angles that are
proportional to the position (Su et al., *RoFormer*, 2104.09864, eqs. (14) to (16) and (34)).

Invariants: positions count from 0; a table refuses texts with more tokens than rows; relative and rotary positions
depend on differences of positions only; a rotation preserves the norm of each query and key.
"""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import check_flag, check_float_dtype, check_integer, check_key, check_number, check_room
from .._base.numerics import at_least_single, rotate_pairs
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike
from ._checks import check_draw, check_features, check_sizes, weights


def _dimension(d: int) -> int:
    return check_integer(d, "d")


def _even(k: int) -> int:
    k = check_integer(k, "k", least=2)
    if k % 2:
        raise ValueError(f"k must be even, since entries are turned in pairs, but it is {k}; choose other heads.")
    return k


def _base(value: float) -> float:
    return check_number(value, "base", above=0, remedy="10000 is usual")


def sinusoidal_positions(
    n: int, d: int, *, base: float = 10_000.0, dtype: DTypeLike | None = None
) -> Float[Array, "n d"]:
    """The table $PE(p, 2i) = sin(p / b^{2i/d})$, $PE(p, 2i + 1) = cos(p / b^{2i/d})$ of positions p from 0, with base
    b.

    The angles are computed in float64 and the table is then rounded, since float32 angles of far positions have large
    errors.

    **Arguments:**

    - `n`: The number of positions.
    - `d`: The dimension; if d is odd, the last sine has no cosine.
    - `base`: b, > 0, the limit of the wavelengths in units of 2π.
    - `dtype`: The dtype of the table; None is the default float of JAX.

    **Returns:**

    The table, (n, d).

    **Raises:**

    - `ValueError` if `n` or `d` is not a positive integer, or `base` not positive.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5; *Transformers, part 2*, slides 24 and 25.
    """
    # This check also refuses a table that would not fit into any memory.
    n, d = check_sizes(n=n, d=d)
    check_room(n, "n", 40 * n * d, f"the angles in float64 and their table, d = {d}", remedy="ask for less")
    base, dtype = _base(base), check_float_dtype(dtype) or jnp.result_type(float)
    # (n, d), in float64; columns 2i and 2i + 1 share an angle.
    angles = np.arange(n)[:, None] / base ** (2 * (np.arange(d) // 2) / d)
    return jnp.asarray(np.where(np.arange(d) % 2, np.cos(angles), np.sin(angles)), dtype)


class AbstractPositions(AbstractPart):
    """A vector for each position, which is added to the embedding of the token at the position.

    Source: *Transformers, part 2*, slides 22 to 26.
    """

    @abstractmethod
    def __call__(self, n: int, dtype: DTypeLike) -> Float[Array, "n d"]:
        """The vectors of the first `n` positions, (n, d)."""

    @abstractmethod
    def longest(self) -> int | None:
        """The number of positions; None if it is unlimited."""


class SinusoidalPositions(AbstractPositions):
    """The positions of `sinusoidal_positions`, which are not trained and are defined for texts of any length.

    **Arguments:**

    - `d`, `base`: As in `sinusoidal_positions`.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5.
    """

    d: int = eqx.field(static=True, converter=_dimension)
    base: float = eqx.field(default=10_000.0, static=True, converter=_base)

    def __call__(self, n: int, dtype: DTypeLike) -> Float[Array, "n d"]:
        return sinusoidal_positions(n, self.d, base=self.base, dtype=dtype)

    def longest(self) -> int | None:
        return None


class LearnedPositions(AbstractPositions):
    """A table of trainable vectors, one for each position.

    **Arguments:**

    - `table`: The vectors, (positions, d).

    **Raises:**

    - `ValueError` if `table` is not a matrix; on use, if a text is longer than the table.

    ??? cite "Source"

        *Transformers, part 2*, slide 26; Devlin et al., *BERT* (1810.04805).
    """

    table: Float[Array, "positions d"] = eqx.field(converter=weights("table", "(positions, d)"))

    def __check_init__(self):
        if jnp.ndim(self.table) != 2 or 0 in jnp.shape(self.table):
            raise ValueError(
                f"table must be a matrix with a row for each position, but its shape is {jnp.shape(self.table)}; pass "
                "(positions, d)."
            )

    @classmethod
    def random(cls, key: PRNGKeyArray, positions: int, d: int, *, scale: float = 0.02, dtype: DTypeLike | None = None):
        """A table of normal numbers of standard deviation `scale`.

        Source: *Transformers, part 2*, slide 26: learned positions are typically initialised randomly.
        """
        check_key(key)
        shape = check_sizes(positions=positions, d=d)
        deviation, dtype = check_draw(scale, dtype)
        return cls(deviation * draw_normal(key, shape, dtype))

    def __call__(self, n: int, dtype: DTypeLike) -> Float[Array, "n d"]:
        n = check_integer(n, "n")
        dtype = check_float_dtype(dtype) or self.table.dtype
        # A slice beyond the table is shorter than the text, and the error would appear only in the sum with the
        # embedding.
        if n > self.table.shape[0]:
            raise ValueError(
                f"a text must have at most {self.table.shape[0]} tokens, as many as there are positions, but it has "
                f"{n}; cut it, or pass a longer table."
            )
        return self.table[:n].astype(dtype)

    def longest(self) -> int | None:
        return self.table.shape[0]


class RelativePositions(AbstractPart):
    """A vector for each distance j - i, clipped to $[-m, m]$, which attention adds to the key and optionally to the
    value.

    With $r = clip(j - i)$ the score of head h is $⟨q^h_i, k^h_j + a_r⟩$, and token i receives $v^h_j + b_r$ from token
    j. The heads share the vectors. The vectors depend on distances only and apply to texts of any length.

    **Arguments:**

    - `keys`: a, (2 m + 1, k), for the distances -m to m.
    - `values`: b, (2 m + 1, k); None is zero.

    **Raises:**

    - `ValueError` if `keys` has an even number of rows, or `values` has another shape than `keys`.

    ??? cite "Source"

        Shaw, Uszkoreit, Vaswani, *Self-attention with relative position representations* (1803.02155), eqs. (3) to
        (5); *Transformers, part 2*, slide 27.
    """

    keys: Float[Array, "distances k"] = eqx.field(converter=weights("keys", "(2 m + 1, k)"))
    values: Float[Array, "distances k"] | None = eqx.field(
        default=None, converter=weights("values", "(2 m + 1, k)", optional=True)
    )

    def __check_init__(self):
        shape = jnp.shape(self.keys)
        if len(shape) != 2 or shape[0] % 2 != 1 or shape[1] < 1:
            raise ValueError(
                f"keys must have a row for each distance from -m to m, but its shape is {shape}; pass (2 m + 1, k)."
            )
        if self.values is not None and jnp.shape(self.values) != shape:
            raise ValueError(
                f"keys and values must be of one shape, but they are {shape} and {jnp.shape(self.values)}; give both "
                "as many rows and columns."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        farthest: int,
        k: int,
        *,
        values: bool = True,
        scale: float = 0.02,
        dtype: DTypeLike | None = None,
    ):
        """Vectors of normal numbers of standard deviation `scale`, for the distances up to `farthest`.

        Source: *Transformers, part 2*, slide 27.
        """
        check_key(key)
        farthest = check_integer(farthest, "farthest", least=0)
        rows, k = check_sizes(farthest=2 * farthest + 1, k=k)
        deviation, dtype = check_draw(scale, dtype)
        # Keys and values are always drawn, so that the keys do not depend on `values`.
        drawn = deviation * draw_normal(key, (2, rows, k), dtype)
        return cls(drawn[0], drawn[1] if check_flag(values, "values") else None)

    @property
    def farthest(self) -> int:
        """m, the largest distance with a separate vector; larger distances share the vector of m."""
        return self.keys.shape[0] // 2

    def rows(self, n: int) -> np.ndarray:
        """The row of the table for each pair of tokens, (n, n): clip(j - i) + m.

        Source: 1803.02155, eq. (5).
        """
        n = check_integer(n, "n")
        # NumPy computes the rows while tracing: they depend on n alone and are a constant of the program.
        index = np.arange(n)
        return np.clip(index[None, :] - index[:, None], -self.farthest, self.farthest) + self.farthest


class RotaryPositions(AbstractPart):
    """The rotation of each query and key by angles proportional to its position, so that scores depend on distances
    only.

    Entries a and a + k/2 of a query or key at position p are rotated as one pair by the angle $p f_a$ with
    $f_a = b^{-2a/k}$; the paper pairs neighbouring entries, which differs only in the order of the entries. The score
    of two tokens is $⟨R_i q_i, R_j k_j⟩ = ⟨q_i, R_{j-i} k_j⟩$. Rotary positions have no trainable parameters and apply
    to texts of any length.

    !!! example

        ```python
        >>> import jax.numpy as jnp
        >>> from clusterjax import transformer
        >>> turned = transformer.RotaryPositions(2)(jnp.ones((3, 2)))  # places 0, 1 and 2, angle 1 between two
        >>> turned.round(2).tolist()[0], round(float(turned[2] @ turned[1]), 2)  # 2 cos 1
        ([1.0, 1.0], 1.08)
        ```

    **Arguments:**

    - `k`: The dimension of the queries and keys of one head, even.
    - `base`: b, > 0; the slowest pair makes one turn in about 2πb positions.

    **Raises:**

    - `ValueError` if `k` is not a positive even integer, or `base` not positive.

    ??? cite "Source"

        Su, Lu, Pan, Murtadha, Wen, Liu, *RoFormer: enhanced Transformer with rotary position embedding* (2104.09864),
        eqs. (14) to (16) and (34).
    """

    k: int = eqx.field(static=True, converter=_even)
    base: float = eqx.field(default=10_000.0, static=True, converter=_base)

    def __call__(self, x: Float[Array, "*heads n k"]) -> Float[Array, "*heads n k"]:
        """Rotate queries or keys, (..., n, k), by the angles of their positions.

        **Arguments:**

        - `x`: Queries or keys, (..., n, k), with positions along the last axis but one.

        **Raises:**

        - `ValueError` if the last axis of `x` is not of length k.

        Source: 2104.09864, eq. (34).
        """
        # The error of a failed broadcast would not name the rotation, and with k = 2 broadcasting would succeed.
        x = check_features(x, self.k)
        # The rotation is computed in float32 at least: in bfloat16 the angles of neighbouring positions may coincide.
        wide = at_least_single(x.dtype)
        # (n, k / 2), in float64: float32 angles of far positions have large errors.
        angles = np.arange(x.shape[-2])[:, None] / self.base ** (2 * np.arange(self.k // 2) / self.k)
        # The angles get all axes of `x`, as strict rank promotion requires.
        angles = angles.reshape((1,) * (x.ndim - 2) + angles.shape)
        cosines, sines = (jnp.asarray(table, wide) for table in (np.cos(angles), np.sin(angles)))
        return rotate_pairs(x.astype(wide), cosines, sines).astype(x.dtype)
