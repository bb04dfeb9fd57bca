"""What is measured of a causal network: similarity with and without the first token, that token apart, heads by place.

One pass over the texts gives all of it, for the trained network, for the same tokens in random order, and for random
weights. SmolLM2-135M-Instruct (Q4_1) is the network where it is installed; the language model of the package is
measured beside it, whose training texts began anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.random as jr
import numpy as np

from ... import probe
from ...probe.measures.first_token import OF_FIRST
from ...probe.measures.position_heads import _allowed, of_layer, position_heads_of
from ...probe.measures.stream import Measure
from ...probe.measures.survey import survey
from ..framework.causal import NAME, USUAL, Reading, ids_of_words, reading_of, spread_words, untrained
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.passages import articles_of, passages
from .own_model import own_model
from .seen import Found, Seen, seen_of
from .windows import LONGEST, Windows, windows_of


DRAWS = 3
OWN_NAME = "the language model of the package"
MARKS = ".,;:!?"
MARK = "punctuation"
SEVERAL = 4  # texts on which the first token is followed alone


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32, quick=2)
    times: float = parameter(10.0, "how many times as long as the others the first token is where it is apart", above=1)
    sink: float = parameter(
        0.3, "the weight beyond uniform attention from which a head counts as one of a place", above=0, most=1
    )
    width: int = parameter(64, "the widest window, in tokens; others are a half and a quarter of it", least=8, most=128)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `reading`: SmolLM2 and its texts; None if it is not installed.
    - `network`: SmolLM2; without it the model of the package.
    - `own`: The language model of the package.
    - `windows`: What windows cost SmolLM2; None without it.
    - `alone`: By how much the stream of a first token differs from that of the same token with none behind it, of its
        length; the largest of all levels.
    """

    p: Parameters
    reading: Reading | None
    network: Found
    own: Found
    windows: Windows | None
    alone: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run the texts through the networks and their controls, and through SmolLM2 under windows."""
    # First, as it says at once if the texts do not serve.
    reading = reading_of(settings, LONGEST)
    own = Found(
        OWN_NAME, *own_model(settings.seed, p.draws, MARK, MARKS), articles_of(probe.bundled_texts()),
        "as before its training",
    )  # fmt: skip
    if reading is None:
        words = probe.load("language-model")
        return Results(p, None, own, own, None, first_alone(words, probe.Encoded(*passages(own.tokens))))
    say(f"{NAME} reads {len(reading.texts.mask)} texts, in order and in random order")
    store, separators = settings.store, separators_of(reading.model)
    of = lambda name, model, texts: measure_seen(
        model, texts, separators, reading.articles, None if store is None else store / f"{name}.safetensors"
    )
    model, texts = reading.model, reading.texts
    weights, orders = jr.split(jr.key(settings.seed))
    shuffled = of("shuffled", model, probe.shuffle_tokens(texts, orders))
    trained, random = of("trained", model, texts), {None: [], USUAL: []}
    for spread, seen in random.items():
        for draw in range(p.draws):
            drawn = untrained(model, jr.fold_in(weights, draw), spread)
            say(f"random weights, {draw + 1} of {p.draws}: {drawn.name}")
            seen.append(of(f"{'random' if spread is None else 'usual'}-{draw}", drawn, texts))
    network = Found(
        NAME, trained, shuffled, tuple(random[None]), texts.mask.shape[1], reading.articles, spread_words(model),
        tuple(random[USUAL]),
    )  # fmt: skip
    windows = windows_of(model, reading.whole, reading.articles, p.width, settings.quick, say)
    return Results(p, reading, network, own, windows, first_alone(model, texts))


def first_alone(model: probe.Model, texts: probe.Encoded) -> float:
    """What the tokens behind it change of the first token's stream, of its length: the largest of all levels."""
    few, mask = texts.token_ids[:SEVERAL], texts.mask[:SEVERAL]
    inside = np.asarray(probe.trace(model, few, mask).hidden, float)[:, :, 0]
    alone = np.asarray(probe.trace(model, few[:, :1], mask[:, :1]).hidden, float)[:, :, 0]
    return float(np.max(np.linalg.norm(inside - alone, axis=-1) / np.linalg.norm(alone, axis=-1)))


def measure_seen(
    model: probe.Model,
    texts: probe.Encoded,
    separators: dict[str, Sequence[int]],
    articles: np.ndarray,
    store: Path | None = None,
) -> Seen:
    """All of it in one pass: what `probe.first_token` and `probe.position_heads` find."""
    surveyed = survey(
        model, texts, lambda ids, mask: Measure(OF_FIRST, of_layer(ids, mask, separators)),
        keep=(*probe.FirstToken._fields, "mass"), store=store,
        settings={"measure": "causal network", "separators": {name: list(of) for name, of in separators.items()}},
    )  # fmt: skip
    allowed = _allowed(model, texts.mask.shape[1])
    heads = position_heads_of(allowed, texts, surveyed.layers["mass"], separators)
    return seen_of(probe.FirstToken(**surveyed.levels), heads, texts.mask.sum(axis=1), articles)


def separators_of(model: probe.Model) -> dict[str, Sequence[int]]:
    """The ids of punctuation."""
    words = model.tokenizer.batch_decode([[i] for i in range(model.network.sizes.vocab_size)])
    return {MARK: ids_of_words(words, MARKS)}
