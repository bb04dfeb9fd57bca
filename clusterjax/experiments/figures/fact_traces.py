r"""Which tokens hold a fact, and up to which layer? Causal tracing, beside the knock-outs of `facts`.

Noise on the embedding of the subject makes a causal network lose the object of a fact. Then the stream of one token is
restored at one level to that of the clean text, and log P of the object is read again (`probe.causal_trace`). What this
gives back, in nats, is the effect of the place. Tokens are those of four classes, as in `facts`: the tokens of the
subject before its last token, its last token, the tokens between the subject and the last token of the text, and that
last token. Levels count from the embedding, level 0; restoring the last token after the last layer restores the answer
by definition, and no claim is about the last level.

What would refute each claim, as written before any number of the figure was seen:

- "Noise on the subject takes more than noise on as many other tokens": a difference of log P of the object that is not
  above zero by two standard errors over relations, or, with few relations, by as many as are as improbable. The other
  tokens are all but the subject, the first token, which is an attention sink, and the last token.
- "The last token of the subject holds the fact at one level": there, on facts on which the level was not chosen, its
  effect does not exceed that of each other class, the last token included, by as many standard errors.
- "It holds the fact in early layers": in the mean over the levels of the first third of the layers, the effect of the
  last token of the subject is not above that in either other third. `facts` measures the same thirds by knock-outs.
- "The last token takes over": in the last third its effect is not above that of the last token of the subject.
- The identity fails where restoring the last token at the last level does not restore the answer.

The source reads large effects at the last token of the subject in early and middle layers of GPT-2 XL.

Source: Meng et al., *Locating and editing factual associations in GPT* (2202.05262), Section 2.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import causal_trace as draw_trace, time_series
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.known_facts import CLASSES, COLOURS, LAST, LINES, SUBJECT, AbstractOfFacts, known_facts_of
from ..shared.layout import panels


SAME = 1e-3  # nats: the change of a log probability that float32 may cause
OTHERS = slice(1, None, 2)  # the facts on which no level is chosen
SURELY = "by two standard errors over relations, or, with few relations, by as many as are as improbable"


@dataclass(frozen=True)
class Parameters:
    facts: int = parameter(24, "the largest number of known facts", least=4, most=1000, quick=4)
    draws: int = parameter(2, "the number of draws of the noise of each fact", least=1, most=64)


@dataclass(frozen=True, eq=False)
class Results(AbstractOfFacts):
    # The nats of log P that each level gives back, in the mean over the tokens of a class, (facts, levels, classes);
    # NaN where a fact has no token of the class
    effect: np.ndarray
    # log P of the object: of the clean text, with noise on the subject, and on as many other tokens, (facts, 3); NaN
    # where a fact has no other tokens
    log_p: np.ndarray
    off: float  # the largest change of log P if the last token is restored at the last level
    shown: tuple[probe.CausalTrace, tuple[str, ...]]  # the trace of one fact, and its tokens

    @property
    def thirds(self) -> list[np.ndarray]:
        """The levels after the embedding and before the last, in thirds."""
        return np.array_split(np.arange(1, self.effect.shape[1] - 1), 3)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    model, own, listed, facts = known_facts_of(p.facts, say)
    effects, log_p, off, shown = [], np.full((len(facts), 3), np.nan), 0.0, None
    spans = zip(
        facts.token_ids, *(column.tolist() for column in (facts.lengths, facts.begins, facts.ends)), strict=True
    )
    for i, (ids, length, begin, end) in enumerate(spans):
        say(f"tracing fact {i + 1} of {len(facts)}")
        key, answer = jr.fold_in(jr.key(settings.seed), i), int(facts.answers[i, 0])
        text = probe.Encoded(ids[None, :length], np.ones((1, length), bool))
        subject = list(range(begin, end + 1))
        trace = probe.causal_trace(model, text, answer, tokens=subject, key=key, draws=p.draws)
        effects.append(by_class(trace.restored - trace.corrupted, begin, end, length))
        log_p[i, :2] = trace.clean, trace.corrupted
        off = max(off, abs(float(trace.restored[-1, -1]) - trace.clean))
        others = [t for t in range(1, length - 1) if t not in subject]
        if len(others) >= len(subject):
            noisy = sorted(np.random.default_rng(i).permutation(others)[: len(subject)].tolist())
            log_p[i, 2] = corrupted(model, text, answer, noisy, key, p.draws)
        if shown is None:
            shown = trace, tuple(model.tokenizer.decode([int(token)]) for token in ids[:length])
    assert shown is not None
    return Results(p, own, listed, facts, np.stack(effects), log_p, off, shown)


def by_class(effect: np.ndarray, begin: int, end: int, length: int) -> np.ndarray:
    """The mean of the effect, (levels, n), over the tokens of each of `CLASSES`, (levels, classes)."""
    spans = (begin, end), (end, end + 1), (end + 1, length - 1), (length - 1, length)
    nothing = np.full(len(effect), np.nan)
    return np.stack([effect[:, a:b].mean(axis=1) if a < b else nothing for a, b in spans], axis=1)


def corrupted(model: probe.Model, text: probe.Encoded, answer: int, tokens: list[int], key: Any, draws: int) -> float:
    """log P of the answer with noise of the same size on other tokens, in the mean over draws."""
    spread = 3 * float(model.network.word_factors()[0].std())
    start = np.asarray(probe.activations(model, text.token_ids, place="stream")[0, 0])
    noise = spread * np.asarray(jr.normal(key, (draws, len(tokens), start.shape[1]), jnp.float32))
    log_probs = []
    for draw in noise:
        values = start.copy()
        values[tokens] += draw
        patched = probe.patch(model, probe.Edit("embedding", values, token=tokens))
        last = probe.trace(patched, text.token_ids).hidden[:, -1, -1:]
        scores = np.asarray(patched.logits(last), np.float64)[0, 0]
        log_probs.append(scores[answer] - scores.max() - np.log(np.sum(np.exp(scores - scores.max()))))
    return float(np.mean(log_probs))


def chosen(m: Results) -> int:
    """The level at which the last token of the subject gives back most, on the facts 0, 2, ...."""
    return 1 + int(np.argmax(np.nanmean(m.effect[::2, 1:-1, SUBJECT], axis=0)))


@claim(f"log P of the object is lower with noise on the subject {SURELY}")
def subject_noise(m: Results) -> Found | None:
    """Noise on the tokens of the subject takes more of log P of the object from {m.called} than noise on as many other
    tokens."""
    # The model of the package knows no facts, and its texts have no subject.
    if m.own:
        return None
    lost, other = m.log_p[:, 0] - m.log_p[:, 1], m.log_p[:, 0] - m.log_p[:, 2]
    more = m.mean(lost - other)
    return Found(
        f"noise on the subject takes {m.words(lost)} nats of {m.words(m.log_p[:, 0])}, noise on as many other tokens "
        f"{m.words(other)} ({int(np.isfinite(other).sum())} facts that have as many); difference "
        f"{plus_minus(more.mean, more.error)}",
        more.above(), more.mean, more.error,
    )  # fmt: skip


@claim(f"its effect exceeds that of each other class {SURELY}, over facts on which the level was not chosen")
def site(m: Results) -> Found | None:
    """At one level the stream of the last token of the subject gives {m.called} back more of log P of the object than
    that of any other class of tokens."""
    if m.own:
        return None
    level = chosen(m)
    effect = m.effect[OTHERS, level]
    beyond = [m.mean(effect[:, SUBJECT] - effect[:, k], OTHERS) for k in range(len(CLASSES)) if k != SUBJECT]
    # Few facts may have no tokens of a class.
    beyond = [average for average in beyond if np.isfinite(average.error)]
    least = min(beyond, key=lambda average: float(average.mean))
    listed = ", ".join(f"{name} {m.words(effect[:, k], 2, OTHERS)}" for k, name in enumerate(CLASSES))
    return Found(
        f"level {level} of {m.effect.shape[1] - 1}: {listed}; least difference {plus_minus(least.mean, least.error)}",
        all(average.above() for average in beyond), least.mean, least.error,
    )  # fmt: skip


@claim(f"its mean effect over the first third of the layers is above that over each other third {SURELY}")
def early(m: Results) -> Found | None:
    """The last token of the subject gives {m.called} back more in the first third of the layers than in each other
    third."""
    if m.own:
        return None
    thirds = [m.effect[:, third, SUBJECT].mean(axis=1) for third in m.thirds]
    beyond = [m.mean(thirds[0] - other) for other in thirds[1:]]
    least = min(beyond, key=lambda average: float(average.mean))
    return Found(
        f"mean effect in each third of the layers: {', '.join(m.words(third) for third in thirds)}",
        all(average.above() for average in beyond), least.mean, least.error,
    )  # fmt: skip


@claim(f"its mean effect over the last third of the layers is above that of the last token of the subject {SURELY}")
def taken_over(m: Results) -> Found | None:
    """In the last third of the layers the last token of the text gives {m.called} back more than the last token of the
    subject."""
    if m.own:
        return None
    late = m.effect[:, m.thirds[-1]].mean(axis=1)
    more, ahead = (
        m.mean(late[:, LAST] - late[:, SUBJECT]),
        np.mean(m.effect[..., LAST] - m.effect[..., SUBJECT], axis=0),
    )
    crossing = int(np.argmax(ahead > 0))
    return Found(
        f"mean effect in the last third: last token {m.words(late[:, LAST])}, last token of the subject "
        f"{m.words(late[:, SUBJECT])}; in the mean the last token is first ahead at level {crossing}",
        more.above(), more.mean, more.error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def restored(m: Results) -> Found:
    """The last token of the text, restored after the last layer, restores the answer."""
    return Found(f"largest change of log P of the answer {m.off:.1e} nats", m.off < SAME, m.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.known('and three tokens for the subject')} The embedding of the subject has noise of three standard "
        f"deviations of the embeddings, {m.p.draws} draws for each fact; then the stream of one token is restored at "
        "one level. (a) What each level gives back of log P of the object, in the mean over the tokens of a class. (b) "
        "The same in each third of the layers, without the embedding and the last level. (c) log P of the object: "
        "clean, with noise on the subject, and on as many other tokens. (d) The trace of one fact. Means over facts "
        f"with standard errors over {m.units}."
    )


def series(m: Results) -> dict:
    table: dict[str, Any] = {"level": np.arange(m.effect.shape[1])}
    for k, name in enumerate(CLASSES):
        mean = m.mean(m.effect[:, :, k])
        table |= {f"effect, {name}": mean.mean, f"effect, {name}, error": mean.error}
    return table | {"log P clean, noise on the subject, noise on others_by_fact": m.log_p}


def draw(m: Results) -> Figure:
    return panels(m, (_levels, _thirds, _noise, _one), columns=2, height=5.4)


def _levels(ax: Axes, m: Results) -> None:
    for k, name in enumerate(CLASSES):
        mean = m.mean(m.effect[:, :, k])
        time_series(np.arange(len(mean.mean)), mean.mean, mean.error, ax, label=name, colour=COLOURS[k],
                    linestyle=LINES[k], xlabel="level", ylabel="given back (nats)")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    # Room for the legend above the curves.
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.4 * (high - low))
    ax.legend(fontsize=6, loc="upper left")


def _thirds(ax: Axes, m: Results) -> None:
    at = np.arange(3)
    for offset, k in ((-0.2, SUBJECT), (0.2, LAST)):
        means = [m.mean(m.effect[:, third, k].mean(axis=1)) for third in m.thirds]
        ax.bar(at + offset, [average.mean for average in means], 0.38, yerr=[average.error for average in means],
               color=COLOURS[k], lw=0, capsize=2, label=CLASSES[k])  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6)
    ax.set_xticks(at, ("first third", "second third", "last third"))
    ax.set_ylabel("given back (nats)")
    ax.legend(fontsize=6)


def _noise(ax: Axes, m: Results) -> None:
    names = ("clean", "noise on\nthe subject", "noise on as many\nother tokens")
    means = [m.mean(column) for column in m.log_p.T]
    ax.bar(np.arange(3), [average.mean for average in means], 0.7, yerr=[average.error for average in means], lw=0,
           capsize=2, color=(COLOURS[3], COLOURS[1], "0.6"))  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6)
    ax.set_xticks(np.arange(3), names, fontsize=6)
    ax.set_ylabel("log P of the object (nats)")


def _one(ax: Axes, m: Results) -> None:
    trace, tokens = m.shown
    draw_trace(trace, ax, tokens=list(tokens), title="")


FIGURE = figure(
    __name__,
    over=lambda m: m.units,
    on=lambda m: m.measured(layers=m.effect.shape[1] - 1, draws=m.p.draws),
    recorded=lambda m: m.recorded(),
)
