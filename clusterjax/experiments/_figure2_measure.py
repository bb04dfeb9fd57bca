"""What figure 2 measures of the heads of a network: what tokens receive, sinks, and groups of heads that are alike."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from .. import probe
from ..probe._tally import average_of
from ._controls import Run, measured, runs_of
from ._networks import Network


CLUSTERS = 2  # as the paper says
REPLICATES = 100
BATCH = 16
STABLE = 0.8  # adjusted Rand index
APART = 0.1  # by how much the correlation within a cluster exceeds that between two


@dataclass(frozen=True, eq=False)
class Heads:
    """What is measured of the heads of a network, over texts.

    **Attributes:**

    - `activation`: What each token of one text receives.
    - `of_sinks`: The mass on the first token and on special ones, beside its controls.
    - `targets`: What each of these is called; one that is the first token of every text is not there twice.
    - `of_heads`: The correlations of heads, beside their controls.

    Source: this library.
    """

    activation: probe.Activation
    of_sinks: probe.Controls
    targets: dict[str, str]
    of_heads: probe.Controls

    @property
    def sinks(self) -> probe.AttentionSinks:
        """Of the trained network on its texts."""
        return self.of_sinks.trained

    @property
    def alike(self) -> probe.HeadCorrelations:
        """Likewise."""
        return self.of_heads.trained

    @property
    def strongest(self) -> tuple[str, int, int]:
        """Target, layer and head of the largest excess over uniform attention."""
        name = max(self.targets, key=lambda target: self.sinks.excess[target].mean.max())
        excess = self.sinks.excess[name].mean
        layer, head = np.unravel_index(np.argmax(excess), excess.shape)
        return name, int(layer), int(head)

    @property
    def between(self) -> np.ndarray:
        """The mean correlation of two different heads, (layers,)."""
        return self.alike.between()

    @property
    def between_resampled(self) -> np.ndarray:
        """The same for each resample of the texts, (replicates, layers)."""
        others = ~np.eye(self.alike.correlation.mean.shape[-1], dtype=bool)
        return self.alike.resampled[..., others].mean(axis=-1)

    @property
    def lines(self) -> list[Run]:
        """The mean correlation of two heads: mean and error over texts, (layers,), trained and controls."""
        return runs_of(self.of_heads, lambda found: found.between_heads)

    @property
    def beyond(self) -> tuple[probe.Comparison, probe.Comparison]:
        """The excess of the strongest sink, at the head that has most of it, beyond those of the controls."""
        return self.of_sinks.compare(largest_of(self.strongest[0]))

    def groups(self, layer: int) -> "Groups":
        """The clusters at a layer, from 0."""
        return groups_of(self.alike, layer)

    def over_twice(self, name: str) -> np.ndarray:
        """Where the mass exceeds twice the uniform one by two standard errors, (layers, heads)."""
        mass, excess = self.sinks.mass[name].values, self.sinks.excess[name].values
        assert mass is not None and excess is not None
        beyond = 2 * excess - mass  # as mass - excess is uniform
        return beyond.mean(axis=0) > 2 * standard_error(beyond)


class Groups(NamedTuple):
    """The clusters of heads at one layer.

    **Attributes:**

    - `heads`: The heads of each, from 0, the largest first.
    - `within`: The mean correlation of two heads of each; NaN for a head alone.
    - `across`: That of two heads of different clusters.
    - `margins`: By how much the former exceeds the latter, with its error by resampling texts.
    - `stability`: The adjusted Rand index of the clusters and those of a resample.

    Source: this library.
    """

    heads: list[list[int]]
    within: list[float]
    across: float
    margins: list[tuple[float, float]]
    stability: float

    @property
    def real(self) -> bool:
        """Whether they are clusters: stable, of two heads or more, more alike than heads of different ones."""
        return self.stability >= STABLE and all(margin > max(APART, 2 * error) for margin, error in self.margins)

    @property
    def word(self) -> str:
        """What they are, in a word."""
        if self.real:
            return "clusters"
        return "outlier" if self.stability >= STABLE and min(map(len, self.heads)) == 1 else "unsure"

    @property
    def numbers(self) -> list[list[int]]:
        """The heads of each, from 1."""
        return [[head + 1 for head in heads] for heads in self.heads]


def groups_of(alike: probe.HeadCorrelations, layer: int) -> Groups:
    """The clusters at a layer, and how far they are any.

    Source: this library.
    """
    labels, mean, resampled = alike.clusters.labels[layer], alike.correlation.mean[layer], alike.resampled[:, layer]
    apart = labels[:, None] != labels[None, :]
    found = alike.clusters.groups(layer)
    within, margins = [], []
    for heads in found:
        inside = np.isin(np.arange(len(labels)), heads)
        pairs = inside[:, None] & inside[None, :] & ~np.eye(len(labels), dtype=bool)
        within.append(float(_mean(mean, pairs)))
        spread = _mean(resampled, pairs, apart).std(ddof=1)
        margins.append((float(_mean(mean, pairs, apart)), float(spread)))
    return Groups(found, within, float(_mean(mean, apart)), margins, float(alike.clusters.stability[layer]))


def _mean(stack: np.ndarray, pairs: np.ndarray, less: np.ndarray | None = None) -> np.ndarray:
    """The mean over pairs of heads, less that over others; NaN if there are none."""
    if not pairs.any() or (less is not None and not less.any()):
        return np.full(stack.shape[:-2], np.nan)
    found = stack[..., pairs].mean(axis=-1)
    return np.asarray(found if less is None else found - stack[..., less].mean(axis=-1))


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of the mean over the first axis; NaN if that has one entry."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


def measure_heads(found: Network, seed: int, store: Path | None = None) -> Heads:
    """All measures of one network on its texts; the text that is shown alone is the first. A run that was killed goes
    on from the folder `store`.

    **Raises:**

    - `ValueError` if the network has one head.

    Source: this library.
    """
    model, texts = found.model, found.texts
    if model.num_heads < 2:
        raise ValueError(f"albert must have two heads or more for figure 2, but {model.name!r} has one; name another.")
    key = jr.key(seed)
    sinks = functools.partial(probe.attention_sinks, special=found.special, batch_size=BATCH)
    alike = functools.partial(
        probe.head_correlations, clusters=CLUSTERS, replicates=REPLICATES, key=key, batch_size=BATCH
    )
    below = lambda name: None if store is None else store / name
    of_sinks = measured(sinks, found, key, store=below("sinks"))
    of_heads = measured(alike, found, key, store=below("heads"))
    one = probe.token_activation(model, probe.Encoded(texts.token_ids[:1], texts.mask[:1]))
    return Heads(one, of_sinks, targets_of(of_sinks.trained), of_heads)


def largest_of(name: str) -> Callable[[probe.AttentionSinks], probe.Average]:
    """Picks the excess of the head that has most of it in the mean, (levels,), with the values of texts.

    Source: this library.
    """

    def pick(sinks: probe.AttentionSinks) -> probe.Average:
        excess = sinks.excess[name]
        assert excess.values is not None
        heads = excess.mean.argmax(axis=1)
        values = excess.values[:, np.arange(len(heads)), heads]
        return average_of(values)

    return pick


def targets_of(sinks: probe.AttentionSinks) -> dict[str, str]:
    """What the targets are called; a special token that always stands first is that, and not another.

    Source: this library.
    """
    values: dict[str, Any] = {name: average.values for name, average in sinks.mass.items()}
    same = [name for name, each in values.items() if name != "first" and np.array_equal(each, values["first"])]
    first = " ".join(["first token", *same])
    return {"first": first} | {name: name for name in values if name not in ("first", *same)}
