"""The interface of the summations: how sum_j w_ij v_j is computed, whoever w is."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import check_instance
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask


class ExponentialSums(eqx.Module):
    r"""The sums $\sum_j m_j e^{\langle q_i, y_j\rangle}$ and $\sum_j m_j e^{\langle q_i, y_j\rangle} v_j$, each divided
    by $e^{\text{shift}_i}$, so that neither overflows.

    The shift carries no derivative of its own: whatever is computed from the triple must not depend on it.

    **Arguments:**

    - `shift`: (n,), of the size of the largest exponent in each row.
    - `normaliser`: (n,), the first sum, scaled.
    - `total`: (n, k), the second sum, scaled.

    Source: this library.
    """

    shift: Float[Array, " n"]
    normaliser: Float[Array, " n"]
    total: Float[Array, "n k"]


class HardmaxSums(eqx.Module):
    """The mass of the tokens that attain the maximum of each row, and the sum of their values.

    **Arguments:**

    - `normaliser`: (n,), their mass.
    - `total`: (n, k), the sum of mass times value.

    Source: this library.
    """

    normaliser: Float[Array, " n"]
    total: Float[Array, "n k"]


class AbstractSummation(eqx.Module):
    """How attention's sums over tokens are computed.

    A summation knows nothing of softmax, spaces or time. It is given queries q, tokens y, their values v, their
    masses m (None: all one) and a mask, and sums over the tokens that row i may attend to. Queries are as many as
    tokens. Values of None are the tokens themselves, which some summations have for less than any other values.

    Source: this library.
    """

    @abstractmethod
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        """The sums of e^{<q_i, y_j>} and of e^{<q_i, y_j>} v_j, stably scaled."""

    @abstractmethod
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        """The sums over the tokens whose <q_i, y_j> is within `tie_tolerance` |q_i| max_j |y_j| of the largest."""


def ratio(total: Float[Array, "n k"], normaliser: Float[Array, " n"]) -> Float[Array, "n k"]:
    """`total` over `normaliser` by row; zero where there is nothing to average."""
    empty = normaliser == 0
    return jnp.where(empty[:, None], 0, total / jnp.where(empty, 1, normaliser)[:, None])


def check_summation(summation: Any, name: str = "summation") -> AbstractSummation:
    """`summation`, if it is one; a ValueError else."""
    return check_instance(
        summation, name, AbstractSummation, "a summation of clusterjax", "pass Auto() or Dense(), for example"
    )
