"""What is measured of a causal network: similarity with and without the first token, that token apart, heads by place.

One pass over the texts gives all of it, for the trained network, for the same tokens in random order, and for random
weights. SmolLM2-135M-Instruct (Q4_1) is the network where it is installed; the language model of the package is
measured beside it, whose training texts began anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import SinkMask, WindowMask, probe, transformer
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.position_heads import _allowed, of_layer, position_heads_of
from ...probe.measures.sinks import OF_FIRST
from ...probe.measures.survey import Average, Clustered, Measure, average_of, clustered_error, survey
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.causal import (
    ABSENT,
    NAME,
    OWN,
    PASSAGES,
    SMOLLM2,
    USUAL,
    Reading,
    ids_of_words,
    reading_of,
    spread_words,
    untrained,
)
from ..shared.controls import Starts, keys_of, seed_of, starts_of
from ..shared.layout import WIDTH
from ..shared.networks import articles_of, articles_words, passages


# What one network does to some texts, and beside it its controls.


class Seen(NamedTuple):
    """What one network does to some texts.

    **Attributes:**

    - `first`: The first token against the others.
    - `cosine`: The mean cosine of all pairs, the first token in them, (levels,).
    - `heads`: The weight that heads give to places.
    """

    first: probe.FirstToken
    cosine: Average
    heads: probe.PositionHeads

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.cosine.mean)


def seen_of(first: probe.FirstToken, heads: probe.PositionHeads, tokens: np.ndarray, articles: np.ndarray) -> Seen:
    """The same, with the mean cosine of all pairs of texts of so many tokens; errors are over `articles`, (texts,)."""
    over_articles = lambda one: average_of(one.values, articles)
    first = probe.FirstToken(*map(over_articles, first))
    heads = probe.PositionHeads(*({place: over_articles(one) for place, one in of.items()} for of in heads))
    assert first.cosine.values is not None and first.cosine_of_others.values is not None
    # Of n (n - 1) / 2 pairs n - 1 are with the first token: the others weigh (n - 2) / n, that token 2 / n.
    n = np.asarray(tokens)[:, None]
    cosine = average_of((2 * first.cosine.values + (n - 2) * first.cosine_of_others.values) / n, articles)
    return Seen(first, cosine, heads)


@dataclass(frozen=True, eq=False)
class Found:
    """One network beside its controls.

    **Attributes:**

    - `name`: What it is called in a sentence.
    - `trained`, `shuffled`: What it does to the texts, and to their tokens in random order.
    - `random`: What networks of random weights do to the texts, drawn as before training.
    - `tokens`: How many tokens a text has, at most.
    - `articles`: The article of each text, over which errors are.
    - `spread`: How the random weights were drawn, in words.
    - `usual`: The same as `random` of weights of the spread that `transformers` takes where no file says another; none
        where the network began with that.
    """

    name: str
    trained: Seen
    shuffled: Seen
    random: tuple[Seen, ...]
    tokens: int
    articles: np.ndarray
    spread: str
    usual: tuple[Seen, ...] = ()

    @property
    def late(self) -> int:
        """The last level before the last norm."""
        return self.trained.levels - 2

    def onset(self, times: float, seen: Seen | None = None) -> int | None:
        """The first level at which the first token is surely so many times as long as the others, and at the next one
        too; None if there is none."""
        apart = (self.trained if seen is None else seen).first.apart(times)
        held = np.flatnonzero(apart[:-1] & apart[1:])
        return int(held[0]) if held.size else None


# The language model of the package measured as SmolLM2-135M-Instruct (Q4_1) is, from arrays of its forward pass.
#
# Levels are those of its stream, before the last norm; a text begins with whatever word its passage begins with, as the
# texts of its training began anywhere.


def own_model(seed: int, draws: int, mark: str, marks: str) -> tuple[Seen, Seen, tuple[Seen, ...], int]:
    """The trained model on the passages of the package, on their words in random order, and as many models as it might
    have started; each a `Seen`, and how many tokens a text has at most."""
    report = transformer.bundled_training()["report"]
    recipe, tokenizer = transformer.LanguageRecipe(**report["recipe"]), transformer.load_tokenizer()
    texts = probe.Encoded(*passages(recipe.length))
    separators = {mark: ids_of_words([tokenizer.decode([i]) for i in range(recipe.words)], marks)}
    articles = articles_of(probe.bundled_texts())
    of = lambda model, texts: measure_arrays(*run(model, *texts), texts, separators, articles)
    model = transformer.load()
    shuffled = probe.shuffle_tokens(texts, jax.random.key(seed))
    random = tuple(of(recipe.model(seed_of(key)), texts) for key in keys_of(seed, draws))
    return of(model, texts), of(model, shuffled), random, recipe.length


def measure_arrays(
    hidden: np.ndarray, attention: np.ndarray, texts: probe.Encoded, separators: dict[str, Any], articles: np.ndarray
) -> Seen:
    """A `Seen` of hidden states (texts, levels, n, d) and causal attention (texts, layers, heads, n, n)."""
    mask, n = jnp.asarray(texts.mask), texts.mask.shape[1]
    levels = [OF_FIRST(jnp.asarray(level), mask) for level in np.moveaxis(hidden, 1, 0)]
    first = probe.FirstToken(
        *(average_of(np.stack([np.asarray(level[name]) for level in levels], axis=1)) for name in levels[0])
    )
    of = of_layer(*texts, separators)
    layers = [of(mask, jnp.asarray(layer), mask)["mass"] for layer in np.moveaxis(attention, 1, 0)]
    allowed = np.broadcast_to(np.tri(n, dtype=bool), (attention.shape[1], n, n))
    heads = position_heads_of(allowed, texts, average_of(np.stack(layers, axis=1)), separators)
    return seen_of(first, heads, texts.mask.sum(axis=1), articles)


def run(model: transformer.LanguageModel, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stream before the blocks and after each, and the attention of each; rows of padding are zero."""
    hidden, weights = _run(model, jnp.asarray(ids), jnp.asarray(mask))
    rows = mask[:, None, None, :, None]
    return np.asarray(hidden), np.where(rows, np.asarray(weights), 0)


