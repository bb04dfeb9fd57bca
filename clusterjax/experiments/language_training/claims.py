"""What the figure of the language model's training claims: gathering, sinks, and answers formed layer by layer."""

import numpy as np

from ... import probe
from ...probe.measures.tally import clustered_error
from ..framework.experiment import Claim, over, plus_minus
from ..framework.passages import articles_words
from .measure import Results


SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = _learnt(m), _gathers(m), _beyond_shuffled(m), _sink(m), _layer_by_layer(m), _same(m)
    return over(
        f"passages, as on record; of the difference from random starts over {articles_words(m.articles)} and networks",
        claims,
    )


def _learnt(m: Results) -> Claim:
    report = m.training["report"]
    gain = report["bigram loss"] - report["held-out loss"]
    return Claim(
        says="The model has learnt more than which word follows which.",
        measured=f"held-out loss {report['held-out loss']:.3f} nats a word piece, by the word before "
        f"{report['bigram loss']:.3f}, by frequency {report['unigram loss']:.3f}",
        criterion="lower than by the word before by more than 0.3 nats",
        holds=gain > 0.3,
        kind="finding",
        value=gain,
    )


def _gathers(m: Results) -> Claim:
    starts, cosine, error = m.starts, m.last["cosine"], m.last["cosine error"]
    return Claim(
        says="Trained, the model gathers its tokens more than as it might have started.",
        measured=f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, "
        f"{starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} as it started itself; difference "
        f"{plus_minus(starts.beyond.difference[-1], starts.beyond.error[-1], 3)}",
        criterion=f"the difference from {len(starts.each)} random starts exceeds two standard errors, or as many "
        "as are as improbable with so few",
        holds=starts.exceeds(),
        kind="finding",
        value=float(starts.beyond.difference[-1]),
        error=float(starts.beyond.error[-1]),
    )


def _beyond_shuffled(m: Results) -> Claim:
    # Measured again, since the report has no values of single texts to pair.
    again, other = m.again[:, -1], m.shuffled[:, -1]
    beyond = clustered_error(again - other, m.articles)
    told = lambda values: plus_minus(*clustered_error(values, m.articles)[:2], 3)
    return Claim(
        says="Trained, the model gathers the tokens of a text more than the same words in random order.",
        measured=f"mean cosine after the last layer {told(again)}, in random order {told(other)}; difference, paired "
        f"by text, {plus_minus(beyond.mean, beyond.error, 3)} (± over {articles_words(m.articles)})",
        criterion="the difference exceeds two standard errors",
        holds=beyond.above(),
        kind="finding",
        value=float(beyond.mean),
        error=float(beyond.error),
    )


def _sink(m: Results) -> Claim:
    before = m.before
    # One number for each random start.
    of_before = before.std(ddof=1) / np.sqrt(len(before))
    return Claim(
        says="In this causal model, whose training texts begin anywhere, a head becomes a sink of the first token.",
        measured=f"weight beyond uniform attention of the strongest head {plus_minus(m.sink[-1], m.of_sink[-1], 3)} "
        f"after training; of the strongest before it {plus_minus(before.mean(), of_before, 3)} over {len(before)} "
        "random starts. No token began its training texts, so that this says nothing of models whose texts begin "
        "with one: sink-training trains both kinds",
        criterion=f"more than {m.p.sink:g} after training, by two standard errors",
        holds=bool(m.sink[-1] - 2 * m.of_sink[-1] > m.p.sink),
        kind="finding",
        value=float(m.sink[-1]),
        error=float(m.of_sink[-1]),
    )


def _layer_by_layer(m: Results) -> Claim:
    lens = np.array(m.training["snapshots"][-1]["loss"])
    return Claim(
        says="The loss of the logit lens falls at every level: the answer is formed layer by layer.",
        measured="loss at the levels: " + ", ".join(f"{value:.2f}" for value in lens),
        criterion="each is lower than the one before",
        holds=bool(np.all(np.diff(lens) < 0)),
        kind="finding",
        value=float(lens[-1]),
    )


def _same(m: Results) -> Claim:
    # Level by level.
    off = float(np.max(np.abs(m.again.mean(axis=0) - np.array(m.training["snapshots"][-1]["cosine"]))))
    return Claim(
        says="The model of the package is the last snapshot.",
        measured=f"mean cosines of its levels differ from those on record by at most {off:.1e}",
        criterion=f"less than {SAME:g}",
        holds=off < SAME,
        kind="identity",
        value=off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what it is worth."""
    report, (layer, head) = m.training["report"], m.head
    return (
        f"The language model of this package along its training: {report['recipe']['layers']} causal layers, "
        f"{report['parameters'] / 1e6:.2f} million parameters, {report['steps']} steps on film reviews and a little of "
        f"Wikipedia, {report['seconds'] / 60:.0f} minutes on two cores. (a) Loss on held-out texts; by the word "
        "before: bigrams, smoothed as by Kneser and Ney. (b) Mean cosine of the tokens after the last layer, over "
        f"{len(probe.bundled_texts())} passages that it has not seen, beside the same words in random order; at step 0 "
        f"the weights are random; crosses: {len(m.starts.each)} networks as it might have started. (c) The weight that "
        f"each head gives the first token beyond uniform attention; the strongest at the end is head {head + 1} of "
        f"layer {layer + 1}. (d) What the head of the model would lose at each level (logit lens), one line for each "
        "snapshot; at level 0 a tied head repeats the word that was read. Standard errors over passages. "
        f"{_verdict(m)}"
    )


def _verdict(m: Results) -> str:
    cosine, other = m.last["cosine"][-1], m.last["shuffled cosine"][-1]
    error = np.hypot(m.last["cosine error"][-1], m.last["shuffled cosine error"][-1])
    more = "more" if cosine - other > 2 * error else "less" if other - cosine > 2 * error else "no more"
    # The words of the claim on sinks, for either outcome.
    weak = "is hardly a sink, in this model, whose training texts begin anywhere; sink-training compares both kinds"
    return (
        f"Training gathers the tokens, but those of a text {more} than the same words in random order; and even the "
        f"strongest head {'is a sink' if m.sink[-1] > m.p.sink else weak}."
    )
