"""Where the layers of trained networks lie between a deterministic flow and noise: how much of a layer's attention
update is the update of the mean layer?

Layers whose heads are drawn anew tend to an equation (2604.01978) in which the mean head is the drift, and the
deviations from the mean are the noise. For a state x, the tokens that enter a layer, let U_k(x) be the update that the
attention of layer k, with its own norm, positions and output matrix, gives to x. For independent draws U_k the mean of
⟨U_k, U_m⟩ over pairs k ≠ m, divided by the mean of |U_k|², estimates |E U|² / E|U|², the share of the mean in the mean
square, which is the variance around zero. A share of 1 is a deterministic flow, 0 is noise alone, and layers that
oppose each other have a share below 0. The same ratio is taken of the updates of heads, over the pairs of all heads or
of those of one layer only.

Each token has its own ratio, and the share of a text is the mean of the ratios over its tokens, then over the states x
at the entries of all layers: in an inner product over tokens the few tokens with large updates, such as a sink, would
decide alone. The first token has the weight 1/n and is kept; the share without it, and the share by an inner product
over tokens, are reported as well. The formula neglects that the state at layer l depends on the layers before l;
control (a) has the same dependence. Agreement by distance is the mean cosine, over tokens and states, of the updates of
layers k and m; if layers are independent draws, its expectation is the same at all |k - m|.

Controls: (a) networks of random weights, drawn as before training; (b) the updates of each layer and head, turned by an
independent random matrix: a permutation of the coordinates with random signs, under which an inner product has the mean
0 and the variance of uniformly random rotations. The trained network is one draw, so that it is compared with the
spread of single draws of a control, and not with the error of their mean. All layers of an ALBERT are one layer, whose
share is 1, so that its heads are measured.

"By three standard errors" means, with few units, by the number of standard errors that Student's t-distribution exceeds
with the same probability; errors over texts are over articles.

What would refute each claim, as written before the first run on any trained network:
- "The share of the layers, or of the heads, is above that of both controls": the difference from one control is not
  above zero by three standard errors, which include the spread of single draws;
- "The mean head explains less than half": the share of the layers is not below 1/2 by three standard errors;
- "Layers are no independent draws, because neighbours agree more than distant layers": the mean cosine of neighbours
  less that of layers more than half of the depth apart is not above zero by three standard errors over articles, or not
  above that of both controls by as many, or is reached by more than .00135 of random orders of the layers, since
  texts alone do not show how much the layers of one network differ by chance.
The identities fail where the update of layer l at its own state is not that which the network adds, where the layers of
an ALBERT do not have the share 1, or where turned updates do not have the mean share 0.

Source: Koubbi, Geshkovski, Rigollet, *Homogenized transformers* (2604.01978); no claim of the paper is about a trained
network.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO, time_series
from ...probe.measures.controls import _comparison
from ...probe.measures.survey import Clustered, clustered_error, threshold
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.causal import ABSENT, LENGTH, OWN, QUICK_TEXTS, SMOLLM2, name_of, reading_or_own, untrained
from ..shared.controls import keys_of
from ..shared.layer_updates import Shares, shares_of, turns_of
from ..shared.layout import one_legend, panels
from ..shared.networks import articles_words, network_of, one_of_each


TEXTS, CONTROLLED = 32, 6  # the largest number of texts, and of texts of a control, of different articles
SIGMAS, RARE = 3.0, 0.00135  # three standard errors of a normal variable, and the probability of a larger value
ROUNDING = 1e-4  # the relative rounding error of an update in float32
TURNED, RANDOM = "turned", "random weights"
LOOKS = {"network": (OKABE_ITO[0], "-", "o"), TURNED: (OKABE_ITO[1], "--", "s"), RANDOM: (OKABE_ITO[2], ":", "^")}
SURELY = "by three standard errors, or, with few units, by as many as are as improbable"


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(4, "the number of networks of random weights", least=2, most=32, quick=2)
    turns: int = parameter(8, "the number of draws of the matrices that turn updates", least=2, most=256, quick=3)
    orders: int = parameter(9999, "the number of random orders of the layers", least=999, most=10**6)


class Compared(NamedTuple):
    """A trained network and its controls."""

    called: str
    measured: Measured
    articles: np.ndarray  # the article of each text, the independent unit of errors
    trained: Shares  # (texts, ...)
    rows: np.ndarray  # the texts of the controls
    controls: dict[str, Shares]  # of `TURNED` and `RANDOM`, (draws, rows, ...)
    off: float  # the largest relative error of the update of a layer at its own state
    shared: bool  # True if all layers are one layer

    def mean(self, of: "Values") -> Clustered:
        return clustered_error(of(self.trained), self.articles)

    def beyond(self, of: "Values", control: str) -> probe.Comparison:
        """The number of the trained network less that of one more draw of the control, paired by text."""
        drawn = of(self.controls[control])
        spread = drawn.mean(axis=1).var(ddof=1, keepdims=True) * (1 + 1 / len(drawn))
        differences = of(self.trained)[self.rows] - drawn.mean(axis=0)
        return _comparison(differences[:, None], spread, len(drawn) - 1.0, self.articles[self.rows])

    def above_controls(self, of: "Values") -> bool:
        return all(bool(self.beyond(of, control).exceeds(SIGMAS)[0]) for control in self.controls)

    def words(self, of: "Values") -> str:
        """The number of the trained network and of its controls, in words."""
        drawn = {control: of(shares).mean(axis=1) for control, shares in self.controls.items()}
        listed = "; ".join(
            f"{control} {plus_minus(values.mean(), values.std(ddof=1), 4)}, the spread of {len(values)} draws"
            for control, values in drawn.items()
        )
        return f"{plus_minus(*self.mean(of)[:2], 4)} (± over {articles_words(self.articles)}); {listed}"


class Results(NamedTuple):
    p: Parameters
    own: bool  # True if the causal network is the model of the package, because SmolLM2 is not installed
    causal: Compared
    albert: Compared
    rare: float  # the share of random orders of the layers with as large a difference of neighbours and distant layers


Values = Callable[[Shares], np.ndarray]  # a number of each text, (..., texts)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    num_texts = settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)
    few = replace(settings, most_texts=num_texts, length=settings.length or LENGTH)
    reading, own = reading_or_own(few, say)
    network = network_of(few)
    size = {"texts": len(reading.articles), "tokens": reading.texts.mask.shape[1], "seeds": p.draws}
    on = Measured(OWN if own else SMOLLM2, reading.data, size | {"layers": reading.model.num_layers})
    first = probe.bundled_start if network.bundled else None
    causal = compare(p, settings.seed, say, name_of(own), on, reading.model, reading.texts, reading.articles, untrained)
    called = "the ALBERT of the package" if network.bundled else network.model.name
    albert = compare(
        p, settings.seed, say, called, network.measured(seeds=p.draws), network.model, network.texts,
        network.articles, lambda model, key: probe.randomise(model, key, initial=first),
    )  # fmt: skip
    say(f"ordering layers at random {p.orders} times")
    return Results(p, own, causal, albert, rarity(causal.trained.cosines.mean((0, 1)), p.orders, settings.seed))


def compare(
    p: Parameters, seed: int, say: Say, called: str, on: Measured, model: probe.Model, texts: probe.Encoded,
    articles: np.ndarray, random: Callable[[probe.Model, Any], probe.Model],
) -> Compared:  # fmt: skip
    """The shares in a network and its controls; `random` makes a network of random weights."""
    rows = one_of_each(articles, CONTROLLED)
    few = probe.Encoded(texts.token_ids[rows], texts.mask[rows])
    say(f"measuring {called}, {len(articles)} texts")
    trained, off = shares_of(model, texts)
    say(f"turning the updates of {called}")
    turned, _ = shares_of(model, few, turns_of(model, p.turns, seed))
    say(f"measuring {p.draws} networks like {called}, with random weights")
    drawn = [shares_of(random(model, key), few)[0] for key in keys_of(seed, p.draws)]
    controls = {TURNED: turned, RANDOM: jax.tree.map(lambda *draws: np.concatenate(draws), *drawn)}
    shared = len(model.network.blocks()) == 1
    return Compared(called, on, articles, jax.tree.map(lambda draws: draws[0], trained), rows, controls, off, shared)


def near_of(cosines: np.ndarray) -> Any:
    """The mean cosine of neighbouring layers less that of layers more than half of the depth apart, (...)."""
    return cosines[..., distances(cosines) == 1].mean(-1) - far_of(cosines)


def far_of(cosines: np.ndarray) -> Any:
    return cosines[..., distances(cosines) > cosines.shape[-1] / 2].mean(-1)


def distances(cosines: np.ndarray) -> np.ndarray:
    return np.abs(np.subtract.outer(*[np.arange(cosines.shape[-1])] * 2))


def rarity(cosines: np.ndarray, orders: int, seed: int) -> float:
    """The share of random orders of the layers in which neighbours agree as much more than distant layers."""
    rng, ours = np.random.default_rng(seed), near_of(cosines)
    others = np.array([near_of(cosines[np.ix_(k, k)]) for k in (rng.permutation(len(cosines)) for _ in range(orders))])
    # The order of the network is one of the orders; equal orders differ by rounding.
    return float((1 + np.sum(others >= ours - 1e-12)) / (1 + orders))


LAYERS: Values = lambda shares: shares.layers.mean(-1)
WITHOUT_FIRST: Values = lambda shares: shares.without_first.mean(-1)
UNWEIGHTED: Values = lambda shares: shares.unweighted.mean(-1)
HEADS: Values = lambda shares: shares.heads.mean(-1)
SAME: Values = lambda shares: shares.same.mean(-1)
NEAR: Values = lambda shares: near_of(shares.cosines.mean(-3))
FAR: Values = lambda shares: far_of(shares.cosines.mean(-3))


@claim(f"less than {ROUNDING:g} of the largest entry", kind="identity")
def own_layer(m: Results) -> Found:
    """The update of each layer at its own state is that which the network adds there."""
    off = max(m.causal.off, m.albert.off)
    return Found(f"the largest difference of {m.causal.called} and {m.albert.called} is {off:.1e}", off < ROUNDING, off)


@claim(f"less than {ROUNDING:g} at each state, with random weights too", kind="identity")
def one_layer(m: Results) -> Found | None:
    """The share of the layers of {m.albert.called}, which are one layer, is 1."""
    if not m.albert.shared:
        return None
    off = max(float(np.abs(shares.layers - 1).max()) for shares in (m.albert.trained, m.albert.controls[RANDOM]))
    return Found(f"the largest difference from 1 is {off:.1e}", off < ROUNDING, off)


@claim("within four standard errors over draws, or, with few draws, by as many as are as improbable", kind="identity")
def turned_away(m: Results) -> Found:
    """The updates of layers and of heads that independent random matrices turn have the mean share 0."""
    listed, scores = [], []
    for network in (m.causal, m.albert):
        for name, statistic in (("layers", LAYERS), ("heads of a layer", SAME)):
            average = clustered_error(statistic(network.controls[TURNED]).mean(axis=1))
            listed.append(f"{name} of {network.called} {plus_minus(*average[:2], 4)}")
            scores.append(float(abs(average.mean) / average.error))
    measured = f"{', '.join(listed)} (± over {m.p.turns} draws); at most {max(scores):.1f} standard errors"
    return Found(measured, max(scores) < threshold(m.p.turns - 1, 4.0), max(scores))


def beyond_controls(each: Compared, of: Values, more: str = "") -> Found:
    return Found(f"share {each.words(of)}{more}", each.above_controls(of), *each.mean(of)[:2])


@claim(f"the difference from each control, of which the network is one draw, is above zero {SURELY}")
def layers_agree(m: Results) -> Found:
    """The mean layer explains a part of the attention updates of {m.causal.called}: the share of the layers is above
    that of turned updates and of random weights."""
    without, over = (plus_minus(*m.causal.mean(statistic)[:2], 4) for statistic in (WITHOUT_FIRST, UNWEIGHTED))
    more = f"; without the first token {without}, of the inner product over tokens {over}"
    return beyond_controls(m.causal, LAYERS, more)


@claim(f"the share is below 1/2 {SURELY}")
def mostly_deviations(m: Results) -> Found:
    """The deviations of the layers of {m.causal.called} from their mean have more of the mean square of an
    attention update than the mean layer."""
    share, num_layers = m.causal.mean(LAYERS), m.causal.trained.layers.shape[-1]
    summed = 1 + (num_layers - 1) * float(share.mean)
    return Found(
        f"share {plus_minus(*share[:2], 4)} (± over {articles_words(m.causal.articles)}); the squared sum of all "
        f"updates at a state is {summed:.2f} times the sum of their squares: 1 for noise, {num_layers} for equal "
        "layers",
        share.below(0.5, SIGMAS), *share[:2],
    )  # fmt: skip


@claim(
    f"the difference is above zero, and above that of each control, {SURELY}, and is reached by less than {RARE:g} of "
    "random orders of the layers"
)
def neighbours_agree(m: Results) -> Found:
    """The layers of {m.causal.called} are no independent draws: the updates of neighbours agree more than those of
    layers more than half of the depth apart."""
    difference = m.causal.mean(NEAR)
    return Found(
        f"difference of the mean cosines {m.causal.words(NEAR)}; reached by {m.rare:.4f} of {m.p.orders} random "
        f"orders; mean cosine of the distant layers {plus_minus(*m.causal.mean(FAR)[:2], 4)}",
        difference.above(0.0, SIGMAS) and m.causal.above_controls(NEAR) and m.rare < RARE, *difference[:2],
    )  # fmt: skip


heads_agree, same_agree = (
    claim(
        f"the difference from each control, of which the network is one draw, is above zero {SURELY}",
        says=f"The mean head explains a part of the updates of the heads of {{m.causal.called}}, over pairs {words}: "
        "their share is above that of turned updates and of random weights.",
    )(lambda m, of=of: beyond_controls(m.causal, of))
    for words, of in (("of all layers", HEADS), ("of the same layer", SAME))
)


@claim(f"the difference from each control, of which the network is one draw, is above zero {SURELY}")
def albert_heads_agree(m: Results) -> Found:
    """The mean head explains a part of the updates of the heads of {m.albert.called}: their share is above that of
    turned updates and of random weights."""
    return replace(beyond_controls(m.albert, SAME), on=m.albert.measured)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    causal, albert = m.causal, m.albert
    return (
        f"{f'{ABSENT} ' if m.own else ''}The attention updates that all layers of a network give to the same state. "
        f"(a) The share of the mean layer in the mean square of an update of {causal.called}, by the layer that the "
        "state enters: 1 is a deterministic flow, 0 is noise alone. (b) The mean cosine of the updates of two layers "
        "by their distance, flat for independent draws. (c) The share of the mean head in the mean square of the "
        f"updates of heads, in {causal.called} (over pairs of heads of all layers, and of the same layer) and in "
        f"{albert.called}: {albert.measured.network.words}. Controls: {m.p.turns} draws of random matrices that turn "
        f"updates, and {m.p.draws} networks of random weights, on {len(causal.rows)} texts. Bands and bars: standard "
        f"errors over {articles_words(causal.articles)}; of controls the spread of single draws."
    )


def runs_of(each: Compared, of: Callable[[Shares], np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The mean of numbers of texts, (..., texts, k) or (..., texts), and its error; of controls the mean and spread."""
    runs = {"network": clustered_error(of(each.trained), each.articles)[:2]}
    for name, shares in each.controls.items():
        drawn = of(shares).mean(axis=1)
        runs[name] = drawn.mean(axis=0), drawn.std(axis=0, ddof=1)
    return runs


