"""The three kinds of position: sinusoidal, learned, relative."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._misc import as_float, draw_normal


def _check_size(name: str, size: Any, least: int = 1) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < least:
        raise ValueError(f"{name} must be an integer of at least {least}, but it is {size!r}; pass such a one.")


def sinusoidal_positions(n: int, d: int, *, base: float = 10_000.0, dtype: Any = None) -> Float[Array, "n d"]:
    r"""$PE(p, 2i) = \sin(p / 10000^{2i/d})$ and $PE(p, 2i + 1) = \cos(p / 10000^{2i/d})$, positions from 0.

    Computed in float64 and then rounded: in float32 the angles of far positions would be off by more than the table is.

    **Arguments:**

    - `n`: How many positions.
    - `d`: Dimension; if it is odd the last sine has no cosine.
    - `base`: What the wavelengths grow to, in units of 2 pi.
    - `dtype`: Of the table; None is JAX's default float.

    **Returns:**

    (n, d).

    **Raises:**

    - `ValueError` if `n` or `d` is not a positive integer, or `base` not positive.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5; *Transformers, part 2*, slides 24 and 25.
    """
    _check_size("n", n)
    _check_size("d", d)
    if not base > 0:
        raise ValueError(f"base must be positive, but it is {base!r}; 10000 is usual.")
    angles = np.arange(n)[:, None] / base ** (2 * (np.arange(d) // 2) / d)
    return jnp.asarray(np.where(np.arange(d) % 2, np.cos(angles), np.sin(angles)), dtype or jnp.result_type(float))


class AbstractPositions(eqx.Module):
    """A vector for each position, which is added to the embedding of the token there.

    Source: *Transformers, part 2*, slides 22 to 26.
    """

    @abstractmethod
    def __call__(self, n: int, dtype: Any) -> Float[Array, "n d"]:
        """The vectors of the first `n` positions."""

    @abstractmethod
    def longest(self) -> int | None:
        """How many positions there are; None if there is no end to them."""


class SinusoidalPositions(AbstractPositions):
    """`sinusoidal_positions` of dimension `d`: not trained, and for texts of any length.

    **Arguments:**

    - `d`, `base`: As there.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5.
    """

    d: int = eqx.field(static=True)
    base: float = eqx.field(default=10_000.0, static=True)

    def __check_init__(self):
        _check_size("d", self.d)

    def __call__(self, n: int, dtype: Any) -> Float[Array, "n d"]:
        return sinusoidal_positions(n, self.d, base=self.base, dtype=dtype)

    def longest(self) -> int | None:
        return None


class LearnedPositions(AbstractPositions):
    """A table of vectors, one for each position, which training moves.

    **Arguments:**

    - `table`: (positions, d).

    **Raises:**

    - `ValueError` if `table` is not a matrix; on use, if a text is longer than the table.

    ??? cite "Source"

        *Transformers, part 2*, slide 26; Devlin et al., *BERT* (1810.04805).
    """

    table: Float[Array, "positions d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        if jnp.ndim(self.table) != 2 or 0 in jnp.shape(self.table):
            raise ValueError(
                f"table must be a matrix with a row for each position, but its shape is {jnp.shape(self.table)}; pass "
                "(positions, d)."
            )

    @classmethod
    def random(cls, key: PRNGKeyArray, positions: int, d: int, *, scale: float = 0.02, dtype: Any = None):
        """A table of normal numbers of standard deviation `scale`.

        Source: *Transformers, part 2*, slide 26: they are typically initialised randomly.
        """
        _check_size("positions", positions)
        _check_size("d", d)
        return cls(scale * draw_normal(key, (positions, d), dtype or jnp.result_type(float)))

    def __call__(self, n: int, dtype: Any) -> Float[Array, "n d"]:
        if n > self.table.shape[0]:
            raise ValueError(
                f"a text must have at most {self.table.shape[0]} tokens, as many as there are positions, but it has "
                f"{n}; cut it, or pass a longer table."
            )
        return self.table[:n].astype(dtype)

    def longest(self) -> int | None:
        return self.table.shape[0]


class RelativePositions(eqx.Module):
    r"""A vector for each distance $j - i$, clipped to $[-m, m]$, added to the key (and to what is passed on).

    With $r = \mathrm{clip}(j - i)$ the score of head h is $\langle q^h_i, k^h_j + a_r\rangle$, and what token i takes
    from token j is $v^h_j + b_r$. The heads share the vectors. Nothing of it depends on where a text begins, and it
    holds for texts of any length.

    **Arguments:**

    - `keys`: a, (2 m + 1, k), for the distances -m to m.
    - `values`: b, of the same shape; None is zero.

    **Raises:**

    - `ValueError` if `keys` has not an odd number of rows, or `values` another shape.

    ??? cite "Source"

        Shaw, Uszkoreit, Vaswani, *Self-attention with relative position representations* (1803.02155), eqs. (3) to
        (5); *Transformers, part 2*, slide 27.
    """

    keys: Float[Array, "distances k"] = eqx.field(converter=as_float)
    values: Float[Array, "distances k"] | None = eqx.field(
        default=None, converter=lambda v: None if v is None else as_float(v)
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
        cls, key: PRNGKeyArray, farthest: int, k: int, *, values: bool = True, scale: float = 0.02, dtype: Any = None
    ):
        """Vectors of normal numbers of standard deviation `scale`, for the distances up to `farthest`.

        Source: *Transformers, part 2*, slide 27.
        """
        _check_size("farthest", farthest, 0)
        _check_size("k", k)
        shape = (2, 2 * farthest + 1, k)
        drawn = scale * draw_normal(key, shape, dtype or jnp.result_type(float))
        return cls(drawn[0], drawn[1] if values else None)

    @property
    def farthest(self) -> int:
        """m: distances beyond it share its vector."""
        return self.keys.shape[0] // 2

    def rows(self, n: int) -> np.ndarray:
        """Which row belongs to each pair, (n, n): clip(j - i) + m.

        Source: 1803.02155, eq. (5).
        """
        index = np.arange(n)
        return np.clip(index[None, :] - index[:, None], -self.farthest, self.farthest) + self.farthest
