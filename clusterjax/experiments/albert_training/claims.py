"""What the figure of ALBERT's training claims: whether its tokens gather more as it is trained."""

import numpy as np

from ... import probe
from ...probe.measures.tally import clustered_error
from ..framework.experiment import Claim, over, plus_minus
from ..framework.passages import articles_words
from ..framework.starts import Starts
from .measure import Results


ON_RECORD = "of snapshots over passages, whose single numbers are not on record"
SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = _learnt(m), _gathers(m), _gathers_words(m), _grows(m), _same(m)
    return over(f"{articles_words(m.articles)}, {ON_RECORD}; of random starts over networks", claims)


def _learnt(m: Results) -> Claim:
    report = m.training["report"]
    gain = report["unigram loss"] - report["held-out loss"]
    return Claim(
        says="The network has learnt from context.",
        measured=f"held-out loss {report['held-out loss']:.3f} nats a word piece, by frequency alone "
        f"{report['unigram loss']:.3f}",
        criterion="lower by more than 0.3 nats",
        holds=gain > 0.3,
        kind="finding",
        value=gain,
    )


def _gathers(m: Results) -> Claim:
    starts, cosine, error, near = m.starts, m.last["cosine"], m.last["cosine error"], m.last["near_mass"]
    rise, of_rise = float(starts.beyond.difference[-1]), float(starts.beyond.error[-1])
    return Claim(
        says="Trained, the network gathers its tokens more than as it might have started.",
        measured=f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, "
        f"{starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} as it started itself; difference "
        f"{plus_minus(rise, of_rise, 3)}; of pairs above 0.9 {100 * near[0]:.1f} % as it started and "
        f"{100 * near[-1]:.1f} % after training",
        criterion=f"the difference from {len(starts.each)} random starts exceeds two standard errors, or as many "
        "as are as improbable with so few",
        holds=starts.exceeds(),
        kind="finding",
        value=rise,
        error=of_rise,
    )


def _gathers_words(m: Results) -> Claim:
    words, beyond = m.words, m.words.beyond
    shuffled = m.shuffled_words[:, -1]
    of_shuffled = plus_minus(*clustered_error(shuffled, m.articles)[:2], 3)
    return Claim(
        says="The words alone, without the special tokens, are gathered more than as they might have started too.",
        measured=f"mean cosine of the words after the last layer {m.of_words[-1]:.3f} after training ({of_shuffled} in "
        f"random order), with the special tokens {m.last['cosine'][-1]:.3f}; {words.words()} before it; difference "
        f"{plus_minus(beyond.difference[-1], beyond.error[-1], 3)}",
        criterion=f"the difference from {len(words.each)} random starts exceeds two standard errors, or as many as are "
        "as improbable with so few",
        holds=words.exceeds(),
        kind="finding",
        value=float(beyond.difference[-1]),
        error=float(beyond.error[-1]),
    )


def _grows(m: Results) -> Claim:
    cosine, error = m.last["cosine"], m.last["cosine error"]
    # The deepest fall below any earlier snapshot, not only below the one before: a slow decline counts as a whole.
    highest = np.maximum.accumulate(cosine)
    lowest = int((highest - cosine).argmax())
    before = int(cosine[: lowest + 1].argmax())
    fall, of_fall = float(cosine[before] - cosine[lowest]), float(np.hypot(error[before], error[lowest]))
    return Claim(
        says="Along training the mean cosine after the last layer falls nowhere.",
        measured=f"mean cosine after the last layer: {_way(m.steps, cosine)}; deepest fall below an earlier snapshot "
        f"{plus_minus(fall, of_fall, 3)}",
        criterion="no fall below an earlier snapshot exceeds two standard errors",
        holds=fall <= 2 * of_fall,
        kind="finding",
        value=fall,
        error=of_fall,
    )


def _same(m: Results) -> Claim:
    return Claim(
        says="The network of the package is the last snapshot.",
        measured=f"mean cosines of its levels differ from those on record by at most {m.off:.1e}",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and which way it went."""
    report = m.training["report"]
    *early, (layers, _, _) = report["recipe"]["stages"]
    before = " and ".join(f"{few} layers on {tokens} tokens" for few, tokens, _ in early)
    return (
        "The ALBERT of this package along its training: masked language modelling of film reviews, with a little of "
        f"Wikipedia and the web, {report['steps']} steps of {report['recipe']['batch_size']} x "
        f"{report['recipe']['length']} word pieces, {report['parameters'] / 1e6:.2f} million parameters. (a) Loss on "
        "held-out texts, with the layers and the length that were trained at that step; dashed: guessing by "
        "frequency. (b) Mean cosine of the tokens at each level, one line for each snapshot, over "
        f"{len(probe.bundled_texts())} passages that it has not seen; dotted: the words alone; dashed: "
        f"{len(m.starts.each)} networks as it "
        f"might have started, the mean and its standard error over networks. (c) The same after layer {layers} against "
        "the step, and with the tokens in random order; crosses: those networks. Other standard errors are over "
        f"passages, as they are on record.{f' Dotted: until there it was trained with {before}.' if early else ''} "
        f"All tokens are counted, also [CLS] and [SEP] at both ends of a text: the words alone end at "
        f"{m.of_words[-1]:.2f}, and began at {m.words.mean[-1]:.2f} ± {m.words.error[-1]:.2f} in those networks. "
        f"{_verdict(m.steps, m.last, m.starts)}"
    )


def _verdict(steps: np.ndarray, last: dict[str, np.ndarray], starts: Starts) -> str:
    cosine, error = last["cosine"], last["cosine error"]
    # Not paired, as the report has no values of single texts.
    beyond, of_beyond = cosine[-1] - last["shuffled cosine"][-1], np.hypot(error[-1], last["shuffled cosine error"][-1])
    more = "above" if beyond > 2 * of_beyond else "below" if beyond < -2 * of_beyond else "at"
    # The other side of a one-sided comparison.
    less = starts.beyond._replace(z=-starts.beyond.z).exceeds()[-1]
    other = "above" if starts.exceeds() else "below" if less else "no different from"
    return (
        f"The mean cosine after the last layer is {_way(steps, cosine)}; it ends {more} that of shuffled tokens, "
        f"{last['shuffled cosine'][-1]:.2f}, and {other} that of random starts, {starts.mean[-1]:.2f} ± "
        f"{starts.error[-1]:.2f}."
    )


def _way(steps: np.ndarray, cosine: np.ndarray) -> str:
    """From where, by which extremes, to where it went."""
    # The highest snapshot, and the lowest one after it: both are named unless they are the first or the last.
    top = int(cosine.argmax())
    low = top + int(cosine[top:].argmin())
    by = [f"{cosine[k]:.2f} at step {steps[k]}" for k in (top, low) if k not in (0, len(cosine) - 1)]
    return ", ".join([f"{cosine[0]:.2f} before training", *by, f"{cosine[-1]:.2f} at the end"])
