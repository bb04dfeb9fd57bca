r"""What is measured of an LSTM beside a transformer: how alike their states are, along the text and along the layers,
what the gates do, and the best unit for sentiment.

The likeness of place t is the mean cosine of the state there to all states before it in the text: of the cell state
c_t, and of the last level of the residual stream. That of a level is the mean cosine of all pairs of tokens.

Invariants: both models have about as many parameters, and are trained by the same loop on the same rows; what is
measured are texts that neither was trained on; random weights are those of the recipes, from several seeds.

Source: Hochreiter, Schmidhuber, *Long short-term memory* (1997); *Transformers, part 2*, slides 10 to 14.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import transformer
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.controls import Starts, keys_of, seed_of, starts_of
from ..shared.layout import WIDTH
from ..shared.small_models import LENGTH, Corpus, corpus_of, parameters_of, rows_of, train_small
from ..shared.units import Unit, best_units, streams


SEEN = 20_000
GATES = ("forget_gate", "input_gate", "output_gate")


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    steps: int = parameter(3000, "the steps of each training", least=16, most=100_000, quick=64)
    d: int = parameter(64, "the dimension of the stream, for four heads, and of words", least=8, most=1024, quick=16)
    layers: int = parameter(2, "the number of layers of the transformer", least=1, most=32)
    draws: int = parameter(3, "the number of networks of random weights of each kind", least=2, most=32, quick=2)
    texts: int = parameter(48, "the number of texts whose states are measured", least=4, most=1000, quick=16)
    labelled: int = parameter(
        1000, "the texts on which a unit is chosen, and as many others on which it is scored", least=20, quick=100
    )


@dataclass(frozen=True, eq=False)
class States:
    """What one model does to the texts, each with the texts along the first axis.

    **Attributes:**

    - `along_text`: The likeness of each place from the second on, (texts, n - 1).
    - `along_layers`: That of each level; of an LSTM those of words, cell state and hidden state, (texts, levels).
    - `lengths`: The length of the state at each place, (texts, n).
    - `gates`: The mean of each of `GATES` over the units at each place, (texts, 3, n); None for a transformer.
    - `loss`: The mean loss of each text, (texts,).
    """

    along_text: np.ndarray
    along_layers: np.ndarray
    lengths: np.ndarray
    gates: np.ndarray | None
    loss: np.ndarray


@dataclass(frozen=True, eq=False)
class Network:
    """One architecture: trained, and with random weights.

    **Attributes:**

    - `parameters`: How many.
    - `trained`, `random`: What they do to the texts.
    - `units`, `random_units`: The best unit of each kind.
    """

    parameters: int
    trained: States
    random: list[States]
    units: dict[str, Unit]
    random_units: list[dict[str, Unit]]


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `corpus`: What was read.
    - `lstm`, `transformer`: The two.
    - `off`: By how much the states miss $c_t = f_t c_{t-1} + i_t g_t$ and $h_t = o_t \\tanh c_t$, at most.
    """

    p: Parameters
    corpus: Corpus
    lstm: Network
    transformer: Network
    off: float


def units_for(d: int, layers: int) -> int:
    """How many units make an LSTM of about as many parameters as the layers of a transformer, 4 d hidden neurons each.

    Layers have 12 d^2 each and there are positions; a cell of m units has 4 m (d + m + 1), and m d read it out.
    """
    wanted = layers * (12 * d * d + 9 * d) + LENGTH * d + 2 * d
    many = np.arange(1, 8 * d * layers)
    return int(many[np.argmin(np.abs(4 * many * (d + many + 1) + many * d - wanted))])


