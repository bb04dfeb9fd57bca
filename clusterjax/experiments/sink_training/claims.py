"""What the figure of sinks along training claims: whether they come, with which texts, and what they change."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus
from ..framework.few import Few
from .measure import Results


SAME = 1e-5  # of a weight, by which float32 may move it
CHEAP = 0.05  # nats a token: what the token may change of the loss
SURELY = "by two standard errors, or as many as are as improbable with few trainings"


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = (
        _comes(m), _not_without(m), _of_the_token(m), _first_word(m), _unread(m), _not_before(m), _length(m), _loss(m),
        _baseline(m),
    )  # fmt: skip
    return over(f"{m.p.trainings} trainings", claims)


def _pair(m: Results, trained: bool, read: bool) -> str:
    """The strongest head after training and before it, in words."""
    before = Few.of(m.seen[trained, read].strongest[:, 0])
    return f"{m.last(trained, read).words()} after training, {before.words()} with random weights"


def _comes(m: Results) -> Claim:
    last = m.last(True, True)
    of_texts = m.seen[True, True].of_texts[:, -1].max()
    return Claim(
        says="Trained on texts that all begin with one token, a head becomes a sink of that token.",
        measured=f"weight beyond uniform attention of the strongest head: {_pair(m, True, True)} (error over texts at "
        f"most {of_texts:.3f})",
        criterion=f"above {m.p.sink:g} {SURELY}",
        holds=last.above(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _not_without(m: Results) -> Claim:
    last = m.last(False, False)
    return Claim(
        says="Trained on texts that begin anywhere, the strongest head of these models is no sink of the first token.",
        measured=f"weight beyond uniform attention of the strongest head: {_pair(m, False, False)}, at most "
        f"{last.each.max():.3f}",
        criterion=f"below {m.p.sink:g} {SURELY}",
        holds=last.below(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _of_the_token(m: Results) -> Claim:
    with_it, without = m.seen[True, True].strongest[:, -1], m.seen[True, False].strongest[:, -1]
    difference = Few.of(with_it - without)
    return Claim(
        says="Models trained with the token give it most: without it the same models give the first word less.",
        measured=f"the strongest head of models trained with the token gives the first place "
        f"{m.last(True, True).words()} "
        f"with it and {m.last(True, False).words()} without it, {difference.words()} more",
        criterion=f"the difference is above zero {SURELY}",
        holds=difference.above(0.0),
        kind="finding",
        value=difference.mean,
        error=difference.error,
    )


def _first_word(m: Results) -> Claim:
    last = m.last(True, False)
    return Claim(
        says="Trained with the token and read without it, a head is a sink of the first word.",
        measured=f"weight beyond uniform attention of the strongest head: {_pair(m, True, False)}",
        criterion=f"above {m.p.sink:g} {SURELY}",
        holds=last.above(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _unread(m: Results) -> Claim:
    last = m.last(False, True)
    return Claim(
        says="Models that never read the token have a head that is a sink of it when it is put before a text.",
        measured=f"the strongest head of models trained without it: {_pair(m, False, True)}; texts without it "
        f"{m.last(False, False).words()}",
        criterion=f"above {m.p.sink:g} {SURELY}",
        holds=last.above(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _not_before(m: Results) -> Claim:
    strongest = max(float(seen.strongest[:, 0].max()) for seen in m.seen.values())
    return Claim(
        says="Random weights have no sink in these models.",
        measured=f"the strongest head of all {2 * m.p.trainings} has {strongest:.4f} beyond uniform attention, "
        "whichever way they read",
        criterion=f"less than a tenth of {m.p.sink:g}",
        holds=strongest < m.p.sink / 10,
        kind="finding",
        value=strongest,
    )


def _length(m: Results) -> Claim:
    begun, plain = (Few.of(m.seen[kind, kind].ratio[:, -1]) for kind in (True, False))
    return Claim(
        says=f"The token that begins every text becomes more than {m.p.times:g} times as long as the others.",
        measured=f"its length over the median of the others {begun.words(2)} where it is largest; of the first word of "
        f"models trained without the token {plain.words(2)}; with random weights "
        f"{Few.of(m.seen[True, True].ratio[:, 0]).words(2)} and {Few.of(m.seen[False, False].ratio[:, 0]).words(2)}",
        criterion=f"above {m.p.times:g} {SURELY}",
        holds=begun.above(m.p.times),
        kind="finding",
        value=begun.mean,
        error=begun.error,
    )


def loss_change(m: Results) -> Few:
    """By how much the token changes the loss of the same words, for each pair of trainings."""
    return Few.of(m.loss[True].mean(axis=1) - m.loss[False].mean(axis=1))


def _loss(m: Results) -> Claim:
    change = loss_change(m)
    of_texts = (m.loss[True] - m.loss[False]).mean(axis=0)
    return Claim(
        says=f"The token hardly changes what the models learn: the loss of other words by less than {CHEAP:g} nats.",
        measured=f"loss of the same words {Few.of(m.loss[True].mean(axis=1)).words()} nats with the token and "
        f"{Few.of(m.loss[False].mean(axis=1)).words()} without it; difference {change.words()} (error over texts "
        f"{of_texts.std(ddof=1) / np.sqrt(len(of_texts)):.3f})",
        criterion=f"the difference is above {-CHEAP:g} and below {CHEAP:g} nats, both {SURELY}",
        holds=change.above(-CHEAP) and change.below(CHEAP),
        kind="finding",
        value=change.mean,
        error=change.error,
    )


def _baseline(m: Results) -> Claim:
    off = abs(m.baseline - m.exact)
    return Claim(
        says="Uniform causal attention gives the first token (H_n - 1) / (n - 1).",
        measured=f"{m.baseline:.6f}, by harmonic numbers {m.exact:.6f}",
        criterion=f"the same to {SAME:g}",
        holds=off < SAME,
        kind="identity",
        value=off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what it is worth."""
    begun, plain = m.last(True, True), m.last(False, False)
    come = "a sink comes" if begun.above(m.p.sink) else "hardly any comes"
    without = "none does" if plain.below(m.p.sink) else "one may"
    word = m.last(True, False)
    return (
        f"Two kinds of small causal models ({m.p.layers} layers, d = {m.p.d}, {m.parameters:,} parameters), trained "
        "for "
        f"{m.p.steps} steps on {m.corpus.data.words}: with a token that begins each text, and without it; "
        f"{m.p.trainings} trainings of each, whose standard errors are shown. At step 0 the weights are random. (a) "
        "The "
        "weight beyond uniform causal attention that the strongest head gives the first token, when models read texts "
        "with the token and without it. (b) The same, mean over heads. (c) The length of the first token over the "
        "median of the others, at the level where it is largest. (d) Each head after training. With the token "
        f"{come} ({plus_minus(begun.mean, begun.error)}), without it {without} "
        f"({plus_minus(plain.mean, plain.error)}); where models trained with the token read texts without it, they "
        "give the "
        f"first word {plus_minus(word.mean, word.error)}. This says nothing of networks of other sizes, or trained "
        "for longer."
    )
