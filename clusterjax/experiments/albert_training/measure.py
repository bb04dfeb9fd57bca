"""What the figure of ALBERT's training measures: the snapshots on record, the last of them again, and random starts.

The training of the package wrote the mean cosine of every snapshot into its report, so that nothing is trained here.
The last snapshot is the network that the package ships: its curve is measured again and must be the one on record,
which ties the report to the weights. One random start says nothing of another, therefore the trained network is
compared with several of them, paired by text (see `framework.starts`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.random as jr
import numpy as np

from ... import probe
from ...probe.measures.survey import encoded
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.passages import articles_of
from ..framework.starts import STARTS, Starts, keys_of, starts_of


_NO_CURVE = ("step", "held-out loss")  # of a snapshot: one number, not one for each level


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(STARTS, "the number of random starts to compare with", least=2, most=32)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `training`: The snapshots, the report and the history of the losses, as the training wrote them.
    - `steps`: (snapshots,), the training step of each.
    - `last`: What each snapshot has at its last level, by the name of the statistic, (snapshots,).
    - `off`: The largest difference of the mean cosines on record from those of the network of the package.
    - `starts`: Networks as it might have started, and the trained one beside them.
    - `words`: The same without the special tokens at both ends of a text; snapshots on record are of all tokens.
    - `shuffled_words`: That of the trained network with its words in random order, (texts, levels).
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    training: dict[str, Any]
    steps: np.ndarray
    last: dict[str, np.ndarray]
    off: float
    starts: Starts
    words: Starts
    shuffled_words: np.ndarray
    articles: np.ndarray

    @property
    def of_words(self) -> np.ndarray:
        """The mean cosine of the words of the trained network, without special tokens, (levels,)."""
        return self.words.mean + self.words.beyond.difference


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Read the snapshots, and measure the network of the package and the random starts."""
    training = probe.bundled_training()
    snapshots = training["snapshots"]
    say(f"measuring the last of {len(snapshots)} snapshots again, and {p.draws} random starts")
    off, starts, words, shuffled = _measured_again(training, settings.seed, p.draws)
    steps = np.array([snapshot["step"] for snapshot in snapshots])
    last = {
        name: np.array([snapshot[name][-1] for snapshot in snapshots]) for name in snapshots[0] if name not in _NO_CURVE
    }
    return Results(training, steps, last, off, starts, words, shuffled, articles_of(probe.bundled_texts()))


def _measured_again(training: dict[str, Any], seed: int, draws: int) -> tuple[float, Starts, Starts, np.ndarray]:
    """The largest difference of the recorded mean cosines of the last snapshot from those of the network of the
    package, that network beside others as it might have started, with all tokens and with words alone, and the mean
    cosines of its words in random order."""
    model = probe.load()
    # The random starts have neither of these parts. Without them here one compiled program serves all networks.
    for part in ("pooler", "predictions"):
        setattr(model.network, part, None)
    # To the full length of the network, as the snapshots were measured.
    texts, special = encoded(model, probe.bundled_texts(), model.max_positions), probe.special_ids(model)
    others = [probe.randomise(model, key, initial=probe.bundled_start) for key in keys_of(seed, draws)]
    of = lambda network, read, left_out: _values(
        probe.similarity_histograms(network, read, rank=False, leave_out=left_out).cosine
    )
    every, words = ([of(network, texts, left_out) for network in (model, *others)] for left_out in ((), special))
    shuffled = of(model, probe.shuffle_tokens(texts, jr.key(seed), special), special)
    recorded = np.array(training["snapshots"][-1]["cosine"])
    # At any level, the first and the last included.
    off = float(np.max(np.abs(every[0].mean(axis=0) - recorded)))
    articles = articles_of(probe.bundled_texts())
    return off, starts_of(every[0], every[1:], articles), starts_of(words[0], words[1:], articles), shuffled


def _values(average: probe.Average) -> np.ndarray:
    assert average.values is not None
    return average.values
