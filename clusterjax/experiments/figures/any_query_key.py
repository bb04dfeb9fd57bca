"""Causal attention with V = I and random Q and K (2411.04990, Theorem 4.1): when is each token at the first?

The time of the last tokens is an integral along their path, see `shared.exact`. The token that arrives last arrives
after all tokens before it, so that its time is the time of the collapse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from ..._coarsen import coarsen
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask
from ...plot import OKABE_ITO
from ..framework.figure import ANY, Claim, Found, Say, Settings, Source, claim, figure, parameter, percent, plus_minus
from ..shared.ensemble import draw_starts, line_of, mean_and_error
from ..shared.exact import Wait, arrivals_of, integral_claim, waits_of
from ..shared.layout import panels
from ..shared.sources import particles


END = 1e300  # the time that stands for infinity
LATE = 2e4  # at beta = 9 some starts are known to have several clusters at this time
MOST_STEPS = 3000  # most runs take some hundreds of steps


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(16, "the number of tokens", quick=12, least=3, most=64)
    d: int = parameter(3, "the dimension", least=2, most=8)
    beta: float = parameter(9.0, "the inverse temperature", least=1, most=20)
    reach: float = parameter(0.01, "the largest distance of a token at the first token", least=3e-3, most=0.1)


class Results(NamedTuple):
    """The measurement; the arrivals of a start that `coarsen` cannot follow are NaN."""

    p: Parameters
    starts: int
    arrivals: np.ndarray  # the time from which on each token stays at the first, (starts, n)
    waits: tuple[Wait, ...]  # the long waits of all starts
    wait_starts: np.ndarray  # the number of the start of each wait, (waits,)
    astray: float  # the largest distance of a token from the first token at the end
    moved: float  # the largest displacement of a first token

    @property
    def followed(self) -> np.ndarray:
        return ~np.isnan(self.arrivals[:, 0])

    @property
    def last(self) -> np.ndarray:
        """The time of the collapse of each start that was followed."""
        return self.arrivals[self.followed].max(axis=1)

    @property
    def log_last(self) -> np.ndarray:
        """log10 of the times of collapse, at least -2; log10 of `END` without a collapse."""
        return np.log10(np.clip(self.last, 1e-2, END))

    def waits_by(self, *names: str) -> np.ndarray:
        """The named numbers of all waits, (names, waits)."""
        return np.array([[getattr(wait, name) for wait in self.waits] for name in names], float)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say(f"following {settings.starts} starts to one cluster")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    arrivals, waits, wait_starts, astray, moved = [], [], [], 0.0, 0.0
    for start, (form, x) in enumerate(zip(draw_forms(settings.seed, settings.starts, p.d), x0, strict=True)):
        attention = SoftmaxAttention(p.beta, query_key=jnp.asarray(form), mask=CausalMask())
        try:
            tree = coarsen(AttentionField(attention), jnp.asarray(x, float), END, tolerance=0.1, max_steps=MOST_STEPS)
        except RuntimeError:
            # The tokens contract onto a curve much faster than they move along it, so that steps become too short.
            arrivals.append(np.full(p.n, np.nan))
            continue
        arrived = arrivals_of(tree, p.reach)
        arrivals.append(arrived)
        waited = waits_of(tree, arrived, p.beta * form, p.reach)
        waits += waited
        wait_starts += [start] * len(waited)
        end = np.asarray(tree.at(END))
        astray = max(astray, float(np.linalg.norm(end - end[0], axis=1).max()))
        moved = max(moved, float(np.linalg.norm(end[0] - np.asarray(tree.at(0.0))[0])))
    if np.all(np.isnan(arrivals)):
        raise ValueError(
            f"starts must hold one that coarsen can follow, but of {settings.starts} it can follow none; pass more "
            "starts, or another seed."
        )
    return Results(p, settings.starts, np.array(arrivals), tuple(waits), np.array(wait_starts, int), astray, moved)


def draw_forms(seed: int, starts: int, d: int) -> np.ndarray:
    """Q^T K of each start, (starts, d, d); the entries of Q and K are standard normal."""
    pairs = np.stack([np.random.default_rng([seed, 2411, start]).normal(size=(2, d, d)) for start in range(starts)])
    return np.swapaxes(pairs[:, 0], 1, 2) @ pairs[:, 1]


@claim("less than 1e-9", kind="identity")
def first_rests(m: Results) -> Found:
    """The first token does not move."""
    return Found(f"the largest displacement is {m.moved:.1e}", m.moved < 1e-9, m.moved)


@claim(
    "every start that `coarsen` can follow, to a distance below 0.001",
    source=Source("2411.04990, Theorem 4.1", ANY, ANY),
)
def collapse(m: Results) -> Found:
    """With V = I all tokens come to the first token in every start that `coarsen` can follow, whatever Q and K are."""
    share = float(np.mean(np.isfinite(m.last)))
    times = ", ".join(f"1e{quantile:.1f}" for quantile in np.percentile(m.log_last, [25, 50, 75, 100]))
    return Found(
        f"all tokens arrive in {100 * share:.1f} % of the {m.followed.sum()} starts that `coarsen` can follow, of "
        f"{m.starts}; they end within {m.astray:.1e} of the first; quartiles and maximum of the time: {times}",
        share == 1.0 and m.astray < 1e-3, share,
    )  # fmt: skip


@claim("more than a tenth of the starts")
def late(m: Results) -> Found:
    """At t = {LATE:,.0f} more than a tenth of the starts still have a token away from the first token."""
    share, error = mean_and_error(m.last > LATE)
    return Found(f"{percent(share, error)} of the starts have a token elsewhere", share > 0.1, share, error)


@claim("a slope within 0.1 of 1")
def barrier(m: Results) -> Found:
    """The time of arrival at the first token a is exponential in beta times the largest <x, Q^T K(x - a)> on the
    way."""
    waited, exponents = m.waits_by("waited", "barrier")
    slope, error, _ = line_of(waited, exponents, m.wait_starts)
    return Found(
        "the slope of the logarithm of the time against the logarithm of the exponential is "
        f"{plus_minus(slope, error, 3)}, of {len(m.waits)} waits",
        abs(slope - 1) < 0.1, slope, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} uniform tokens in R^{m.p.d} under causal attention with V = I and beta = {m.p.beta:g}; the entries "
        f"of Q and K are standard normal; {m.starts} starts, followed to one cluster. (a) The share of the starts that "
        f"still have a token away from the first; dash-dotted: t = {LATE:,.0f}. (b) The time that a token takes once "
        "all tokens before it are at the first, against the integral along the arc, which "
        f"{'holds' if claims[3].holds else 'does not hold'}. (c) The same time against the exponential of the barrier."
    )


def series(m: Results) -> dict:
    log_times = np.linspace(-1.0, max(float(m.log_last.max()), 1.0), 200)
    names = ("token_by_wait", "log10_time_by_wait", "log10_integral_by_wait", "log10_barrier_by_wait")
    share = np.mean(m.log_last > log_times[:, None], axis=1)
    waits = m.waits_by("token", "waited", "law", "barrier")
    return {"log10 t": log_times, "share not there": share} | dict(zip(names, waits, strict=True))


def _not_there(ax: Axes, m: Results) -> None:
    last = np.sort(m.log_last[np.isfinite(m.last)])
    share = 1 - np.arange(1, len(last) + 1) / len(m.last)
    ax.plot(last, share, color=OKABE_ITO[0], drawstyle="steps-post")
    ax.axvline(np.log10(LATE), color="0.5", lw=0.8, ls="-.")
    ax.set(xlabel="log10 of time", ylabel="share of the starts", ylim=(0, 1.02))


def _against(name: str, label: str) -> Callable[[Axes, Results], None]:
    def fill(ax: Axes, m: Results) -> None:
        law, waited = m.waits_by(name, "waited")
        ax.plot(law, waited, ".", ms=3, color=OKABE_ITO[0], rasterized=True)
        high = max(float(waited.max(initial=1.0)), float(law.max(initial=1.0)))
        ax.plot([0, high], [0, high], color="0.3", lw=0.8, ls="--")
        ax.set(xlabel=label, ylabel="log10 of the time")

    return fill


PANELS = (_not_there, _against("law", "log10 of the integral"), _against("barrier", "log10 of e^(beta barrier)"))


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, PANELS, columns=3, height=2.4),
    claims=(first_rests, collapse, late, lambda m: integral_claim(m.waits), barrier),
    on=lambda m: particles(tokens=m.p.n, d=m.p.d, beta=m.p.beta, starts=m.starts),
    recorded=lambda m: {"value": "identity", "query_key": "random: entries of Q and K normal", "mask": "causal",
                        "starts": m.starts, "solver": "coarsen"},
)  # fmt: skip