def recipes_of(p: Parameters) -> dict[str, transformer.LanguageRecipe]:
    """How the two are trained."""
    same: dict[str, Any] = {
        "d": p.d, "heads": 4, "length": LENGTH, "steps": p.steps, "epoch_steps": max(1, p.steps // 16),
        "warm_up": p.steps // 10,
    }  # fmt: skip
    return {
        "lstm": transformer.LanguageRecipe(architecture="lstm", hidden=units_for(p.d, p.layers), **same),
        "transformer": transformer.LanguageRecipe(hidden=4 * p.d, layers=p.layers, **same),
    }


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train both, and measure them beside their controls."""
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.labelled)
    ids, present = rows_of(corpus.scored.texts, LENGTH)
    # Whole rows alone, so that all places have as many texts.
    ids = ids[present.all(axis=1)][: p.texts]
    seeds = [seed_of(key) for key in keys_of(settings.seed, p.draws)]
    found, off = {}, 0.0
    for name, recipe in recipes_of(p).items():
        say(f"training the {'LSTM' if name == 'lstm' else name}")
        model = train_small(corpus.seen, recipe, seed=seeds[0])[-1].model
        random = [recipe.model(seed) for seed in seeds]
        say(f"reading {len(ids)} texts, and {2 * p.labelled} for sentiment, with it and {p.draws} of random weights")
        units = [best_units(one, corpus.chosen, corpus.scored, LENGTH) for one in (model, *random)]
        found[name] = Network(
            parameters_of(model), states_of(model, ids), [states_of(one, ids) for one in random], units[0], units[1:]
        )
        off = max(off, recurrence_off(model, ids)) if name == "lstm" else off
    return Results(p, corpus, found["lstm"], found["transformer"], off)


def states_of(model: Any, ids: np.ndarray) -> States:
    """What a model does to whole rows of texts."""
    found: Any = _states(model, jnp.asarray(ids))
    gates = None if found[3] is None else np.asarray(found[3], float)
    along_text, along_layers, lengths, loss = (np.asarray(found[part], float) for part in (0, 1, 2, 4))
    return States(along_text, along_layers, lengths, gates, loss)


@eqx.filter_jit
def _states(model: Any, ids: Array) -> tuple[Any, ...]:
    def of_text(ids: Array) -> tuple[Any, ...]:
        if isinstance(model, transformer.LSTMLanguageModel):
            states = model.states(ids)
            levels = (model.embedding[ids], states.cell, states.hidden)
            state, gates = states.cell, jnp.stack([getattr(states, gate).mean(axis=1) for gate in GATES])
        else:
            levels = streams(model, ids, jnp.ones(ids.shape, bool))
            state, gates = levels[-1], None
        alike = [_cosines(level) for level in levels]
        n = len(ids)
        before = jnp.tril(jnp.ones((n, n), state.dtype), -1)
        along_text = jnp.sum(_cosines(state) * before, axis=1)[1:] / jnp.arange(1, n).astype(state.dtype)
        pairs = jnp.asarray(n * (n - 1) / 2, state.dtype)
        log_probs = jax.nn.log_softmax(model(ids)[:-1])
        loss = -jnp.take_along_axis(log_probs, ids[1:, None], axis=1).mean()
        along_layers = jnp.stack([jnp.sum(cosines * before) / pairs for cosines in alike])
        return along_text, along_layers, jnp.linalg.norm(state, axis=1), gates, loss

    return jax.vmap(of_text)(ids)


def _cosines(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    length = jnp.linalg.norm(x, axis=1, keepdims=True)
    unit = x / jnp.maximum(length, jnp.finfo(x.dtype).tiny)
    return jnp.matmul(unit, unit.T, precision="highest")


def recurrence_off(model: transformer.LSTMLanguageModel, ids: np.ndarray) -> float:
    """By how much the states of the first texts miss the equations of the cell, at most, in double precision."""
    off = 0.0
    for row in ids[:4]:
        s = jtu.tree_map(lambda part: np.asarray(part, np.float64), model.states(jnp.asarray(row)))
        kept = np.concatenate([np.zeros_like(s.cell[:1]), s.cell[:-1]])
        cell = s.forget_gate * kept + s.input_gate * s.candidate
        off = max(off, np.abs(cell - s.cell).max(), np.abs(s.output_gate * np.tanh(s.cell) - s.hidden).max())
    return float(off)


# What the figure of the LSTM claims: likeness along texts and layers, what gates do, and the unit for sentiment.


SAME = 1e-5  # by how much float32 may miss the equations of the cell
SHOWN = {
    "cell": "cell",
    "hidden": "hidden state",
    "neuron": "feed-forward neuron",
    "stream": "coordinate of the stream",
}


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = (
        _loss(m), _along_text(m), _beside_random(m), _along_layers(m), _gates(m), _better(m), _sentiment(m), _chance(m),
        _recurrence(m),
    )  # fmt: skip
    # Of one training nobody knows how far another seed would differ.
    return over("texts, of one training of each; of random weights over networks", claims)


def _words(values: np.ndarray, digits: int = 3) -> str:
    """The mean over texts and its standard error."""
    one = clustered_error(values)
    return plus_minus(one.mean, one.error, digits)


def _loss(m: Results) -> Claim:
    less = clustered_error(m.lstm.trained.loss - m.transformer.trained.loss)
    of_random = lambda network: np.mean([one.loss.mean() for one in network.random])
    return Claim(
        says="After as many steps the transformer guesses the next word better than the LSTM of as many parameters.",
        measured=f"loss of {len(m.lstm.trained.loss)} texts: LSTM of {m.lstm.parameters:,} parameters "
        f"{_words(m.lstm.trained.loss)} nats, transformer of {m.transformer.parameters:,} "
        f"{_words(m.transformer.trained.loss)}; difference, paired by text, {plus_minus(less.mean, less.error, 3)}; "
        f"with random weights {of_random(m.lstm):.2f} and {of_random(m.transformer):.2f}",
        criterion="the difference is above zero by two standard errors",
        holds=less.above(),
        kind="finding",
        value=float(less.mean),
        error=float(less.error),
    )


def rise(along: np.ndarray) -> np.ndarray:
    """The mean over the last quarter of the places less that over the first quarter, of each text."""
    quarter = max(1, along.shape[1] // 4)
    return along[:, -quarter:].mean(axis=1) - along[:, :quarter].mean(axis=1)


def _of_random(network: Network, pick) -> str:
    each = np.array([pick(one).mean() for one in network.random])
    return plus_minus(each.mean(), each.std(ddof=1) / np.sqrt(len(each)), 3)


def _along_text(m: Results) -> Claim:
    rises = clustered_error(rise(m.lstm.trained.along_text))
    of = lambda states: rise(states.along_text)
    return Claim(
        says="The cell states of the LSTM become more alike along a text.",
        measured="mean cosine of a cell state to those before it, in the last quarter of the places less in the first: "
        f"{plus_minus(rises.mean, rises.error, 3)}, with random weights {_of_random(m.lstm, of)}; of the last level of "
        f"the transformer {_words(rise(m.transformer.trained.along_text))}, with random weights "
        f"{_of_random(m.transformer, of)}",
        criterion="above zero by two standard errors",
        holds=rises.above(),
        kind="finding",
        value=float(rises.mean),
        error=float(rises.error),
    )


def _against_random(network: Network, pick) -> Starts:
    """A statistic of each text, (texts, levels), beside that of random weights."""
    return starts_of(pick(network.trained), [pick(one) for one in network.random])


def _beside_random(m: Results) -> Claim:
    pick = lambda states: states.along_layers[:, 1:2]
    starts = _against_random(m.lstm, pick)
    last = _against_random(m.transformer, lambda states: states.along_layers[:, -1:])
    return Claim(
        says="Trained, the LSTM has cell states of a text that are more alike than with random weights.",
        measured=f"mean cosine of two cell states of a text {_words(pick(m.lstm.trained)[:, 0])}, before training "
        f"{starts.words(0)}; of two tokens after the last layer of the transformer "
        f"{_words(m.transformer.trained.along_layers[:, -1])}, before training {last.words(0)}",
        criterion="the difference exceeds two standard errors, or as many as are as improbable with so few networks",
        holds=starts.exceeds(0),
        kind="finding",
        value=float(starts.beyond.difference[0]),
        error=float(starts.beyond.error[0]),
    )


def _along_layers(m: Results) -> Claim:
    levels = m.transformer.trained.along_layers
    grown = clustered_error(levels[:, -1] - levels[:, 0])
    every = ", ".join(_words(levels[:, k]) for k in range(levels.shape[1]))
    of_random = _of_random(m.transformer, lambda states: states.along_layers[:, -1] - states.along_layers[:, 0])
    return Claim(
        says="The tokens of the transformer become more alike from its first level to its last.",
        measured=f"mean cosine at the levels {every}; growth {plus_minus(grown.mean, grown.error, 3)}, with random "
        f"weights {of_random}",
        criterion="the growth is above zero by two standard errors",
        holds=grown.above(),
        kind="finding",
        value=float(grown.mean),
        error=float(grown.error),
    )


def mean_gates(states) -> np.ndarray:
    """The mean of each gate over units and places, (texts, gates)."""
    assert states.gates is not None
    return states.gates.mean(axis=2)


def _gates(m: Results) -> Claim:
    starts, trained = _against_random(m.lstm, mean_gates), mean_gates(m.lstm.trained)
    told = "; ".join(
        f"{gate.replace('_', ' ')} {_words(trained[:, k])}, before training "
        f"{plus_minus(starts.mean[k], starts.error[k], 3)}"
        for k, gate in enumerate(GATES)
    )
    return Claim(
        says="Training lowers the mean of the forget gate: cells keep less of what they held than with random weights.",
        measured=f"{told}; means over units and places",
        criterion="the forget gate is lower than before training by two standard errors, or as many as are as "
        "improbable "
        "with so few networks",
        holds=bool(starts.beyond._replace(z=-starts.beyond.z).exceeds()[0]),
        kind="finding",
        value=float(starts.beyond.difference[0]),
        error=float(starts.beyond.error[0]),
    )


def best_of(network: Network) -> tuple[str, Unit]:
    """The kind of unit, and the unit, that was best where it was chosen."""
    return max(network.units.items(), key=lambda item: item[1].chosen)


def _random_words(network: Network, kind: str) -> str:
    each = np.array([units[kind].accuracy for units in network.random_units])
    return plus_minus(100 * each.mean(), 100 * each.std(ddof=1) / np.sqrt(len(each)), 1)


def _unit_words(network: Network) -> str:
    return ", ".join(
        f"{SHOWN[kind]} {unit.unit} of {unit.many} {plus_minus(100 * unit.accuracy, 100 * unit.error, 1)} % (of random "
        f"weights {_random_words(network, kind)} %)"
        for kind, unit in network.units.items()
    )


def _better(m: Results) -> Claim:
    (kind, ours), (other, theirs) = best_of(m.lstm), best_of(m.transformer)
    # Paired by text: both units are asked about the same texts.
    less = clustered_error(ours.right.astype(float) - theirs.right.astype(float))
    return Claim(
        says="The best unit of the LSTM tells sentiment better than the best of the transformer.",
        measured=f"on {len(ours.right)} texts on which none was chosen: {SHOWN[kind]} {100 * ours.accuracy:.1f} %, "
        f"{SHOWN[other]} {100 * theirs.accuracy:.1f} %, difference "
        f"{plus_minus(100 * float(less.mean), 100 * float(less.error), 1)} %",
        criterion="the difference is above zero by two standard errors",
        holds=less.above(),
        kind="finding",
        value=float(less.mean),
        error=float(less.error),
    )


def _beyond_random(network: Network) -> Starts:
    """The texts that the best unit tells right beside those of the best units of random weights, paired by text."""
    kind, unit = best_of(network)
    right = lambda one: one.right.astype(float)[:, None]
    return starts_of(right(unit), [right(units[kind]) for units in network.random_units])


def _sentiment(m: Results) -> Claim:
    gain, other = _beyond_random(m.lstm).beyond, _beyond_random(m.transformer).beyond
    told = lambda one: plus_minus(100 * one.difference[0], 100 * one.error[0], 1)
    return Claim(
        says="The best unit of the LSTM tells sentiment better than that of random weights.",
        measured=f"LSTM: {_unit_words(m.lstm)}; transformer: {_unit_words(m.transformer)}. The best unit tells "
        f"{told(gain)} % more than that of random weights in the LSTM, {told(other)} % more in the transformer",
        criterion="the difference exceeds two standard errors, or as many as are as improbable with so few networks",
        holds=bool(gain.exceeds()[0]),
        kind="finding",
        value=float(gain.difference[0]),
        error=float(gain.error[0]),
    )


def _chance(m: Results) -> Claim:
    found = [clustered_error(best_of(network)[1].right) for network in (m.lstm, m.transformer)]
    nearer = min(found, key=lambda one: float(one.mean))
    told = [plus_minus(100 * one.mean, 100 * one.error, 1) for one in found]
    return Claim(
        says="The best unit of the LSTM and that of the transformer each tell sentiment better than chance.",
        measured=f"{told[0]} % and {told[1]} % of the texts",
        criterion="both above one half by two standard errors",
        holds=all(one.above(0.5) for one in found),
        kind="finding",
        value=float(nearer.mean),
        error=float(nearer.error),
    )


def _recurrence(m: Results) -> Claim:
    return Claim(
        says="Cell and hidden state follow from the gates: c = f c' + i g, with c' the cell state before, and "
        "h = o tanh c.",
        measured=f"missed by at most {m.off:.1e}",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what it is worth."""
    (kind, ours), (other, theirs) = best_of(m.lstm), best_of(m.transformer)
    up = rise(m.lstm.trained.along_text).mean()
    return (
        f"A small LSTM and a transformer of as many parameters ({m.lstm.parameters:,} and "
        f"{m.transformer.parameters:,}), "
        f"each trained once, for {m.p.steps} steps by the same loop on {m.corpus.data.words}. (a) The mean "
        "cosine of the "
        "state at each place to those before it: of the cell state, and of the last level of the residual stream. (b) "
        "The mean cosine of two places: of the words, the cell and the hidden state of the LSTM, and of the levels of "
        "the transformer. (c) The mean of each gate over the units. (d) How many texts the best unit of each kind "
        "tells "
        f"right, chosen on {m.p.labelled} texts and scored on as many others; bars: random weights. Standard errors "
        "over "
        f"texts, of random weights over {m.p.draws} networks. Along the text the cell states become "
        f"{'more' if up > 0 else 'less'} alike (by {abs(up):.2f}); the best unit of the LSTM, a {SHOWN[kind]}, tells "
        f"{100 * ours.accuracy:.1f} % of the texts right, that of the transformer, a {SHOWN[other]}, "
        f"{100 * theirs.accuracy:.1f} %."
    )


# The panels of the LSTM: likeness along the text and along levels, the gates, and the best units for sentiment.


OF_LSTM, OF_TRANSFORMER = OKABE_ITO[5], OKABE_ITO[0]
NAMES = {"cell": "cell", "hidden": "hidden\nstate", "neuron": "neuron", "stream": "stream"}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    (text, levels), (gates, units) = figure.subplots(2, 2)
    _panels_along_text(text, m)
    _along_levels(levels, m)
    _panels_gates(gates, m)
    _units(units, m)
    for letter, ax in zip("abcd", (text, levels, gates, units), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _mean_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the first axis: texts, or networks."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _random(states: list[States], name: str) -> tuple[np.ndarray, np.ndarray]:
    return _mean_error(np.stack([getattr(one, name).mean(axis=0) for one in states]))


def _panels_along_text(ax: Axes, m: Results) -> None:
    places = np.arange(2, m.lstm.trained.along_text.shape[1] + 2)
    for network, colour, name in ((m.lstm, OF_LSTM, "cell"), (m.transformer, OF_TRANSFORMER, "stream")):
        for (mean, error), line, label in (
            (_mean_error(network.trained.along_text), "-", name),
            (_random(network.random, "along_text"), "--", f"{name}, random"),
        ):
            time_series(places, mean, error, ax, colour=colour, linestyle=line, label=label, xlabel="place in the text",
                        ylabel="mean cosine to the\nplaces before")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.legend(fontsize=6, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, handlelength=2.2, columnspacing=1)


def _along_levels(ax: Axes, m: Results) -> None:
    theirs = m.transformer.trained.along_layers
    names = ["words", "cell", "hidden", *("words" if k == 0 else f"{k}" for k in range(theirs.shape[1]))]
    # The transformer's levels stand apart to the right.
    places = (np.arange(3), 4 + np.arange(theirs.shape[1]))
    for network, at, colour in zip((m.lstm, m.transformer), places, (OF_LSTM, OF_TRANSFORMER), strict=True):
        mean, error = _mean_error(network.trained.along_layers)
        ax.errorbar(at, mean, error, color=colour, marker="o", ms=3.5, lw=1.1)
        mean, error = _random(network.random, "along_layers")
        ax.errorbar(at, mean, error, color=colour, marker="x", ms=3.5, lw=1.1, ls="--")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xticks(np.concatenate(places), labels=names, fontsize=6)
    ax.text(1, 1.01, "LSTM", ha="center", va="bottom", fontsize=6, transform=ax.get_xaxis_transform(), color=OF_LSTM)
    ax.text(4 + (theirs.shape[1] - 1) / 2, 1.01, "transformer, level", ha="center", va="bottom", fontsize=6,
            transform=ax.get_xaxis_transform(), color=OF_TRANSFORMER)  # fmt: skip
    ax.set(ylabel="mean cosine of two places", xlim=(-0.5, places[1][-1] + 0.5))


def _panels_gates(ax: Axes, m: Results) -> None:
    gates = m.lstm.trained.gates
    assert gates is not None
    places = np.arange(1, gates.shape[2] + 1)
    for k, (gate, colour) in enumerate(zip(GATES, (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2]), strict=True)):
        time_series(places, *_mean_error(gates[:, k]), ax, colour=colour, label=gate.replace("_gate", ""),
                    xlabel="place in the text", ylabel="gate, mean over units")  # fmt: skip
        before, error = _mean_error(np.stack([one.gates[:, k].mean(axis=0) for one in m.lstm.random]))
        time_series(places, before, error, ax, colour=colour, linestyle="--", xlabel="place in the text",
                    ylabel="gate, mean over units")  # fmt: skip
    ax.set_ylim(0, 1)
    ax.legend(fontsize=6, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), title="dashed: random weights",
              title_fontsize=6)  # fmt: skip


