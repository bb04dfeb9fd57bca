"""What the figure of a causal network claims: its first token, sinks, what they are worth, and heads of a place."""

import numpy as np

from ...probe.measures.tally import Average, clustered_error
from ..framework.causal import ABSENT, NAME, OWN, PASSAGES, USUAL
from ..framework.experiment import Claim, over, plus_minus
from ..framework.passages import articles_words
from ..framework.starts import Starts, starts_of
from ..framework.verdict import Measured, Subject
from .measure import MARK, Results
from .seen import Found, Seen
from .windows import Windows


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
