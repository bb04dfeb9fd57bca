"""A trained network beside several networks as it might have started: one start alone says nothing of another."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe
from ...probe.measures.controls import _comparison
from .experiment import plus_minus


STARTS = 3


class Starts(NamedTuple):
    """A statistic before training.

    **Attributes:**

    - `each`: The mean over texts of each network, (networks, levels).
    - `beyond`: The trained network against them, paired by text, (levels,).
    """

    each: np.ndarray
    beyond: probe.Comparison

    @property
    def mean(self) -> np.ndarray:
        """Over the networks, (levels,)."""
        return self.each.mean(axis=0)

    @property
    def error(self) -> np.ndarray:
        """The standard error of `mean`, from the spread between networks, (levels,)."""
        return self.each.std(axis=0, ddof=1) / np.sqrt(len(self.each))

    def words(self, level: int = -1, digits: int = 3) -> str:
        """Mean, error and each network at a level."""
        every = ", ".join(f"{value:.{digits}f}" for value in self.each[:, level])
        return (
            f"{plus_minus(self.mean[level], self.error[level], digits)} over {len(self.each)} random starts ({every})"
        )

    def exceeds(self, level: int = -1) -> bool:
        """Whether the trained network is surely above."""
        return bool(self.beyond.exceeds()[level])


def starts_of(trained: np.ndarray, starts: Sequence[np.ndarray], units: np.ndarray | None = None) -> Starts:
    """Of what each text has, (texts, levels), in the trained network and in each other.

    The error is that of `probe.controls`, with the `units` of `clustered_error`, such as the article of each text.
    """
    drawn = np.stack(starts)
    each = drawn.mean(axis=1)
    # The squared error of the mean over networks; that over texts is added by `_comparison`.
    between = each.var(axis=0, ddof=1) / len(each)
    # Paired by text: the mean over networks is taken for each text before the difference.
    return Starts(each, _comparison(trained - drawn.mean(axis=0), between, float(len(each) - 1), units))


def keys_of(seed: int, starts: int = STARTS) -> list[PRNGKeyArray]:
    """A PRNG key for each start; the first of many are the same as fewer."""
    return [jr.fold_in(jr.key(seed), start) for start in range(starts)]


def seed_of(key: PRNGKeyArray) -> int:
    """An integer that a key decides, for what takes a seed."""
    # 31 bits: NumPy and others take no negative seed.
    return int(jax.device_get(jr.bits(key, dtype=jnp.uint32))) >> 1
