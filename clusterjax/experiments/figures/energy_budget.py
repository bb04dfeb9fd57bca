"""Does the interaction energy of the tokens grow along the layers of trained networks, and which part of a layer
makes it grow or fall?

The energy of directions, $1/(2βn²) ∑_{i,j} exp(β⟨x_i, x_j⟩)$, never falls along the flow of attention with V = B = I
without a mask, and tokens of one open hemisphere then converge to one point. No trained network meets these hypotheses:
its V and B are others, it has feed-forward layers and norms, and a causal network has a mask. The figure measures the
same energy in three networks, each beside the same tokens in random order and beside random weights, drawn as before
training. `probe.energy_budget` splits the change in each layer, in the order of the network: another order would split
the change differently. The last norm of a network belongs to its last layer.

What would refute each claim, as written before any number of the figure was seen:

- "No layer lowers the energy": one layer and one text whose energy falls by more than rounding (`ROUNDING`).
- "The energy is higher after the last layer than at the embedding": a mean rise that is not above zero by two standard
  errors over articles, or, with few articles, by as many as are as improbable.
- "The energy rises more than in both controls": a rise that does not exceed, by as many standard errors, the rise for
  the tokens in random order, or the rise for random weights, whose error includes the spread between networks.
- "Attention raises the energy", as in the flow, in which attention alone moves the tokens, and "the feed-forward layers
  lower the energy", as they slow the collapse of ranks: a mean over layers of the part that does not have this sign by
  as many standard errors. No sign is claimed for norms.
- "The tokens lie in an open hemisphere": one text and one level of one network with a margin of zero. The claim is
  weak: a text has fewer tokens than a network has dimensions, so that almost every cloud of directions would pass.
- "The margin is larger than in both controls": a margin after the last layer that does not exceed that of each control.
- The two identities fail where a part of a layer is left out or counted twice, or where the energy is another function.

Source: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 3.3 and Lemma 6.4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.survey import Clustered, average_of, clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.controls import COLOURS, LINES, NAMES, beyond_both, runs_of, starts_of
from ..shared.every_network import ABSENT, AtHand, in_each, measured_on, networks_at_hand
from ..shared.layout import layer_lines, panels, remove_legend
from ..shared.networks import each_text


PARTS = {"attention": "attention", "feed_forward": "feed-forward", "norm": "norms"}
PART_LOOKS = ((OKABE_ITO[3], ""), (OKABE_ITO[4], "//"), ("0.7", ".."))
ROUNDING = 1e-5  # the largest rounding error of an energy near 1 in float32, a mean of up to 64^2 terms
CHECKED = 2  # the number of texts whose energies are computed again from `probe.trace`
SURELY = "by two standard errors over articles, or, with few articles, by as many as are as improbable"
SURELY_BOTH = "by two standard errors, or, with few articles and networks, by as many as are as improbable"

Values = Callable[[probe.EnergyBudget], np.ndarray]  # a number of each text, (texts,)


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)
    beta: float = parameter(1.0, "the inverse temperature of the energy", above=0, most=20)


class Compared(NamedTuple):
    given: AtHand  # the network and its texts
    controls: probe.Controls  # an `EnergyBudget` of each run
    off: float  # the largest difference of an energy from that of the traced stream, in double precision

    @property
    def trained(self) -> probe.EnergyBudget:
        return self.controls.trained

    @property
    def runs(self) -> tuple[probe.EnergyBudget, ...]:
        """The budgets: trained, of shuffled tokens, and of each network of random weights."""
        return (self.controls.trained, self.controls.shuffled, *self.controls.random)

    @property
    def on(self) -> Measured:
        layers, seeds = len(self.trained.change.mean), len(self.controls.random)
        return self.given.measured(layers=layers, beta=self.trained.beta, seeds=seeds)

    def mean_of(self, values: np.ndarray) -> Clustered:
        return clustered_error(values, self.given.articles)

    def words(self, of: Values) -> str:
        """The mean over texts in the trained network and in its controls, in words."""
        trained, shuffled = (plus_minus(*self.mean_of(of(run))[:2], 4) for run in self.runs[:2])
        random = starts_of(of(self.trained)[:, None], [of(run)[:, None] for run in self.runs[2:]], self.given.articles)
        drawn = f"random weights {self.given.drawn}, {random.words(digits=4)}"
        return f"{trained}; tokens in random order {shuffled}; {drawn}"


class Results(NamedTuple):
    p: Parameters
    networks: dict[str, Compared]  # by the keys of `NETWORKS`; without SmolLM2 if it is not installed

    @property
    def listed(self) -> str:
        return ", ".join(network.given.name for network in self.networks.values())


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    networks = networks_at_hand(settings, say)
    return Results(p, {key: compare(p, settings.seed, say, network) for key, network in networks.items()})


def compare(p: Parameters, seed: int, say: Say, network: AtHand) -> Compared:
    """The energies in a network and its controls."""
    model, texts, articles = network.model, network.texts, network.articles
    say(f"measuring the energy in {network.name} and in its controls, {len(texts.mask)} texts")
    controls = probe.controls(
        partial(probe.energy_budget, beta=p.beta, margin=True, units=articles), model, texts, key=jr.key(seed),
        statistic="energy", draws=p.draws, units=articles, initial=network.initial,
    )  # fmt: skip
    return Compared(network, controls, energies_off(model, texts, controls.trained))


def energies_off(model: probe.Model, texts: probe.Encoded, budget: probe.EnergyBudget) -> float:
    """The largest difference of an energy of the first texts from that of their traced streams."""
    ids, mask, off = texts.token_ids[:CHECKED], texts.mask[:CHECKED], 0.0
    hidden = np.asarray(probe.trace(model, ids, mask).hidden, np.float64)
    for levels, words, energy in zip(hidden, mask, each_text(budget.energy), strict=False):
        unit = levels[:, words] / np.linalg.norm(levels[:, words], axis=2, keepdims=True)
        again = np.exp(budget.beta * unit @ np.swapaxes(unit, 1, 2)).mean(axis=(1, 2)) / (2 * budget.beta)
        off = max(off, float(np.abs(again - energy).max()))
    return off


def rise_of(budget: probe.EnergyBudget) -> np.ndarray:
    """The energy of each text after the last layer less the energy at the embedding, (texts,)."""
    return each_text(budget.energy)[:, -1] - each_text(budget.energy)[:, 0]


def falls_of(budget: probe.EnergyBudget) -> np.ndarray:
    """The fraction of the layers in which the energy of a text falls by more than rounding, (texts,)."""
    return np.mean(each_text(budget.change) < -ROUNDING, axis=1)


def margins_of(budget: Any) -> np.ndarray:
    return each_text(budget.margin)


def part_of(part: str) -> Values:
    """The mean over layers of the change that a part causes, (texts,)."""
    return lambda budget: each_text(getattr(budget, part)).mean(axis=1)


@claim(f"less than {ROUNDING:g} in every layer of every text, in the controls too", kind="identity")
def parts_add_up(m: Results) -> Found:
    """The changes by attention, by the feed-forward layers and by the norms add up to the change of the energy."""
    off = max(float(np.abs(each_text(run.remainder)).max()) for network in m.networks.values() for run in network.runs)
    return Found(f"the largest remainder, in {m.listed} and their controls, is {off:.1e}", off < ROUNDING, off)


@claim(f"less than {ROUNDING:g} at every level of {CHECKED} texts", kind="identity")
def energies_again(m: Results) -> Found:
    """The energies of each trained network are those of its traced stream, computed again in double precision."""
    off = max(network.off for network in m.networks.values())
    return Found(f"the largest difference, in {m.listed}, is {off:.1e}", off < ROUNDING, off)


@in_each(f"no text and no layer has a fall of more than {ROUNDING:g}")
def never_falls(network: Compared) -> Found:
    """In NETWORK no layer lowers the interaction energy of the tokens of any text."""
    falls, change = network.mean_of(falls_of(network.trained)), network.trained.change
    least, falling = int(np.argmin(change.mean)), 1 + np.flatnonzero(change.mean < 0)
    listed = f" ({', '.join(map(str, falling))})" if len(falling) else ""
    return Found(
        f"fraction of falls over texts and layers {network.words(falls_of)}; in the mean over texts the energy falls "
        f"in {len(falling)} of {len(change.mean)} layers{listed}, and the least change is that of layer {least + 1}, "
        f"{plus_minus(change.mean[least], change.error[least], 4)}",
        not falls_of(network.trained).any(), falls.mean, falls.error,
    )  # fmt: skip


@in_each(f"the rise is above zero {SURELY}")
def rises(network: Compared) -> Found:
    """In NETWORK the interaction energy of the tokens is higher after the last layer than at the embedding."""
    rise, energy = network.mean_of(rise_of(network.trained)), network.trained.energy
    at, most = lambda level: plus_minus(energy.mean[level], energy.error[level], 4), int(np.argmax(energy.mean))
    return Found(
        f"energy {at(0)} at the embedding, {at(-1)} after the last layer of {len(energy.mean) - 1}, largest at level "
        f"{most} ({at(most)}); rise {network.words(rise_of)}",
        rise.above(), rise.mean, rise.error,
    )  # fmt: skip


@in_each(f"the rise exceeds that of each control {SURELY_BOTH}")
def rises_beyond(network: Compared) -> Found:
    """From the embedding to the last layer of NETWORK the interaction energy rises more than for the same tokens in
    random order, and more than with random weights."""
    compared = network.controls.compare(lambda budget: average_of(rise_of(budget)[:, None]))
    return beyond_both("rise of the energy", compared, -1, 2.0)


@in_each(f"the mean over layers of its part is above zero {SURELY}")
def attention_raises(network: Compared) -> Found:
    """In the mean over the layers of NETWORK the addition of the attention raises the interaction energy."""
    return _part(network, "attention", Clustered.above)


@in_each(f"the mean over layers of their part is below zero {SURELY}")
def feed_forward_lowers(network: Compared) -> Found:
    """In the mean over the layers of NETWORK the addition of the feed-forward layers lowers the interaction energy."""
    return _part(network, "feed_forward", Clustered.below)


def _part(network: Compared, part: str, test: Callable[[Clustered], bool]) -> Found:
    change, by_layer = network.mean_of(part_of(part)(network.trained)), getattr(network.trained, part).mean
    change_by = lambda other: plus_minus(*network.mean_of(part_of(other)(network.trained))[:2], 4)
    others = "; ".join(f"{words} {change_by(other)}" for other, words in PARTS.items() if other != part)
    return Found(
        f"change by {PARTS[part]} in the mean over layers {network.words(part_of(part))}; above zero in "
        f"{int((by_layer > 0).sum())} of {len(by_layer)} layers; by the other parts in the trained network: {others}",
        test(change), change.mean, change.error,
    )  # fmt: skip


@claim("the margin is above zero at every level of every text of every trained network")
def hemispheres(m: Results) -> Found:
    """At every level of every trained network the tokens of each text lie in an open hemisphere, as almost all tokens
    do that are no more numerous than dimensions."""
    least = {network.given.name: float(margins_of(network.trained).min()) for network in m.networks.values()}
    random = min(float(margins_of(run).min()) for network in m.networks.values() for run in network.runs[1:])
    listed, worst = ", ".join(f"{margin:.4f} in {name}" for name, margin in least.items()), min(least.values())
    measured = f"least margin over texts and levels {listed}; {random:.4f} in all controls; n orthogonal tokens have "
    return Found(f"{measured}n^(-1/2)", worst > 0, worst)


@in_each(f"the margin after the last layer exceeds that of each control {SURELY_BOTH}")
def margin_beyond(network: Compared) -> Found:
    """After the last layer of NETWORK the tokens lie in an open hemisphere by a larger margin than the same tokens in
    random order, and than with random weights."""
    found = beyond_both("difference", network.controls.compare("margin"), -1, 2.0)
    words = network.words(lambda budget: margins_of(budget)[:, -1])
    return replace(found, measured=f"margin after the last layer {words}; {found.measured}")


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    falls = "; ".join(f"{network.given.name} {falls_of(network.trained).mean():.2f}" for network in m.networks.values())
    return (
        f"{'' if 'smollm2' in m.networks else f'{ABSENT} '}The interaction energy of the directions of the tokens at "
        f"beta = {m.p.beta:g}, with a column for each network: {m.listed}. First row: the energy at each level, of the "
        f"trained network, of the same tokens in random order, and of {m.p.draws} networks of random weights, drawn as "
        "before training. Second row: the change of the energy in each layer, as stacked parts, with the total. Third "
        "row: the fraction of the texts whose energy falls in a layer. Fourth row: the margin by which the tokens lie "
        "in an open hemisphere; dotted: that of orthogonal tokens. Means over texts with errors over articles; of "
        "random weights, over networks. Along the flow with V = B = I the energy never falls; in the networks it falls "
        f"in this fraction of texts and layers: {falls}."
    )


def series(m: Results) -> dict:
    values = {}
    for network in m.networks.values():
        for name in ("energy", "margin", "change", *PARTS, "falls"):
            by = f"_by_{'level' if name in ('energy', 'margin') else 'layer'}, {network.given.name}"
            runs = runs_of(network.controls, lambda budget, name=name: getattr(budget, name))
            for label, (mean, error) in zip(("", " tokens shuffled", " random weights"), runs, strict=True):
                values |= {f"{name}{label}{by}": mean, f"{name}{label}, error{by}": error}
    return values


def draw(m: Results) -> Figure:
    networks = tuple(m.networks.values())
    rows = partial(_lines, "energy", "energy"), _changes, _falls, partial(_lines, "margin", "margin of a\nhemisphere")
    fills = [lambda ax, m, fill=fill, network=network: fill(network, ax) for fill in rows for network in networks]
    shown = panels(m, fills, columns=len(networks), height=7.6)
    for place, ax in enumerate(shown.get_axes()):
        row, column = divmod(place, len(networks))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if row == 0:
            ax.set_title(networks[column].given.name.removeprefix("the "), fontsize=7)
        if row == 3:
            ax.axhline(1 / np.sqrt(networks[column].given.tokens), color="0.4", lw=0.8, ls=":")
            ax.set_ylim(0, None)
        if column:
            ax.set_ylabel("")
        # The changes leave room for a legend in the second column.
        if column != (row == 1) or row == 3:
            remove_legend(ax)
    return shown


def _lines(name: str, ylabel: str, network: Compared, ax: Axes) -> None:
    runs = runs_of(network.controls, lambda budget: getattr(budget, name))
    layer_lines(ax, ylabel, zip(NAMES[:3], runs, COLOURS[:3], LINES[:3], strict=True))


def _changes(network: Compared, ax: Axes) -> None:
    layers = np.arange(1, len(network.trained.change.mean) + 1)
    up, down = np.zeros(len(layers)), np.zeros(len(layers))
    for (part, label), (colour, hatch) in zip(PARTS.items(), PART_LOOKS, strict=True):
        mean = getattr(network.trained, part).mean
        ax.bar(layers, mean, 0.85, bottom=np.where(mean > 0, up, down), color=colour, hatch=hatch, label=label,
               edgecolor="white", lw=0)  # fmt: skip
        up, down = up + np.maximum(mean, 0), down + np.minimum(mean, 0)
    (change, error), _, (random, _) = runs_of(network.controls, lambda budget: budget.change)
    ax.errorbar(layers, change, error, fmt="o", color="0.1", ms=2, lw=0.7, label="total")
    ax.plot(layers, random, "x", color=COLOURS[2], ms=3, mew=0.8, label="total, random weights")
    ax.axhline(0, color="0.3", lw=0.6)
    ax.set(xlabel="layer", ylabel="change of the energy")
    ax.margins(y=0.15)
    ax.legend(fontsize=6, handlelength=1.4, labelspacing=0.2, borderaxespad=0.1, loc="upper right")


def _falls(network: Compared, ax: Axes) -> None:
    layers, runs = np.arange(1, len(network.trained.falls.mean) + 1), runs_of(network.controls, lambda run: run.falls)
    ax.bar(layers, runs[0][0], 0.85, color=COLOURS[0], alpha=0.6, lw=0, label=NAMES[0])
    for run, marker, colour, label in zip(runs[1:], "sx", COLOURS[1:], NAMES[1:], strict=False):
        ax.plot(layers, run[0], marker, color=colour, ms=3, mfc="none", mew=0.8, label=label, clip_on=False)
    ax.set(xlabel="layer", ylabel="fraction of texts\nwhose energy falls", ylim=(0, 1.03))
    ax.legend(fontsize=6)


def on(m: Results) -> Measured:
    return measured_on(m.networks, m.listed, {"beta": m.p.beta, "seeds": m.p.draws})


FIGURE = figure(
    __name__,
    claims=(parts_add_up, energies_again, *never_falls, *rises, *rises_beyond, *attention_raises, *feed_forward_lowers,
     hemispheres, *margin_beyond),
    over=None,
    recorded=lambda m: {
        "networks": [network.on.words for network in m.networks.values()], "starts": on(m).size["texts"],
        "articles": [len(np.unique(network.given.articles)) for network in m.networks.values()],
        "random weights": [network.given.drawn for network in m.networks.values()], "solver": "none: layers in float32",
    },
)  # fmt: skip