def by_distance(shares: Shares) -> np.ndarray:
    """The mean cosine of layers at each distance from 1 on, (..., texts, layers - 1)."""
    cosines, apart = shares.cosines.mean(-3), distances(shares.cosines)
    return np.stack([cosines[..., apart == distance].mean(-1) for distance in range(1, len(apart))], axis=-1)


def series(m: Results) -> dict:
    table: dict[str, Any] = {"layer": np.arange(m.causal.trained.layers.shape[-1])}
    for label, statistic in (("share", lambda shares: shares.layers), ("cosine_by_distance", by_distance)):
        for name, (mean, error) in runs_of(m.causal, statistic).items():
            table |= {f"{label}, {name}": mean, f"{label}, {name}, error": error}
    return table


def _lines(ax: Axes, m: Results, *, of: Callable[[Shares], np.ndarray], first: int, **labels: str) -> None:
    for name, (mean, error) in runs_of(m.causal, of).items():
        look = {"colour": LOOKS[name][0], "linestyle": LOOKS[name][1], "label": name}
        time_series(np.arange(first, first + len(mean)), mean, error, ax, **look, **labels)


def _heads(ax: Axes, m: Results) -> None:
    columns = (("all\nlayers", m.causal, HEADS), ("same\nlayer", m.causal, SAME), ("ALBERT", m.albert, SAME))
    for place, (_, network, statistic) in enumerate(columns):
        for shift, (name, (mean, error)) in enumerate(runs_of(network, statistic).items()):
            colour, _, marker = LOOKS[name]
            ax.errorbar(place + 0.2 * (shift - 1), mean, error, fmt=marker, color=colour, ms=4, lw=0.9)
    ax.set_xticks(range(len(columns)), [name for name, *_ in columns])
    ax.set(xlabel="pairs of heads", ylabel="share of the mean head", xlim=(-0.5, len(columns) - 0.5))
    ax.axhline(0.0, color="0.6", lw=0.6, zorder=0)


def draw(m: Results) -> Figure:
    shares = partial(_lines, of=lambda shares: shares.layers, first=0, xlabel="layer of the state")
    cosines = partial(_lines, of=by_distance, first=1, xlabel="distance of the layers")
    fills = partial(shares, ylabel="share of the mean layer"), partial(cosines, ylabel="mean cosine of updates"), _heads
    drawn = panels(m, fills, columns=3, height=2.6)
    one_legend(drawn, drawn.axes, loc="outside lower center", ncols=3, fontsize=7)
    return drawn


FIGURE = figure(
    __name__,
    on=lambda m: m.causal.measured,
    over=None,
    recorded=lambda m: {
        "networks": [m.causal.measured.network.words, m.albert.measured.network.words],
        "texts": [m.causal.measured.data.words, m.albert.measured.data.words],
        "starts": len(m.causal.articles), "control texts": len(m.causal.rows), "solver": "none: layers in float32",
    },
)  # fmt: skip
