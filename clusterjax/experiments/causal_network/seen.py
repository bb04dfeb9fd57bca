"""What one network does to some texts, and beside it its controls."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ... import probe
from ...probe.measures.tally import Average, average_of


class Seen(NamedTuple):
    """What one network does to some texts.

    **Attributes:**

    - `first`: The first token against the others.
    - `cosine`: The mean cosine of all pairs, the first token in them, (levels,).
    - `heads`: The weight that heads give to places.
    """

    first: probe.FirstToken
    cosine: Average
    heads: probe.PositionHeads

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.cosine.mean)


def seen_of(first: probe.FirstToken, heads: probe.PositionHeads, tokens: np.ndarray, articles: np.ndarray) -> Seen:
    """The same, with the mean cosine of all pairs of texts of so many tokens; errors are over `articles`, (texts,)."""
    over_articles = lambda one: average_of(one.values, articles)
    first = probe.FirstToken(*map(over_articles, first))
    heads = probe.PositionHeads(*({place: over_articles(one) for place, one in of.items()} for of in heads))
    assert first.cosine.values is not None and first.cosine_of_others.values is not None
    # Of n (n - 1) / 2 pairs n - 1 are with the first token: the others weigh (n - 2) / n, that token 2 / n.
    n = np.asarray(tokens)[:, None]
    cosine = average_of((2 * first.cosine.values + (n - 2) * first.cosine_of_others.values) / n, articles)
    return Seen(first, cosine, heads)


@dataclass(frozen=True, eq=False)
class Found:
    """One network beside its controls.

    **Attributes:**

    - `name`: What it is called in a sentence.
    - `trained`, `shuffled`: What it does to the texts, and to their tokens in random order.
    - `random`: What networks of random weights do to the texts, drawn as before training.
    - `tokens`: How many tokens a text has, at most.
    - `articles`: The article of each text, over which errors are.
    - `spread`: How the random weights were drawn, in words.
    - `usual`: The same as `random` of weights of the spread that `transformers` takes where no file says another; none
        where the network began with that.
    """

    name: str
    trained: Seen
    shuffled: Seen
    random: tuple[Seen, ...]
    tokens: int
    articles: np.ndarray
    spread: str
    usual: tuple[Seen, ...] = ()

    @property
    def late(self) -> int:
        """The last level before the last norm."""
        return self.trained.levels - 2

    def onset(self, times: float, seen: Seen | None = None) -> int | None:
        """The first level at which the first token is surely so many times as long as the others, and at the next one
        too; None if there is none."""
        apart = (self.trained if seen is None else seen).first.apart(times)
        held = np.flatnonzero(apart[:-1] & apart[1:])
        return int(held[0]) if held.size else None