def _units(ax: Axes, m: Results) -> None:
    place = 0
    labels = []
    for network, colour in ((m.lstm, OF_LSTM), (m.transformer, OF_TRANSFORMER)):
        for kind, unit in network.units.items():
            ax.errorbar(place, 100 * unit.accuracy, 100 * unit.error, color=colour, marker="o", ms=4, capsize=2)
            before = np.array([units[kind].accuracy for units in network.random_units])
            ax.bar(place, 100 * before.mean(), 0.6, yerr=100 * before.std(ddof=1) / np.sqrt(len(before)), color="0.85",
                   ecolor="0.5", capsize=2)  # fmt: skip
            labels.append(NAMES[kind])
            place += 1
    ax.axhline(50, color="0.4", lw=0.7, ls=":")
    ax.set_xticks(range(place), labels=labels, fontsize=6)
    lowest = min(units[kind].accuracy for network in (m.lstm, m.transformer) for units in network.random_units
                 for kind in units)  # fmt: skip
    ax.set(ylabel="texts told right by\nthe best unit (%)", ylim=(min(40, 100 * lowest - 3), None))


# The LSTM beside a transformer as an experiment: what is measured, claimed, recorded and drawn.


NETWORK = Subject("small-lstm", "a small LSTM and a transformer of as many parameters, trained here")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    recipe = recipes_of(m.p)["lstm"]
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"starts": settings.starts, "texts": m.corpus.data.words, "steps": m.p.steps, "units": recipe.hidden,
         "parameters of the LSTM": m.lstm.parameters, "parameters of the transformer": m.transformer.parameters,
         "tokens": LENGTH, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(NETWORK, m.corpus.data, {
            "texts": len(m.lstm.trained.loss), "tokens": LENGTH, "layers": m.p.layers, "d": m.p.d, "steps": m.p.steps,
            "seeds": m.p.draws,
        }),
    )  # fmt: skip


