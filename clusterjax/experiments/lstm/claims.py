"""What the figure of the LSTM claims: likeness along texts and layers, what gates do, and the unit for sentiment."""

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.experiment import Claim, over, plus_minus
from ..framework.starts import Starts, starts_of
from ..framework.units import Unit
from .measure import GATES, Network, Results


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
