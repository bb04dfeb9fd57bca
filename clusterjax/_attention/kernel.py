r"""Attention with a user-defined kernel, a function of the inner products.

**Algorithm.** No summation serves a general kernel. Scores are formed for a block of rows at a time, (rows, n), masked,
and multiplied by the values. For a masked pair, the function receives the score of the row's token with itself, so that
the pair can neither overflow nor make a derivative NaN. For a token without mass, only the derivative of the sums by
its mass is kept: its kernel, where the kernel is finite.

**Invariants.** `average` equals `weights(x) @ values` up to rounding. Memory is (rows, n), also for derivatives, which
recompute each block.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._blocks import map_blocks
from .._check import call_traced, check_array, check_callable, check_flag, refusal
from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask, check_mask
from .._misc import matmul
from .._schedule import StoredParameter, optional_parameter
from .._summation import AbstractSummation, Dense, ratio
from .base import AbstractAttention, check_dimension, check_square


_PAIRS = 2**22  # the approximate number of pairs in one block


_WHAT = "a function of inner products"


def _check_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return check_callable(function, "function", _WHAT, takes=1)


def _check_normalise(normalise: bool) -> bool:
    return check_flag(normalise, "normalise")


class KernelAttention(AbstractAttention):
    r"""Attention with a user-defined kernel, $w_{ij} = f(s_{ij}) / \sum_k f(s_{ik})$ with $s_{ij} = \langle x_i, B
    x_j\rangle$; with `normalise=False`, $w_{ij} = f(s_{ij}) / n$.

    With a mask, the sum, or n, counts the tokens that i may attend to; with masses, $w_{ij} \propto m_j f(s_{ij})$. A
    row whose weights sum to zero is zero. The kernel may be negative; a normalised row whose sum is near zero may then
    be arbitrarily large. For $f = e^{\beta s}$, `SoftmaxAttention` and `UnnormalisedAttention` are faster and avoid
    overflow.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> bounded = cjx.KernelAttention(lambda s: jnp.where(s > 0.5, 1.0, 0.0))  # bounded confidence
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=32, d=2)
        >>> traj = cjx.simulate(cjx.AttentionField(bounded), x, jnp.array([0.0, 60.0]))
        >>> [int(cjx.num_clusters(x, radius=0.1)) for x in traj.xs]
        [20, 2]
        ```

    **Arguments:**

    - `function`: `function(s)` takes an array of inner products and returns the kernel of each, as real numbers of the
        same shape. `function` is a JAX function, or a callable `equinox.Module`, whose arrays are parameters and may be
        differentiated.
    - `query_key`: The form $B = Q^\top K$, (d, d), or a schedule. None is the identity.
    - `normalise`: If True, each row is divided by its sum; otherwise by the mass of the tokens it may attend to.
    - `mask`: The tokens that each token may attend to.

    **Raises:**

    - `ValueError` if `function` does not take one argument or `query_key` is not a square real matrix; on use, if
        `function` returns another shape.

    ??? cite "Source"

        Criscitiello et al., *Synchronization on circles and spheres with nonlinear interactions* (2405.18273): tokens
        attract each other by a function of their inner products (`normalise=False`). Tsai et al., *Transformer
        Dissection* (1908.11775): a kernel in place of the exponential, divided by the sum of the row.
    """

    function: Callable[..., Any] = eqx.field(converter=_check_function)
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    # The converter checks the flag before storage, since equinox warns of an array in a static field.
    normalise: bool = eqx.field(default=True, converter=_check_normalise, static=True, kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)

    def __check_init__(self):
        check_square(self.query_key, "query_key")
        check_mask(self.mask)

    @property
    def summation(self) -> AbstractSummation:
        """The summation by pairs, since no other summation serves a general kernel."""
        return Dense()

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        return self._rows(self.queries(x, t), jnp.arange(x.shape[0]), x, masses)

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        values, n = x if values is None else values, x.shape[0]
        of_rows = lambda queries, index: matmul(self._rows(queries, index, x, masses), values)
        return map_blocks(of_rows, max(1, _PAIRS // n), self.queries(x, t), jnp.arange(n), recompute=True)

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        check_dimension(self.query_key, "query_key", d)

    def _rows(
        self, queries: Float[Array, "rows d"], index: Int[Array, " rows"], x: Tokens, masses: Masses | None
    ) -> Float[Array, "rows n"]:
        """The weights of the rows with the numbers `index`."""
        scores, n = matmul(queries, x.T), x.shape[0]
        allowed = jnp.broadcast_to(self.mask.allowed(index[:, None], jnp.arange(n)[None, :]), scores.shape)
        # The score of a row's token with itself, which the function must accept in any case.
        own = jnp.take_along_axis(scores, index[:, None], axis=1)
        if masses is not None:
            has_mass, fixed = (masses > 0)[None, :], lax.stop_gradient(scores)
            scores = jnp.where(has_mass, scores, fixed)
            allowed = allowed & (has_mass | jnp.isfinite(self._kernel(fixed, x.dtype)))
        kernel = jnp.where(allowed, self._kernel(jnp.where(allowed, scores, own), x.dtype), 0)
        masses = jnp.ones(n, x.dtype) if masses is None else masses
        kernel = kernel * masses[None, :]
        if self.normalise:
            return ratio(kernel, jnp.sum(kernel, axis=1))
        return ratio(kernel, self.mask.attended_mass(masses)[index])

    def _kernel(self, scores: Float[Array, "rows n"], dtype: Any) -> Float[Array, "rows n"]:
        kernel = check_array(
            call_traced(self.function, "function", _WHAT, scores),
            "function(s)",
            shape=scores.shape,
            finite=False,
            remedy="return the kernel of each inner product",
        )
        if jnp.iscomplexobj(kernel):
            raise refusal("function(s)", "be real", f"its dtype is {kernel.dtype}", "return its real part")
        return kernel.astype(dtype)