def _series(m: Results) -> dict:
    error = lambda values: values.std(axis=0, ddof=1) / np.sqrt(len(values))
    # Places from the second on, which have places before them.
    series: dict = {"place": np.arange(2, LENGTH + 1)}
    for name, network in (("LSTM", m.lstm), ("transformer", m.transformer)):
        trained = network.trained
        series |= {
            f"cosine to places before, {name}": trained.along_text.mean(axis=0),
            f"cosine to places before, {name}, error": error(trained.along_text),
            f"cosine to places before, {name}, random weights": np.mean(
                [one.along_text.mean(axis=0) for one in network.random], axis=0
            ),
            f"length of the state, {name}": trained.lengths[:, 1:].mean(axis=0),
            f"cosine_by_level, {name}": trained.along_layers.mean(axis=0),
            f"cosine_by_level, {name}, error": error(trained.along_layers),
            f"accuracy_by_kind_of_unit, {name}": np.array([unit.accuracy for unit in network.units.values()]),
            f"loss_by_text, {name}": trained.loss,
        }
    assert m.lstm.trained.gates is not None
    for k, gate in enumerate(GATES):
        series[gate.replace("_", " ")] = m.lstm.trained.gates[:, k, 1:].mean(axis=0)
    return series


FIGURE = declared("lstm", _run, parameters=Parameters)
