r"""An LSTM beside a transformer with as many parameters: the similarity of states, the gates, and units for sentiment.

The similarity of a position is the mean cosine of its state to all earlier states of the text; the state is the cell
state c_t, or the last level of the residual stream. The similarity of a level is the mean cosine of all pairs of
tokens.

Invariants: one loop trains both models on the same rows; the models are measured on texts on which neither was trained;
random weights are drawn as the recipes say, from several seeds.

Source: Hochreiter, Schmidhuber, *Long short-term memory* (1997); *Transformers, part 2*, slides 10 to 14.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import transformer
from ...plot import OKABE_ITO, time_series
from ...probe.measures.survey import clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, plus_minus
from ..shared.controls import Starts, keys_of, seed_of, starts_of
from ..shared.ensemble import mean_and_error
from ..shared.layout import panels
from ..shared.networks import rows_of
from ..shared.small_models import LENGTH, Corpus, corpus_of, parameters_of, train_small
from ..shared.units import Unit, best_units, streams


SEEN = 20_000
GATES = ("forget_gate", "input_gate", "output_gate")
SAME = 1e-5  # the rounding error of the equations of the cell in float32
WORDS = {"cell": "cell", "hidden": "hidden state", "neuron": "feed-forward neuron", "stream": "stream coordinate"}
LABELS = {"cell": "cell", "hidden": "hidden\nstate", "neuron": "neuron", "stream": "stream"}
LSTM_COLOUR, TRANSFORMER_COLOUR = OKABE_ITO[5], OKABE_ITO[0]
BEYOND = "the difference exceeds two standard errors, or, with so few networks, as many as are as improbable"
NETWORK = Subject("small-lstm", "a small LSTM and a transformer of as many parameters, trained here")


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(3000, "the number of steps of each training", least=16, most=100_000, quick=64)
    d: int = parameter(64, "the dimension of words and of the stream of four heads", least=8, most=1024, quick=16)
    layers: int = parameter(2, "the number of layers of the transformer", least=1, most=32)
    draws: int = parameter(3, "the number of networks of random weights of each kind", least=2, most=32, quick=2)
    texts: int = parameter(48, "the number of texts whose states are measured", least=4, most=1000, quick=16)
    labelled: int = parameter(1000, "the number of texts to choose, and to score, a unit", least=20, quick=100)


class States(NamedTuple):
    along_text: np.ndarray  # the similarity of each position from the second on, (texts, n - 1)
    # The similarity of each level, (texts, levels); the levels of an LSTM are words, cell state and hidden state.
    along_layers: np.ndarray
    lengths: np.ndarray  # the norm of the state at each position, (texts, n)
    # The mean of each of `GATES` over the units at each position, (texts, 3, n); None for a transformer.
    gates: np.ndarray | None
    loss: np.ndarray  # the mean loss of each text, (texts,)

    @property
    def rise(self) -> np.ndarray:
        """The mean similarity in the last quarter of the positions minus that in the first quarter, (texts,)."""
        quarter = max(1, self.along_text.shape[1] // 4)
        return self.along_text[:, -quarter:].mean(axis=1) - self.along_text[:, :quarter].mean(axis=1)

    @property
    def growth(self) -> np.ndarray:
        """The similarity of the last level minus the similarity of the first level, (texts,)."""
        return self.along_layers[:, -1] - self.along_layers[:, 0]

    @property
    def mean_gates(self) -> np.ndarray:
        """The mean of each gate over units and positions, (texts, 3)."""
        assert self.gates is not None
        return self.gates.mean(axis=2)


class Network(NamedTuple):
    """One architecture, trained and with random weights."""

    parameters: int  # the number of parameters
    # `trained`, `random`: the states of the trained model, and of each model of random weights
    trained: States
    random: list[States]
    # `units`, `random_units`: the best unit of each kind of the same models
    units: dict[str, Unit]
    random_units: list[dict[str, Unit]]

    @property
    def best(self) -> tuple[str, Unit]:
        """The unit with the highest accuracy on the texts on which units are chosen, and its kind."""
        return max(self.units.items(), key=lambda item: item[1].chosen)

    def beside_random(self, pick: Callable[[States], np.ndarray]) -> Starts:
        """A statistic of each text, (texts, levels), compared with random weights."""
        return starts_of(pick(self.trained), [pick(states) for states in self.random])

    def random_words(self, pick: Callable[[States], np.ndarray]) -> str:
        """The mean of a statistic over the networks of random weights, with its error."""
        return plus_minus(*mean_and_error(np.array([pick(states).mean() for states in self.random])), 3)

    def random_accuracy(self, kind: str) -> tuple[float, float]:
        """The mean accuracy in per cent of the best units of random weights, and its error over networks."""
        mean, error = mean_and_error(np.array([100 * units[kind].accuracy for units in self.random_units]))
        return float(mean), float(error)

    def right_beside_random(self) -> Starts:
        """The texts that the best unit classifies correctly, paired with those of the best units of random weights."""
        kind, unit = self.best
        right = lambda detector: detector.right.astype(float)[:, None]
        return starts_of(right(unit), [right(units[kind]) for units in self.random_units])

    def unit_words(self) -> str:
        return ", ".join(
            f"{WORDS[kind]} {unit.unit} of {unit.many} {plus_minus(100 * unit.accuracy, 100 * unit.error, 1)} % "
            f"(random weights {plus_minus(*self.random_accuracy(kind), 1)} %)"
            for kind, unit in self.units.items()
        )


class Results(NamedTuple):
    """The measurement; `off` is the largest error of $c_t = f_t c_{t-1} + i_t g_t$ and $h_t = o_t tanh c_t$."""

    p: Parameters
    corpus: Corpus
    lstm: Network
    transformer: Network
    off: float


def units_for(d: int, layers: int) -> int:
    """The number of units of an LSTM with about as many parameters as a transformer with 4 d hidden neurons per layer.

    A layer has about 12 d^2 parameters, and positions have more; m cells have 4 m (d + m + 1), and their output m d.
    """
    budget = layers * (12 * d * d + 9 * d) + LENGTH * d + 2 * d
    num_units = np.arange(1, 8 * d * layers)
    return int(num_units[np.argmin(np.abs(4 * num_units * (d + num_units + 1) + num_units * d - budget))])


def recipes_of(p: Parameters) -> dict[str, transformer.LanguageRecipe]:
    same: dict[str, Any] = {
        "d": p.d, "heads": 4, "length": LENGTH, "steps": p.steps, "epoch_steps": max(1, p.steps // 16),
        "warm_up": p.steps // 10,
    }  # fmt: skip
    return {
        "lstm": transformer.LanguageRecipe(architecture="lstm", hidden=units_for(p.d, p.layers), **same),
        "transformer": transformer.LanguageRecipe(hidden=4 * p.d, layers=p.layers, **same),
    }


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.labelled)
    ids, present = rows_of(corpus.scored.texts, LENGTH)
    # Only whole rows are read, so that all positions have the same number of texts.
    ids = ids[present.all(axis=1)][: p.texts]
    seeds = [seed_of(key) for key in keys_of(settings.seed, p.draws)]
    networks, models = {}, {}
    for name, recipe in recipes_of(p).items():
        say(f"training the {'LSTM' if name == 'lstm' else name}")
        models[name] = train_small(corpus.training, recipe, seed=seeds[0])[-1].model
        every = models[name], *(recipe.model(seed) for seed in seeds)
        say(f"reading {len(ids)} texts, and {2 * p.labelled} for sentiment, also with {p.draws} of random weights")
        units = [best_units(model, corpus.chosen, corpus.scored, LENGTH) for model in every]
        trained, *random = (states_of(model, ids) for model in every)
        networks[name] = Network(parameters_of(models[name]), trained, random, units[0], units[1:])
    return Results(p, corpus, networks["lstm"], networks["transformer"], recurrence_off(models["lstm"], ids))


def states_of(model: Any, ids: np.ndarray) -> States:
    along_text, along_layers, norms, gates, loss = _states(model, jnp.asarray(ids))
    array = lambda part: np.asarray(part, float)
    gates = None if gates is None else array(gates)
    return States(array(along_text), array(along_layers), array(norms), gates, array(loss))


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
        n = len(ids)
        before = jnp.tril(jnp.ones((n, n), state.dtype), -1)
        along_text = jnp.sum(_cosines(state) * before, axis=1)[1:] / jnp.arange(1, n).astype(state.dtype)
        pairs = jnp.asarray(n * (n - 1) / 2, state.dtype)
        along_layers = jnp.stack([jnp.sum(_cosines(level) * before) / pairs for level in levels])
        log_probs = jax.nn.log_softmax(model(ids)[:-1])
        loss = -jnp.take_along_axis(log_probs, ids[1:, None], axis=1).mean()
        return along_text, along_layers, jnp.linalg.norm(state, axis=1), gates, loss

    return jax.vmap(of_text)(ids)


def _cosines(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    norm = jnp.linalg.norm(x, axis=1, keepdims=True)
    unit = x / jnp.maximum(norm, jnp.finfo(x.dtype).tiny)
    return jnp.matmul(unit, unit.T, precision="highest")


def recurrence_off(model: transformer.LSTMLanguageModel, ids: np.ndarray) -> float:
    """The largest error of the states of the first four texts in the equations of the cell, in double precision."""
    off = 0.0
    for row in ids[:4]:
        s = jtu.tree_map(lambda part: np.asarray(part, np.float64), model.states(jnp.asarray(row)))
        cell_before = np.concatenate([np.zeros_like(s.cell[:1]), s.cell[:-1]])
        cell = s.forget_gate * cell_before + s.input_gate * s.candidate
        off = max(off, np.abs(cell - s.cell).max(), np.abs(s.output_gate * np.tanh(s.cell) - s.hidden).max())
    return float(off)


def _words(values: np.ndarray, scale: int = 1, digits: int = 3) -> str:
    """The mean over texts with its standard error."""
    mean, error, _ = clustered_error(values)
    return plus_minus(scale * mean, scale * error, digits)


@claim("the difference is above zero by two standard errors")
def loss(m: Results) -> Found:
    """After equally many steps the transformer predicts the next word better than an LSTM of equal size."""
    ours, theirs = m.lstm.trained.loss, m.transformer.trained.loss
    less = clustered_error(ours - theirs)
    random = [np.mean([states.loss.mean() for states in network.random]) for network in (m.lstm, m.transformer)]
    return Found(
        f"loss of {len(ours)} texts: LSTM of {m.lstm.parameters:,} parameters {_words(ours)} nats, transformer of "
        f"{m.transformer.parameters:,} {_words(theirs)}; difference, paired by text, {_words(ours - theirs)}; with "
        f"random weights {random[0]:.2f} and {random[1]:.2f}",
        less.above(), less.mean, less.error,
    )  # fmt: skip


@claim("above zero by two standard errors")
def along_text(m: Results) -> Found:
    """The cell states of the LSTM become more alike along a text."""
    rises, pick = clustered_error(m.lstm.trained.rise), lambda states: states.rise
    return Found(
        "mean cosine of a cell state to earlier cell states, last quarter of the positions minus first quarter: "
        f"{_words(m.lstm.trained.rise)}, with random weights {m.lstm.random_words(pick)}; for the last level of the "
        f"transformer {_words(m.transformer.trained.rise)}, with random weights {m.transformer.random_words(pick)}",
        rises.above(), rises.mean, rises.error,
    )  # fmt: skip


@claim(BEYOND)
def beside_random(m: Results) -> Found:
    """After training the cell states of a text are more alike than with random weights."""
    cell, last = (lambda states: states.along_layers[:, 1:2]), (lambda states: states.along_layers[:, -1:])
    ours, theirs = m.lstm.beside_random(cell), m.transformer.beside_random(last)
    return Found(
        f"mean cosine of two cell states of a text {_words(cell(m.lstm.trained)[:, 0])}, before training "
        f"{ours.words(0)}; of two tokens after the last layer of the transformer "
        f"{_words(last(m.transformer.trained)[:, 0])}, before training {theirs.words(0)}",
        ours.exceeds(0), ours.beyond.difference[0], ours.beyond.error[0],
    )  # fmt: skip


@claim("the growth is above zero by two standard errors")
def along_layers(m: Results) -> Found:
    """The tokens of the transformer are more alike at its last level than at its first."""
    trained = m.transformer.trained
    grown = clustered_error(trained.growth)
    return Found(
        f"mean cosine at the levels {', '.join(map(_words, trained.along_layers.T))}; growth {_words(trained.growth)}, "
        f"with random weights {m.transformer.random_words(lambda states: states.growth)}",
        grown.above(), grown.mean, grown.error,
    )  # fmt: skip


@claim(
    "the forget gate is lower than before training by two standard errors, or, with so few networks, by as many as are "
    "as improbable"
)
def gates(m: Results) -> Found:
    """Training lowers the mean of the forget gate, so that cells keep less of their state than with random weights."""
    starts, trained = m.lstm.beside_random(lambda states: states.mean_gates), m.lstm.trained.mean_gates
    means = "; ".join(
        f"{gate.replace('_', ' ')} {_words(trained[:, k])}, before training "
        f"{plus_minus(starts.mean[k], starts.error[k], 3)}"
        for k, gate in enumerate(GATES)
    )
    lower = starts.beyond._replace(z=-starts.beyond.z).exceeds()[0]
    return Found(f"{means}; means over units and positions", lower, starts.beyond.difference[0], starts.beyond.error[0])


@claim("the difference is above zero by two standard errors")
def better(m: Results) -> Found:
    """The best unit of the LSTM classifies sentiment better than the best unit of the transformer."""
    (kind, ours), (other, theirs) = m.lstm.best, m.transformer.best
    # Both units classify the same texts.
    more = ours.right.astype(float) - theirs.right.astype(float)
    gain = clustered_error(more)
    return Found(
        f"on {len(ours.right)} texts on which no unit was chosen: {WORDS[kind]} {100 * ours.accuracy:.1f} %, "
        f"{WORDS[other]} {100 * theirs.accuracy:.1f} %, difference {_words(more, 100, 1)} %",
        gain.above(), gain.mean, gain.error,
    )  # fmt: skip


@claim(BEYOND)
def sentiment(m: Results) -> Found:
    """The best unit of the LSTM classifies sentiment better than the best unit of random weights."""
    gain, other = (network.right_beside_random().beyond for network in (m.lstm, m.transformer))
    words = lambda gap: plus_minus(100 * gap.difference[0], 100 * gap.error[0], 1)
    return Found(
        f"LSTM: {m.lstm.unit_words()}; transformer: {m.transformer.unit_words()}. The best unit classifies "
        f"{words(gain)} % more texts correctly than the best unit of random weights in the LSTM, {words(other)} % "
        "more in the transformer",
        gain.exceeds()[0], gain.difference[0], gain.error[0],
    )  # fmt: skip


@claim("both are above one half by two standard errors")
def chance(m: Results) -> Found:
    """The best unit of the LSTM and the best unit of the transformer each classify sentiment better than chance."""
    ours, theirs = (network.best[1].right for network in (m.lstm, m.transformer))
    shares = clustered_error(ours), clustered_error(theirs)
    nearer = min(shares, key=lambda share: float(share.mean))
    return Found(
        f"{_words(ours, 100, 1)} % and {_words(theirs, 100, 1)} % of the texts",
        all(share.above(0.5) for share in shares), nearer.mean, nearer.error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def recurrence(m: Results) -> Found:
    """The cell state and the hidden state follow from the gates: c = f c' + i g, with c' the cell state before, and h =
    o tanh c."""
    return Found(f"largest error {m.off:.1e}", m.off < SAME, m.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"A small LSTM and a transformer of as many parameters ({m.lstm.parameters:,} and "
        f"{m.transformer.parameters:,}), each trained once, for {m.p.steps} steps by the same loop on "
        f"{m.corpus.data.words}. (a) The mean cosine of the state at each position to earlier states: the cell state, "
        "and the last level of the residual stream. (b) The mean cosine of two positions: for the words, the cell and "
        "the hidden state of the LSTM, and for the levels of the transformer. (c) The mean of each gate over the "
        "units. (d) The share of texts that the best unit of each kind classifies correctly, chosen on "
        f"{m.p.labelled} texts and scored on as many others; bars: random weights. Standard errors over texts, of "
        f"random weights over {m.p.draws} networks."
    )


def series(m: Results) -> dict:
    # Only positions from the second on have earlier positions.
    table: dict = {"place": np.arange(2, LENGTH + 1)}
    for name, network in (("LSTM", m.lstm), ("transformer", m.transformer)):
        trained = network.trained
        text, levels = mean_and_error(trained.along_text), mean_and_error(trained.along_layers)
        table |= {
            f"cosine to places before, {name}": text[0], f"cosine to places before, {name}, error": text[1],
            f"cosine to places before, {name}, random weights": _random(network, lambda states: states.along_text)[0],
            f"length of the state, {name}": trained.lengths[:, 1:].mean(axis=0),
            f"cosine_by_level, {name}": levels[0], f"cosine_by_level, {name}, error": levels[1],
            f"accuracy_by_kind_of_unit, {name}": np.array([unit.accuracy for unit in network.units.values()]),
            f"loss_by_text, {name}": trained.loss,
        }  # fmt: skip
    assert m.lstm.trained.gates is not None
    gate_means = m.lstm.trained.gates[:, :, 1:].mean(axis=0)
    return table | {gate.replace("_", " "): values for gate, values in zip(GATES, gate_means, strict=True)}


def _random(network: Network, pick: Callable[[States], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return mean_and_error(np.array([pick(states).mean(axis=0) for states in network.random]))


def draw(m: Results) -> Figure:
    return panels(m, (_along_text, _along_levels, _gates, _units), columns=2, height=4.8)


def _along_text(ax: Axes, m: Results) -> None:
    pick = lambda states: states.along_text
    for network, colour, name in ((m.lstm, LSTM_COLOUR, "cell"), (m.transformer, TRANSFORMER_COLOUR, "stream")):
        runs = mean_and_error(pick(network.trained)), _random(network, pick)
        for run, line, label in zip(runs, ("-", "--"), (name, f"{name}, random"), strict=True):
            time_series(np.arange(2, len(run[0]) + 2), *run, ax, colour=colour, linestyle=line, label=label,
                        xlabel="position in the text", ylabel="mean cosine to\nearlier positions")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.legend(fontsize=6, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, handlelength=2.2, columnspacing=1)


def _along_levels(ax: Axes, m: Results) -> None:
    pick = lambda states: states.along_layers
    levels = m.transformer.trained.along_layers.shape[1]
    # The levels of the transformer stand apart, to the right.
    at = (np.arange(3), 4 + np.arange(levels))
    for network, x, colour in zip((m.lstm, m.transformer), at, (LSTM_COLOUR, TRANSFORMER_COLOUR), strict=True):
        ax.errorbar(x, *mean_and_error(pick(network.trained)), color=colour, marker="o", ms=3.5, lw=1.1)
        ax.errorbar(x, *_random(network, pick), color=colour, marker="x", ms=3.5, lw=1.1, ls="--")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xticks(np.concatenate(at), ["words", "cell", "hidden", "words", *map(str, range(1, levels))], fontsize=6)
    for x, name, colour in ((1, "LSTM", LSTM_COLOUR), (4 + (levels - 1) / 2, "transformer, level", TRANSFORMER_COLOUR)):
        ax.text(x, 1.01, name, ha="center", va="bottom", fontsize=6, transform=ax.get_xaxis_transform(), color=colour)
    ax.set(ylabel="mean cosine of two positions", xlim=(-0.5, at[1][-1] + 0.5))


def _gates(ax: Axes, m: Results) -> None:
    pick = lambda states: states.gates
    runs = mean_and_error(pick(m.lstm.trained)), _random(m.lstm, pick)
    for k, gate in enumerate(GATES):
        for (mean, error), line, label in zip(runs, ("-", "--"), (gate.replace("_gate", ""), None), strict=True):
            time_series(np.arange(1, mean.shape[1] + 1), mean[k], error[k], ax, colour=OKABE_ITO[k], linestyle=line,
                        label=label, xlabel="position in the text", ylabel="gate, mean over units")  # fmt: skip
    ax.set_ylim(0, 1)
    ax.legend(fontsize=6, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), title="dashed: random weights",
              title_fontsize=6)  # fmt: skip


def _units(ax: Axes, m: Results) -> None:
    labels, lowest = [], 1.0
    for network, colour in ((m.lstm, LSTM_COLOUR), (m.transformer, TRANSFORMER_COLOUR)):
        for kind, unit in network.units.items():
            at, (mean, error) = len(labels), network.random_accuracy(kind)
            ax.errorbar(at, 100 * unit.accuracy, 100 * unit.error, color=colour, marker="o", ms=4, capsize=2)
            ax.bar(at, mean, 0.6, yerr=error, color="0.85", ecolor="0.5", capsize=2)
            lowest = min(lowest, *(units[kind].accuracy for units in network.random_units))
            labels.append(LABELS[kind])
    ax.axhline(50, color="0.4", lw=0.7, ls=":")
    ax.set_xticks(range(len(labels)), labels=labels, fontsize=6)
    ax.set(ylabel="texts classified correctly\nby the best unit (%)", ylim=(min(40, 100 * lowest - 3), None))


FIGURE = figure(
    __name__,
    # A single training does not tell how much another seed would differ.
    over=lambda m: "texts, of one training of each; of random weights over networks",
    on=lambda m: Measured(NETWORK, m.corpus.data, {
        "texts": len(m.lstm.trained.loss), "tokens": LENGTH, "layers": m.p.layers, "d": m.p.d, "steps": m.p.steps,
        "seeds": m.p.draws,
    }),
    recorded=lambda m: {
        "starts": m.p.draws, "data": m.corpus.data.words, "units": recipes_of(m.p)["lstm"].hidden,
        "parameters of the LSTM": m.lstm.parameters, "parameters of the transformer": m.transformer.parameters,
        "tokens": LENGTH, "solver": "none: layers in float32",
    },
)  # fmt: skip
