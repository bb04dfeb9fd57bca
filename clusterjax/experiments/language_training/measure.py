"""What the figure of the language model's training measures: its snapshots, the model itself, and random starts.

The training of the package wrote the depth profile of every snapshot (mean cosine, attention sinks, logit lens) into
its report, so that nothing is trained here. The model that the package ships is the last snapshot: it is measured again
and must agree with the report. Sinks and cosines before training are those of several random starts, since one start
says nothing of another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax.random as jr
import numpy as np

from ... import probe, transformer
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.passages import articles_of, passages
from ..framework.starts import STARTS, Starts, keys_of, seed_of, starts_of


_LAST = ("cosine", "cosine error", "shuffled cosine", "shuffled cosine error", "loss", "loss error")


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(STARTS, "the number of random starts to compare with", least=2, most=32)
    sink: float = parameter(
        0.1, "the weight beyond uniform attention from which a head counts as a sink", above=0, most=1
    )


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `training`: The snapshots, the report and the history of the losses, as the training wrote them.
    - `steps`: (snapshots,), the training step of each.
    - `last`: What each snapshot has at its last level, by the name of the statistic, (snapshots,).
    - `head`: Layer and head, from 0, of the strongest sink after training.
    - `sink`, `of_sink`: (snapshots,), the weight beyond uniform attention that this head gives the first token, and its
        standard error.
    - `again`, `shuffled`: (texts, levels), the mean cosine of the model of the package, and with the tokens of each
        text in random order.
    - `starts`: Models as it might have started, and the trained one beside them.
    - `before`: (starts,), the strongest sink of each of these.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    p: Parameters
    training: dict[str, Any]
    steps: np.ndarray
    last: dict[str, np.ndarray]
    head: tuple[int, int]
    sink: np.ndarray
    of_sink: np.ndarray
    again: np.ndarray
    shuffled: np.ndarray
    starts: Starts
    before: np.ndarray
    articles: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Read the snapshots, and measure the model of the package and the random starts."""
    training = transformer.bundled_training()
    snapshots, report = training["snapshots"], training["report"]
    say(f"measuring the last of {len(snapshots)} snapshots again, and {p.draws} random starts")
    articles = articles_of(probe.bundled_texts())
    texts, recipe = passages(report["recipe"]["length"]), transformer.LanguageRecipe(**report["recipe"])
    # The recipe of the package is not one of an LSTM.
    random = (cast(transformer.LanguageModel, recipe.model(seed_of(key))) for key in keys_of(settings.seed, p.draws))
    models = (transformer.load(), *random)
    again, *others = (transformer.depth_profile(model, *texts) for model in models)
    mixed = probe.shuffle_tokens(probe.Encoded(*texts), jr.key(settings.seed))
    shuffled = transformer.depth_profile(transformer.load(), *mixed)
    # The sink of a start is that of its own strongest head: heads of different starts do not correspond.
    before = np.array([profile.sink.mean(axis=0).max() for profile in others])
    strongest = np.unravel_index(np.argmax(snapshots[-1]["sink"]), np.shape(snapshots[-1]["sink"]))
    head = int(strongest[0]), int(strongest[1])
    sink, of_sink = (
        np.array([snapshot[name][head[0]][head[1]] for snapshot in snapshots]) for name in ("sink", "sink error")
    )
    return Results(
        p,
        training,
        np.array([snapshot["step"] for snapshot in snapshots]),
        {name: np.array([snapshot[name][-1] for snapshot in snapshots]) for name in _LAST},
        head,
        sink,
        of_sink,
        again.cosine,
        shuffled.cosine,
        starts_of(again.cosine, [profile.cosine for profile in others], articles),
        before,
        articles,
    )
