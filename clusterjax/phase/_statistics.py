"""The statistics of a phase diagram: one number for each system, for arrays of systems with the systems last."""

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._check import check_array, check_number, refusal
from .._misc import matmul
from .._observables.similarity import close_fraction


class AbstractStatistic(AbstractPart):
    """A statistic that gives one number for each of many systems."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the statistic in the results."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A description of the statistic in one sentence."""

    @abstractmethod
    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        """The statistic of each system of unit tokens."""


class ClosePairs(AbstractStatistic):
    r"""The fraction of ordered pairs $i \ne j$ with $\langle x_i, x_j\rangle >$ `cosine`: the published statistic.

    **Arguments:**

    - `cosine`: The threshold, in [-1, 1).

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    cosine: float = 0.999

    def __check_init__(self):
        check_number(self.cosine, "cosine", least=-1, below=1, remedy="pass the cosine of an angle")

    @property
    def name(self) -> str:
        return "close_pairs"

    @property
    def description(self) -> str:
        return f"share of ordered pairs with inner product above {self.cosine:g}"

    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        # `vmap` needs systems first; on a CPU a rule of `close_fraction` moves them last again.
        x = jnp.transpose(check_systems(x), (2, 1, 0))
        return jax.vmap(close_fraction, (0, None))(x, jnp.asarray(self.cosine, x.dtype))


class GramRank(AbstractStatistic):
    """The number of eigenvalues of the matrix of inner products above `threshold`.

    **Arguments:**

    - `threshold`: A positive number.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    threshold: float = 1e-3

    def __check_init__(self):
        check_number(self.threshold, "threshold", above=0, remedy="pass 1e-3, say")

    @property
    def name(self) -> str:
        return "gram_rank"

    @property
    def description(self) -> str:
        return f"number of eigenvalues of the matrix of inner products above {self.threshold:g}"

    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        x = check_systems(x)
        # X X^T and X^T X differ only by zero eigenvalues, so that the smaller of both suffices.
        few = gram(x) if x.shape[1] <= x.shape[0] else gram(jnp.swapaxes(x, 0, 1))
        # The threshold is absolute, as published; the eigenvalues of n unit tokens sum to n.
        return jnp.sum(jnp.linalg.eigvalsh(few) > self.threshold, axis=1).astype(x.dtype)


class ClusterRank(AbstractStatistic):
    r"""The rank of the matrix with ones where $\langle x_i, x_j\rangle >$ `cosine`, else zeros: a count of clusters.

    **Arguments:**

    - `cosine`: The threshold, in [-1, 1).

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    cosine: float = 0.9999

    def __check_init__(self):
        check_number(self.cosine, "cosine", least=-1, below=1, remedy="pass the cosine of an angle")

    @property
    def name(self) -> str:
        return "cluster_rank"

    @property
    def description(self) -> str:
        return f"rank of the matrix of ones where inner products exceed {self.cosine:g}"

    def __call__(self, x: Float[Array, "d n systems"]) -> Float[Array, " systems"]:
        x = check_systems(x)
        near = (gram(x) > self.cosine).astype(x.dtype)
        # A token belongs to its own cluster, whatever rounding does to its norm.
        near = jnp.maximum(near, jnp.eye(x.shape[1], dtype=x.dtype)[None])
        # Absolute eigenvalues are the singular values; the threshold is that of `numpy.linalg.matrix_rank`.
        sizes = jnp.abs(jnp.linalg.eigvalsh(near))
        largest = jnp.max(sizes, axis=1, keepdims=True)
        return jnp.sum(sizes > largest * (x.shape[1] * jnp.finfo(x.dtype).eps), axis=1).astype(x.dtype)


def check_systems(x: Any) -> Float[Array, "d n systems"]:
    """`x` as an array, if it holds systems of at least two tokens.

    NaN tokens are accepted: `ClosePairs` then is NaN, but `GramRank` and `ClusterRank` are meaningless numbers, because
    comparisons with NaN are false. `PhaseDiagram` replaces every statistic of such a system by NaN.
    """
    x = check_array(x, "x", shape=("d", "n", "systems"), finite=False)
    if x.shape[1] < 2:
        raise refusal("x", "hold at least 2 tokens per system", f"its shape is {x.shape}", "pass (d, n, systems)")
    return x


def gram(x: Float[Array, "d n systems"]) -> Float[Array, "systems n n"]:
    """The inner products of the tokens of each system."""
    y = jnp.transpose(x, (2, 1, 0))
    return matmul(y, jnp.swapaxes(y, 1, 2))
