"""What figure 2 measures of the heads of a network: what tokens receive, sinks, and groups of heads that are alike.

Two heads are compared by the correlation of their attention maps, mean over texts. Groups are those of average linkage
on 1 - correlation, cut at two, as the paper says. Any set of heads can be cut in two, so that a cut counts as clusters
only if it is stable under resampled articles (adjusted Rand index), has no head alone, and heads of a group are more
alike than heads of different groups by a margin and by two standard errors. All errors are over articles, each with all
its texts.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from ... import probe
from ...probe.measures.tally import average_of, clustered_error
from ..framework.controls import DRAWS, Run, measured, runs_of
from ..framework.experiment import MOST_OF_NETWORK, Settings
from ..framework.networks import Network
from ..framework.parameters import parameter


CLUSTERS = 2  # as the paper says
BATCH = 16
STABLE = 0.8  # adjusted Rand index
APART = 0.1  # by how much the correlation within a cluster exceeds that between two


@dataclass(frozen=True)
class Parameters:
    """What of figure 2 can be set."""

    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32)
    replicates: int = parameter(100, "how often articles are resampled", least=20, most=10_000)
    layer: int = parameter(
        0, "the layer at which a text is shown, 0 being the one with the strongest sink", least=0, most=MOST_OF_NETWORK
    )


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 2 shows: what is measured of the heads of a network, over texts.

    **Attributes:**

    - `activation`: What each token of one text receives.
    - `of_sinks`: The mass on the first token and on special ones, beside its controls.
    - `targets`: What each of these is called; one that is the first token of every text is not there twice.
    - `of_heads`: The correlations of heads, beside their controls.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    p: Parameters
    activation: probe.Activation
    of_sinks: probe.Controls
    targets: dict[str, str]
    of_heads: probe.Controls
    articles: np.ndarray

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
        # The target whose largest excess is the largest of all.
        name = max(self.targets, key=lambda target: self.sinks.excess[target].mean.max())
        excess = self.sinks.excess[name].mean
        # argmax of a matrix is a number in its flattened form.
        layer, head = np.unravel_index(np.argmax(excess), excess.shape)
        return name, int(layer), int(head)

    @property
    def shown(self) -> int:
        """The layer at which a text is shown, from 0."""
        return self.p.layer - 1 if self.p.layer else self.strongest[1]

    @property
    def between(self) -> np.ndarray:
        """The mean correlation of two different heads, (layers,)."""
        return self.alike.between()

    @property
    def between_resampled(self) -> np.ndarray:
        """The same for each resample of the articles, (replicates, layers)."""
        # The diagonal holds each head with itself, which is 1 and says nothing.
        others = ~np.eye(self.alike.correlation.mean.shape[-1], dtype=bool)
        return self.alike.resampled[..., others].mean(axis=-1)

    @property
    def lines(self) -> list[Run]:
        """The mean correlation of two heads: mean and error over texts, (layers,), trained and controls."""
        return runs_of(self.of_heads, lambda alike: alike.between_heads)

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
        # The uniform mass of a text is mass - excess, so that mass - 2 * uniform is this, text by text.
        beyond = clustered_error(2 * excess - mass, self.articles)
        return beyond.mean > 2 * beyond.error


class Groups(NamedTuple):
    """The clusters of heads at one layer.

    **Attributes:**

    - `heads`: The heads of each, from 0, the largest first.
    - `within`: The mean correlation of two heads of each; NaN for a head alone.
    - `across`: That of two heads of different clusters.
    - `margins`: By how much the former exceeds the latter, with its error by resampling articles.
    - `stability`: The adjusted Rand index of the clusters and those of a resample.
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
    """The clusters at a layer, and how far they are any."""
    labels, mean, resampled = alike.clusters.labels[layer], alike.correlation.mean[layer], alike.resampled[:, layer]
    # (heads, heads): pairs of heads of different clusters.
    apart = labels[:, None] != labels[None, :]
    groups = alike.clusters.groups(layer)
    within, margins = [], []
    for heads in groups:
        # Pairs of two different heads of this cluster; a head alone has none.
        inside = np.isin(np.arange(len(labels)), heads)
        pairs = inside[:, None] & inside[None, :] & ~np.eye(len(labels), dtype=bool)
        within.append(float(_mean(mean, pairs)))
        # The margin of each resample, whose spread is the standard error.
        spread = _mean(resampled, pairs, apart).std(ddof=1)
        margins.append((float(_mean(mean, pairs, apart)), float(spread)))
    return Groups(groups, within, float(_mean(mean, apart)), margins, float(alike.clusters.stability[layer]))


def _mean(stack: np.ndarray, pairs: np.ndarray, less: np.ndarray | None = None) -> np.ndarray:
    """The mean over pairs of heads, less that over others; NaN if there are none."""
    # The mean over no pairs is none.
    if not pairs.any() or (less is not None and not less.any()):
        return np.full(stack.shape[:-2], np.nan)
    mean = stack[..., pairs].mean(axis=-1)
    return np.asarray(mean if less is None else mean - stack[..., less].mean(axis=-1))


def measure(p: Parameters, network: Network, settings: Settings, say: Callable[[str], None]) -> Results:
    """All measures of one network on its texts; the text that is shown alone is the first. A run that was killed goes
    on from the folder `settings.store`.

    **Raises:**

    - `ValueError` if the network has one head.
    """
    model, texts, store = network.model, network.texts, settings.store
    if model.num_heads < 2:
        raise ValueError(f"albert must have two heads or more for figure 2, but {model.name!r} has one; name another.")
    say(f"measuring {model.num_heads} heads in {model.num_layers} layers on {len(texts.mask)} texts, with two controls")
    key = jr.key(settings.seed)
    sinks = functools.partial(probe.attention_sinks, special=network.special, batch_size=BATCH)
    alike = functools.partial(
        probe.head_correlations, clusters=CLUSTERS, replicates=p.replicates, key=key, batch_size=BATCH,
        units=network.articles,
    )  # fmt: skip
    # Two folders: the two surveys keep files of the same names.
    below = lambda name: None if store is None else store / name
    of_sinks = measured(sinks, network, key, draws=p.draws, store=below("sinks"))
    of_heads = measured(alike, network, key, draws=p.draws, store=below("heads"))
    # One text, the first: its tokens are drawn by name.
    one = probe.token_activation(model, probe.Encoded(texts.token_ids[:1], texts.mask[:1]))
    return Results(p, one, of_sinks, targets_of(of_sinks.trained), of_heads, network.articles)


def largest_of(name: str) -> Callable[[probe.AttentionSinks], probe.Average]:
    """Picks the excess of the head that has most of it in the mean, (levels,), with the values of texts."""

    def pick(sinks: probe.AttentionSinks) -> probe.Average:
        excess = sinks.excess[name]
        assert excess.values is not None
        # The head is chosen by the mean over texts and then kept for all of them: a largest head for each text would
        # always be beyond zero.
        heads = excess.mean.argmax(axis=1)
        values = excess.values[:, np.arange(len(heads)), heads]
        return average_of(values)

    return pick


def targets_of(sinks: probe.AttentionSinks) -> dict[str, str]:
    """What the targets are called; a special token that always stands first is that, and not another."""
    values: dict[str, Any] = {name: average.values for name, average in sinks.mass.items()}
    # [CLS] stands first in every text: the first token and it are one target.
    same = [name for name, each in values.items() if name != "first" and np.array_equal(each, values["first"])]
    first = " ".join(["first token", *same])
    return {"first": first} | {name: name for name in values if name not in ("first", *same)}
