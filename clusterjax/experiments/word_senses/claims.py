"""What the figure of two senses claims. The level is chosen on every second word and scored on the others."""

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.causal import ABSENT, NAME
from ..framework.experiment import Claim, over, plus_minus
from ..framework.starts import starts_of
from .measure import Results


LEAST = 8  # words, below which nothing is claimed of senses
SURELY = "by two standard errors over words, or as many as are as improbable with few"
SAME = 1e-3  # of a cosine: by how much float32 may move it


def level_of(m: Results) -> int:
    """The level at which the gap of words 0, 2, ... is largest, the embedding aside."""
    return 1 + int(np.argmax(m.trained.gap[::2, 1:].mean(axis=0)))


def of_model(m: Results) -> str:
    """What the network is called in a sentence."""
    return "the language model of the package" if m.own else NAME


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure; of few words, as of the network of the package, only what must hold."""
    if len(m.words) < LEAST:
        return (_claim_of_rest(m),)
    level = level_of(m)
    of_rest = lambda cosines: cosines.gap[1::2, level]
    gap, mixed = clustered_error(of_rest(m.trained)), clustered_error(of_rest(m.shuffled))
    ordered = clustered_error(of_rest(m.trained) - of_rest(m.shuffled))
    beyond = starts_of(m.trained.gap[1::2], [one.gap[1::2] for one in m.random])
    told = lambda values: plus_minus(*clustered_error(values)[:2], 3)
    where = f"after layer {level}, the level of the largest gap in the other words"
    claims = (
        Claim(
            says=f"In {of_model(m)} a word is more alike in two contexts of one sense than in contexts of two.",
            measured=f"mean cosine {told(m.trained.same[1::2, level])} and {told(m.trained.different[1::2, level])}, "
            f"gap {plus_minus(gap.mean, gap.error, 3)}, {where}",
            criterion=f"a gap above zero {SURELY}",
            holds=gap.above(),
            kind="finding",
            value=float(gap.mean),
            error=float(gap.error),
        ),
        Claim(
            says=f"For {of_model(m)} the words of a context tell the sense in random order too, and less than in "
            "order.",
            measured=f"gap with the other words in random order {told(of_rest(m.shuffled))}, "
            f"{plus_minus(ordered.mean, ordered.error, 3)} less than in order: "
            f"{100 * ordered.mean / gap.mean:.0f} % of it is of the order, {where}",
            criterion=f"in random order the gap is above zero, and less than in order, both {SURELY}",
            holds=mixed.above() and ordered.above(),
            kind="finding",
            value=float(ordered.mean),
            error=float(ordered.error),
        ),
        Claim(
            says=f"The gap of {of_model(m)} comes with training: it is larger than that of random weights.",
            measured=f"gap of random weights {m.spread}, {beyond.words(level)}, "
            f"{plus_minus(beyond.beyond.difference[level], beyond.beyond.error[level], 3)} less, {where}",
            criterion="less by two standard errors, or with few words and networks by as many as are as improbable",
            holds=beyond.exceeds(level),
            kind="finding",
            value=float(beyond.beyond.difference[level]),
            error=float(beyond.beyond.error[level]),
        ),
        _claim_of_rest(m),
    )
    return over(f"{gap.units} words on which the level was not chosen", claims)


def _claim_of_rest(m: Results) -> Claim:
    return Claim(
        says="What stands after a word changes nothing of it.",
        measured=f"largest change of a cosine {m.off:.1e} with another token in all places after it",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    level = level_of(m)
    gap = clustered_error(m.trained.gap[1::2, level])
    told = (
        "Its vocabulary has too few such words for a claim."
        if len(m.words) < LEAST
        else f"After layer {level} the gap is {plus_minus(gap.mean, gap.error, 3)}, over words on which the layer was "
        "not chosen."
    )
    return (
        f"{ABSENT + ' ' if m.own else ''}The stream of {len(m.words)} words of two senses, from {m.words[0]} to "
        f"{m.words[-1]}, in {of_model(m)}; {m.contexts} contexts of each sense, each read twice, as a causal network "
        "sees only what stands before a word. (a) Mean cosine of pairs of contexts of one sense, and of two. "
        "(b) The gap "
        f"between the two, beside that with the other words in random order and that of {len(m.random)} networks of "
        f"random weights {m.spread}. Means over words with their standard errors; of random weights, over networks. "
        f"{told}"
    )