@eqx.filter_jit
def _run(model: transformer.LanguageModel, ids: Int[Array, "texts n"], mask: Bool[Array, "texts n"]) -> Any:
    def of_text(ids: Array, present: Array) -> tuple[Array, Array]:
        def step(block: transformer.Block, x: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
            # What the block itself attends with: read through its first norm.
            weights = block.attention.weights(block.residual.read(block.norms[0], x), present)
            return block(x, present), (x, weights)

        last, (before, weights) = model.stack.scan(step, model.embed(ids))
        return jnp.concatenate([before, last[None]]), weights

    return jax.vmap(of_text)(ids, mask)


# What attention sinks are worth: the loss under a sliding window, with and without the first tokens in sight.
#
# The window w lets token i attend to tokens i - w + 1 to i; with k tokens kept, to the first k as well (streaming). The
# cost is the mean of $\ell_i(w, k) - \ell_i$ over the places i at which the window has lost sight of something, which
# is from place w on, in each text; the full causal mask has $\ell_i$. Positions are those of the whole text: no token
# is moved closer.
#
# Source: Xiao et al., *Efficient streaming language models with attention sinks* (2309.17453), Sections 3.1 and 3.2.


LONGEST = 256
KEPT = (0, 1, 4)


@dataclass(frozen=True, eq=False)
class Windows:
    """The cost of each window, in nats for each token.

    **Attributes:**

    - `widths`: The windows, increasing.
    - `loss`: Of the full mask over all tokens of a text, (): an `Average` over texts.
    - `cost`: By width and kept tokens, the mean over the places from the width on, an `Average` over texts.
    - `texts`: How many texts are longer than each width.
    - `articles`: By width, the article of each text that is longer, over which errors are.
    - `off`: The largest difference of a loss from that of the full mask at a place that sees the same.
    """

    widths: tuple[int, ...]
    loss: Average
    cost: dict[tuple[int, int], Average]
    texts: dict[int, int]
    articles: dict[int, np.ndarray]
    off: float

    def given_back(self, width: int, kept: int, than: int = 0, share: float = 0.0) -> Clustered:
        """By how much less the window costs with `kept` tokens than with `than`, paired by text, less a share of what
        it costs with `than`."""
        with_less, with_more = self.cost[width, than].values, self.cost[width, kept].values
        assert with_less is not None and with_more is not None
        return clustered_error((1 - share) * with_less - with_more, self.articles[width])


def windows_of(
    model: probe.Model, texts: probe.Encoded, articles: np.ndarray, width: int, quick: bool, say: Callable[[str], None]
) -> Windows:
    """The loss of a causal network on texts under all windows."""
    # A quick run has the widest window alone: each mask is a pass over all texts.
    widths = (width,) if quick else (width // 4, width // 2, width)
    say("the loss under the full causal mask")
    plain = probe.token_losses(model, texts)
    words, cost, off, texts_of, articles_of = texts.mask.sum(axis=1), {}, 0.0, {}, {}
    for w in widths:
        # Place w is the first from which the window does not reach token 0, and the last loss is at n - 2.
        long = words - 1 > w
        if (counted := int(long.sum())) < 2:
            say(f"no window of {w} tokens: only {counted} texts are longer")
            continue
        texts_of[w], articles_of[w] = counted, articles[long]
        for kept in KEPT:
            say(f"the loss under a window of {w} tokens with {kept} kept")
            mask = SinkMask(w, kept) if kept else WindowMask(w, causal=True)
            lost = probe.token_losses(probe.with_mask(model, mask), texts) - plain
            cost[w, kept] = average_of(np.nanmean(lost[long, w:], axis=1), articles[long])
            # Up to there the window sees what the full mask does.
            off = max(off, float(np.nanmax(np.abs(lost[:, :w]))))
    loss = average_of(np.nanmean(plain, axis=1), articles)
    return Windows(tuple(texts_of), loss, cost, texts_of, articles_of, off)


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


# What the figure of a causal network claims: its first token, sinks, what they are worth, and heads of a place.


SMALL = 0.02  # of a mean cosine: what the first token may change of it
ALONE = 1e-4  # of a length: what float32 may move where sums are taken in another order
SUDDEN = 2.0  # times as long as the others: what it must be below at the level before
SAME = 1e-3  # nats: by how much float32 may move a loss whose window leaves nothing out
PLACE_WORDS = {"previous": "the token before", "self": "the token itself", MARK: MARK}


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    found = m.network
    of_network = (
        _claim_of_mean(found), _claim_of_controls(found), _claim_of_onset(m), _claim_of_cosine(m), _claim_of_sinks(m),
        *(_claim_of_place(m, place) for place in ("previous", "self", MARK)),
    )  # fmt: skip
    of_own = () if m.windows is None else over(articles_words(m.own.articles), [_claim_of_own(m)])
    windows = () if m.windows is None else _claims_of_windows(m.windows)
    return over(articles_words(found.articles), (_claim_of_alone(m), *of_network, *of_own, *windows))


def measured_of(found: Found, network: Subject, data: Subject) -> Measured:
    """What the claims of one network were measured on."""
    size = {
        "texts": found.trained.cosine.texts, "tokens": found.tokens, "layers": found.trained.levels - 1,
        "seeds": len(found.random),
    }  # fmt: skip
    return Measured(network, data, size)


def _values(average: Average) -> np.ndarray:
    assert average.values is not None
    return average.values


def _claim_of_alone(m: Results) -> Claim:
    return Claim(
        says="The first token moves by itself: the tokens behind it change nothing of its stream.",
        measured=f"largest difference from its stream without them, of its length: {m.alone:.1e}",
        criterion=f"less than {ALONE:g} at every level",
        holds=m.alone < ALONE,
        kind="identity",
        value=m.alone,
    )


def _claim_of_mean(found: Found) -> Claim:
    change = _values(found.trained.first.cosine_of_others) - _values(found.trained.cosine)
    # Up to the last level before the last norm, and that after it.
    level = int(np.argmax(np.abs(change.mean(axis=0))))
    found_change = clustered_error(change[:, level], found.articles)
    whole, others = found.trained.cosine, found.trained.first.cosine_of_others
    return Claim(
        says=f"The first token changes the mean cosine of the tokens of {found.name} by less than {SMALL:g}.",
        measured=f"of all levels it changes most at {level}: {plus_minus(whole.mean[level], whole.error[level], 3)} "
        "with "
        f"it, {plus_minus(others.mean[level], others.error[level], 3)} without; in texts of at most {found.tokens} "
        "tokens",
        criterion=f"by less than {SMALL:g} at every level, in the mean over texts",
        holds=abs(float(found_change.mean)) < SMALL,
        kind="finding",
        value=float(found_change.mean),
        error=float(found_change.error),
    )


def _beside(found: Found, random: tuple[Seen, ...]) -> Starts:
    """The trained network beside networks of random weights in the mean cosine without the first token."""
    of = lambda seen: _values(seen.first.cosine_of_others)
    return starts_of(of(found.trained), [of(seen) for seen in random], found.articles)


def _claim_of_controls(found: Found) -> Claim:
    level = found.late
    of = lambda seen: _values(seen.first.cosine_of_others)[:, level]
    shuffled = clustered_error(of(found.trained) - of(found.shuffled), found.articles)
    own = _beside(found, found.random)
    told = lambda starts: (
        f"{starts.words(level)}, difference "
        f"{plus_minus(starts.beyond.difference[level], starts.beyond.error[level], 3)}"
    )
    says = f"The tokens of {found.name} are less alike than in random order, and more alike than with random weights"
    measured = (
        f"mean cosine without the first token after layer {level} {of(found.trained).mean():.3f}; in random order "
        f"{of(found.shuffled).mean():.3f}, difference {plus_minus(shuffled.mean, shuffled.error, 3)}; random weights "
        f"{found.spread}: {told(own)}"
    )
    criterion, holds = "each difference exceeds two standard errors", shuffled.below() and own.exceeds(level)
    if found.usual:
        usual = _beside(found, found.usual)
        below = usual.beyond._replace(z=-usual.beyond.z)
        says += f" as they were drawn before training, and yet less alike than with weights of spread {USUAL:g}"
        measured += f"; of spread {USUAL:g}: {told(usual)}"
        holds = holds and bool(below.exceeds()[level])
    return Claim(
        says=f"{says}.",
        measured=measured,
        criterion=f"{criterion}, or with few articles and networks as many as are as improbable",
        holds=holds,
        kind="finding",
        value=float(own.beyond.difference[level]),
        error=float(own.beyond.error[level]),
    )


def _claim_of_onset(m: Results) -> Claim:
    found, times = m.network, m.p.times
    of, onset = found.trained.first, found.onset(times)
    highest = int(np.argmax(of.ratio.mean))
    at = highest if onset is None else onset
    others = [_level_words(found.onset(times, seen)) for seen in found.random]
    lengths = lambda level: (
        f"{plus_minus(of.length.mean[level], of.length.error[level], 0)} against "
        f"{plus_minus(of.length_of_others.mean[level], of.length_of_others.error[level], 0)} after layer {level}"
    )
    sudden = onset is not None and float(of.ratio.mean[onset - 1]) < SUDDEN
    from_level = "no layer" if onset is None else f"layer {onset}"
    return Claim(
        says=f"In one layer the first token of {found.name} becomes more than {times:g} times as long as the others.",
        measured=f"more than {times:g} times as long as the median of the others from {from_level} on, up to "
        f"{_last(of.apart(times))}: {lengths(at)}, {lengths(max(at - 1, 0))}; the largest ratio of all "
        f"levels is that after layer {highest}, "
        f"{plus_minus(of.ratio.mean[highest], of.ratio.error[highest], 1)}; with tokens in random order from "
        f"{_level_words(found.onset(times, found.shuffled))} on, with random weights from {', '.join(others)} on",
        criterion=f"at two levels in a row the mean over texts of the ratio exceeds {times:g} by two standard errors, "
        f"at the level before it is below {SUDDEN:g}, and with random weights it is nowhere so",
        holds=sudden and all(found.onset(times, seen) is None for seen in found.random),
        kind="finding",
        value=float(of.ratio.mean[at]),
        error=float(of.ratio.error[at]),
    )


def _level_words(level: int | None) -> str:
    return "no layer" if level is None else f"layer {level}"


def _last(apart: np.ndarray) -> str:
    """The last level at which it is so."""
    levels = np.flatnonzero(apart)
    return f"layer {levels[-1]}" if levels.size else "none"


def _claim_of_cosine(m: Results) -> Claim:
    found = m.network
    of, onset = found.trained.first, found.onset(m.p.times)
    where = "After the first layer" if onset is None else "Where it is long"
    of_texts = lambda values: clustered_error(values, found.articles)
    # From where the first token is long, or from the first layer on, to the last level before the last norm.
    part = slice(onset or 1, found.late + 1)
    below = _values(of.cosine_of_others)[:, part].mean(axis=1) - _values(of.cosine)[:, part].mean(axis=1)
    less = of_texts(below)
    in_random_order = found.shuffled.first
    other = of_texts(
        _values(in_random_order.cosine_of_others)[:, part].mean(axis=1)
        - _values(in_random_order.cosine)[:, part].mean(axis=1)
    )
    return Claim(
        says=f"{where} the first token of {found.name} is less alike to the others than these are to each other.",
        measured=f"mean over layers {part.start} to {part.stop - 1} of its cosine to the others "
        f"{of.cosine.mean[part].mean():.3f}, of the others among each other "
        f"{of.cosine_of_others.mean[part].mean():.3f}: "
        f"{plus_minus(less.mean, less.error, 3)} less; in random order {plus_minus(other.mean, other.error, 3)} less",
        criterion="less by more than two standard errors",
        holds=less.above(),
        kind="finding",
        value=float(less.mean),
        error=float(less.error),
    )


def _surely(average: Average, than: float) -> np.ndarray:
    """Which heads are above `than` by two standard errors."""
    return average.mean - 2 * average.error > than


def _claim_of_sinks(m: Results) -> Claim:
    found, onset = m.network, m.network.onset(m.p.times)
    sinks = lambda seen: _surely(seen.heads.excess["first"], m.p.sink)
    excess, mass = found.trained.heads.excess["first"], found.trained.heads.mass["first"]
    baseline = float(found.trained.heads.baseline["first"].mean[0, 0])
    many, layers = sinks(found.trained), len(excess.mean)
    # Layer k + 1 reads level k: the layers whose attention sees a long first token, and those before.
    cut = layers if onset is None else onset
    early, late = many[:cut], many[cut:]
    layer, head = found.trained.heads.strongest("first")
    share = lambda part: "none" if not part.size else f"{int(part.sum())} of {part.size}"
    others = ", ".join(f"{seen.heads.excess['first'].mean.max():.3f}" for seen in found.random)
    return Claim(
        says=f"Of the heads of {found.name} in the layers that find the first token long most are sinks of it, and few "
        "of those before.",
        measured=f"sinks beyond {m.p.sink:g}: {share(early)} heads up to layer {cut}, {share(late)} in later layers; "
        "in "
        f"random order {int(sinks(found.shuffled).sum())} of {many.size}; uniform causal attention gives it "
        f"{baseline:.3f}; the strongest is head {head + 1} of layer {layer + 1}, which gives it "
        f"{plus_minus(mass.mean[layer, head], mass.error[layer, head], 3)}; strongest of random weights "
        f"{others} beyond uniform",
        criterion="more than half of the heads of the later layers, and no more than a quarter of those before, are "
        f"sinks by more than {m.p.sink:g} beyond uniform causal attention, by two standard errors; no head of random "
        "weights is",
        holds=bool(late.size and late.mean() > 0.5 and (not early.size or early.mean() <= 0.25))
        and not any(sinks(seen).any() for seen in found.random),
        kind="finding",
        value=float(late.mean()) if late.size else 0.0,
    )


def _claim_of_place(m: Results, place: str) -> Claim:
    found, heads = m.network, m.network.trained.heads
    layer, head = heads.strongest(place)
    excess, baseline = heads.excess[place], float(heads.baseline[place].mean[layer, head])
    count = lambda seen: int(_surely(seen.heads.excess[place], m.p.sink).sum())
    in_random_order = found.shuffled.heads.excess[place]
    random = [seen.heads.excess[place].mean.max() for seen in found.random]
    return Claim(
        says=f"At least one head of {found.name} attends to {PLACE_WORDS[place]} more than uniformly.",
        measured=f"{count(found.trained)} of {excess.mean.size} heads by more than {m.p.sink:g} beyond uniform; the "
        f"strongest, head {head + 1} of layer {layer + 1}, gives "
        f"{plus_minus(heads.mass[place].mean[layer, head], heads.mass[place].error[layer, head], 3)} where uniform "
        f"attention gives {baseline:.3f}, and in random order "
        f"{plus_minus(in_random_order.mean[layer, head] + baseline, in_random_order.error[layer, head], 3)}; "
        "strongest of "
        f"random weights {', '.join(f'{value:.3f}' for value in random)} beyond uniform",
        criterion=f"at least one head exceeds uniform attention by {m.p.sink:g} and two standard errors, and none of "
        "random weights does",
        holds=count(found.trained) > 0 and not any(map(count, found.random)),
        kind="finding",
        value=float(excess.mean[layer, head]),
        error=float(excess.error[layer, head]),
    )


def _claim_of_own(m: Results) -> Claim:
    own = m.own
    ratio, excess = own.trained.first.ratio, own.trained.heads.excess["first"]
    level = int(np.argmax(ratio.mean))
    layer, head = own.trained.heads.strongest("first")
    return Claim(
        says="In the language model of the package, whose training texts begin anywhere, no first token is "
        f"{m.p.times:g} times as long as the others, and no head gives it {m.p.sink:g} beyond uniform attention.",
        measured=f"length of the first token over the median of the others at most "
        f"{plus_minus(ratio.mean[level], ratio.error[level])}, after layer {level}; the strongest head gives it "
        f"{plus_minus(excess.mean[layer, head], excess.error[layer, head], 3)} beyond uniform causal attention",
        criterion="at no level and in no head, in the mean over texts",
        holds=bool(ratio.mean.max() < m.p.times and excess.mean.max() < m.p.sink),
        kind="finding",
        value=float(excess.mean[layer, head]),
        error=float(excess.error[layer, head]),
        on=measured_of(own, OWN, PASSAGES),
    )


def _claims_of_windows(windows: Windows) -> tuple[Claim, ...]:
    if not windows.widths:
        return ()
    cost = lambda width, kept: plus_minus(windows.cost[width, kept].mean, windows.cost[width, kept].error)
    told = lambda kept: "; ".join(f"window {width}: {cost(width, kept)}" for width in windows.widths)
    back = {width: windows.given_back(width, 1) for width in windows.widths}
    share = {width: float(back[width].mean / windows.cost[width, 0].mean) for width in windows.widths}
    more = {width: windows.given_back(width, 4, than=1) for width in windows.widths}
    shown = ", ".join(map(str, windows.widths))
    last = windows.widths[-1]
    texts = ", ".join(f"{windows.texts[width]} of {windows.loss.texts}" for width in windows.widths)
    return (
        Claim(
            says=f"A sliding window of {shown} tokens, which loses sight of the first ones, costs {NAME} more than one "
            "nat a token.",
            measured=f"cost in nats a token, {told(0)}; loss of the full mask "
            f"{plus_minus(windows.loss.mean, windows.loss.error)} nats a "
            f"token; over the places that the window cuts short, in {texts} texts",
            criterion="more than 1 by two standard errors, for every window",
            holds=all(
                clustered_error(_values(windows.cost[w, 0]), windows.articles[w]).above(1.0) for w in windows.widths
            ),
            kind="finding",
            value=float(windows.cost[last, 0].mean),
            error=float(windows.cost[last, 0].error),
        ),
        Claim(
            says="Most of this is given back by keeping the first token alone in sight.",
            measured=f"cost in nats a token with it, {told(1)}; given back "
            + ", ".join(
                f"{plus_minus(back[w].mean, back[w].error)} of it by window {w} ({100 * share[w]:.0f} %)"
                for w in windows.widths
            ),
            criterion="more than half by two standard errors, for every window",
            holds=all(windows.given_back(w, 1, share=0.5).above() for w in windows.widths),
            kind="finding",
            value=float(back[last].mean),
            error=float(back[last].error),
        ),
        Claim(
            says="Three further tokens kept give back less than a fifth of what the first one does.",
            measured=f"cost in nats a token with the first four, {told(4)}; less than with one by "
            + ", ".join(plus_minus(more[w].mean, more[w].error, 3) for w in windows.widths),
            criterion="in the mean over texts, for every window",
            holds=all(more[w].mean < 0.2 * back[w].mean for w in windows.widths),
            kind="finding",
            value=float(more[last].mean),
            error=float(more[last].error),
        ),
        Claim(
            says="Where a window leaves nothing out, it costs nothing.",
            measured=f"largest difference of a loss there {windows.off:.1e} nats",
            criterion=f"less than {SAME:g}",
            holds=windows.off < SAME,
            kind="identity",
            value=windows.off,
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    found, reading = m.network, m.reading
    whose = "the language model of this package on passages of Wikipedia" if reading is None else (
        f"{NAME}, which others trained, on {reading.data.words}"
    )  # fmt: skip
    windows = (
        f"(e) no windows without {NAME}. " if m.windows is None else
        "(e) What a sliding window costs in loss, over the places that it cuts short: with no further token, with the "
        "first one, and with the first four in sight (streaming). "
    )  # fmt: skip
    return (
        f"{'' if reading is not None else ABSENT + ' '}A causal network: {whose}, texts cut to {found.tokens} tokens. "
        "(a) "
        "Mean cosine of the tokens at each level, with and without the first token of a text, for the tokens in random "
        f"order, and for {len(found.random)} networks of random weights {found.spread}"
        f"{f' and of spread {USUAL:g}' if found.usual else ''}. (b) The mean cosine of the first token to the "
        "others. (c) Its length, and the median of those of the others; vertical line: from where it is surely more "
        f"than {m.p.times:g} times as long. (d) The weight that each head gives it beyond uniform causal "
        f"attention, layer by layer. {windows}(f) The strongest head of each run for a place: the "
        "weight beyond uniform attention to the token before, the token itself, the first token, and punctuation. "
        "Means over texts with their standard errors, "
        f"over {articles_words(found.articles)}; of random weights, over networks. {_verdict(m)}"
    )


def _verdict(m: Results) -> str:
    onset = m.network.onset(m.p.times)
    of = m.network.trained.first
    parts = [
        f"{m.network.name} has no token that is far longer than the others" if onset is None else
        f"From layer {onset} on the first token of {m.network.name} is up to {of.ratio.mean.max():.0f} times as long "
        "as the others, "
        f"whose mean cosine does not change without it by more than {_most_changed(m.network.trained):.3f}"
    ]  # fmt: skip
    if m.windows is not None and m.windows.widths:
        width = m.windows.widths[-1]
        parts.append(
            f"a window of {width} tokens costs {m.windows.cost[width, 0].mean:.2f} nats a token, of which the first "
            f"token in sight gives back {m.windows.given_back(width, 1).mean:.2f}"
        )
    return f"{'; '.join(parts)}."


def _most_changed(seen: Seen) -> float:
    return float(np.abs(seen.first.cosine_of_others.mean - seen.cosine.mean).max())


# The panels of a causal network: similarity, the first token apart, sinks, windows, and heads of a place.


TRAINED, SHUFFLED, RANDOM, FIRST, USUAL_SHOWN = (OKABE_ITO[k] for k in (0, 1, 2, 5, 3))
RANDOM_WORDS, USUAL_WORDS = "random weights, own spread", f"random weights, spread {USUAL:g}"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
    axes = figure.subplots(3, 2)
    _cosines(axes[0, 0], m.network)
    _of_first(axes[0, 1], m.network)
    _lengths(axes[1, 0], m)
    _sinks(axes[1, 1], m)
    _windows(axes[2, 0], m)
    _places(axes[2, 1], m)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    for ax in (axes[0, 0], axes[0, 1], axes[1, 0], axes[1, 1]):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _over_networks(values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over networks of random weights."""
    many = np.stack(values)
    return many.mean(axis=0), many.std(axis=0, ddof=1) / np.sqrt(len(many))


def _cosines(ax: Axes, found: Found) -> None:
    levels = np.arange(found.trained.levels)
    series = lambda mean, error, **more: time_series(
        levels, mean, error, ax, xlabel="layer", ylabel="mean cosine", **more
    )
    series(found.trained.cosine.mean, found.trained.cosine.error, colour=TRAINED, label="trained")
    others = found.trained.first.cosine_of_others
    series(others.mean, others.error, colour="0.1", linestyle=":", label="without its first token")
    shuffled = found.shuffled.cosine
    series(shuffled.mean, shuffled.error, colour=SHUFFLED, linestyle="--", label="tokens shuffled")
    for seen, colour, label in ((found.random, RANDOM, RANDOM_WORDS), (found.usual, USUAL_SHOWN, USUAL_WORDS)):
        if seen:
            random = _over_networks([one.cosine.mean for one in seen])
            series(*random, colour=colour, linestyle="-.", label=label)
    ax.set_ylim(0, 1)
    _legend(ax)


def _of_first(ax: Axes, found: Found) -> None:
    levels = np.arange(found.trained.levels)
    for seen, colour, line, label in (
        (found.trained, TRAINED, "-", "trained"),
        (found.shuffled, SHUFFLED, "--", "tokens shuffled"),
    ):
        cosine = seen.first.cosine
        time_series(levels, cosine.mean, cosine.error, ax, colour=colour, linestyle=line, label=label, xlabel="layer",
                    ylabel="cosine of the first\ntoken to the others")  # fmt: skip
    random = _over_networks([seen.first.cosine.mean for seen in found.random])
    time_series(levels, *random, ax, colour=RANDOM, linestyle="-.", label="random weights", xlabel="layer",
                ylabel="cosine of the first\ntoken to the others")  # fmt: skip
    ax.set_ylim(0, 1)
    _legend(ax)


def _lengths(ax: Axes, m: Results) -> None:
    levels = np.arange(m.network.trained.levels)
    of = m.network.trained.first
    for average, colour, line, label in (
        (of.length, FIRST, "-", "first token"),
        (of.length_of_others, TRAINED, "--", "others, median"),
    ):
        time_series(levels, average.mean, average.error, ax, colour=colour, linestyle=line, label=label,
                    xlabel="layer", ylabel="length of the stream")  # fmt: skip
    onset = m.network.onset(m.p.times)
    if onset is not None:
        ax.axvline(onset, color="0.6", lw=0.7, zorder=0)
    ax.set_yscale("log")
    _legend(ax)


def _sinks(ax: Axes, m: Results) -> None:
    # One point for each head, over its layer; layer k makes level k.
    excess = m.network.trained.heads.excess["first"].mean
    layers = np.arange(1, len(excess) + 1)
    ax.plot(np.repeat(layers, excess.shape[1]), excess.ravel(), ".", color=FIRST, ms=3, label="trained, each head")
    ax.plot(layers, excess.mean(axis=1), color=TRAINED, lw=1.2, label="mean over heads")
    random, of_random = _over_networks([seen.heads.excess["first"].mean.mean(axis=1) for seen in m.network.random])
    time_series(layers, random, of_random, ax, colour=RANDOM, linestyle="-.", label="random weights", xlabel="layer",
                ylabel="weight on the first token\nbeyond uniform")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    _legend(ax)


def _windows(ax: Axes, m: Results) -> None:
    if m.windows is None or not m.windows.widths:
        ax.text(0.5, 0.5, f"{NAME} is not installed", ha="center", va="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    places = np.arange(len(m.windows.widths))
    for k, (kept, colour, hatch) in enumerate(zip(KEPT, (FIRST, TRAINED, SHUFFLED), ("", "//", ".."), strict=True)):
        averages = [m.windows.cost[width, kept] for width in m.windows.widths]
        words = {0: "none kept", 1: "first token kept"}.get(kept, f"first {kept} kept")
        ax.bar(places + 0.27 * (k - 1), [one.mean for one in averages], 0.25, yerr=[one.error for one in averages],
               color=colour, hatch=hatch, edgecolor="white", lw=0, capsize=2, label=words)  # fmt: skip
    ax.set_xticks(places, labels=[f"{width}" for width in m.windows.widths])
    ax.set(xlabel="window (tokens)", ylabel="cost of the window\n(nats a token)")
    ax.legend(fontsize=6)


def _places(ax: Axes, m: Results) -> None:
    """The strongest head of each place in every run, each run's own."""
    heads = m.network.trained.heads
    names = [name for name in heads.excess if name != "next"]
    places = np.arange(len(names))
    strongest = lambda seen, name: seen.heads.excess[name].mean.max()
    for seen, colour, marker, label in (
        ((m.network.trained,), TRAINED, "o", "trained"),
        ((m.network.shuffled,), SHUFFLED, "s", "tokens shuffled"),
        (m.network.random, RANDOM, "x", "random weights"),
    ):
        for k, one in enumerate(seen):
            ax.plot(places, [strongest(one, name) for name in names], marker, color=colour, ms=4,
                    label=label if k == 0 else None)  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xticks(places, labels=names, fontsize=6)
    ax.set(ylabel="strongest head: weight\nbeyond uniform", xlim=(-0.5, len(names) - 0.5))
    ax.legend(fontsize=6)


def _legend(ax: Axes) -> None:
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.legend(fontsize=6, handlelength=2.2)


# A causal network as an experiment: what is measured, claimed, recorded and drawn.


def _experiment_run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    if m.reading is None:
        say(ABSENT)
    on = _measured(m)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "texts": on.data.words, "tokens": m.network.tokens,
         "draws of random weights": len(m.network.random), "random weights": m.network.spread,
         "articles": len(np.unique(m.network.articles)), "starts": on.size["texts"],
         "windows": [] if m.windows is None else list(m.windows.widths), "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = _of_network(m.network, "")
    if m.windows is not None:
        # Of another number of levels than those of SmolLM2.
        series |= _of_network(m.own, "_by_level, language model of the package")
        series["width_by_window"] = np.array(m.windows.widths)
        for kept in KEPT:
            averages = [m.windows.cost[width, kept] for width in m.windows.widths]
            series[f"cost with {kept} kept_by_window"] = np.array([float(one.mean) for one in averages])
            series[f"cost with {kept} kept, error_by_window"] = np.array([float(one.error) for one in averages])
    return series


def _of_network(found: Found, by: str) -> dict:
    series = {f"layer{by}": np.arange(found.trained.levels)}
    for run, seen in (("trained", found.trained), ("tokens shuffled", found.shuffled)):
        averages = {"cosine": seen.cosine} | {name: getattr(seen.first, name) for name in probe.FirstToken._fields}
        for name, average in averages.items():
            series |= {f"{name} {run}{by}": average.mean, f"{name} {run}, error{by}": average.error}
    for name, drawn in (("random weights", found.random), (f"random weights of spread {USUAL:g}", found.usual)):
        for k, seen in enumerate(drawn):
            series[f"cosine by {name} {k}{by}"] = seen.cosine.mean
    # (layers, heads) of each place.
    for place, average in found.trained.heads.excess.items():
        series[f"weight on {place} beyond uniform_by_layer_and_head{by}"] = average.mean
    return series


def _measured(m: Results) -> Measured:
    if m.reading is None:
        return measured_of(m.network, OWN, PASSAGES)
    return measured_of(m.network, SMOLLM2, m.reading.data)


FIGURE = declared("causal-network", _experiment_run, parameters=Parameters)
