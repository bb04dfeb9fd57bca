"""The eigenvalues of the linearised flow along a run: which of them grow, and when do they cross zero?

On the circle, with weights $e^{β(cos θ - 1)}/n$, tokens attract each other by g(θ) = sin θ exp(β (cos θ - 1)). The
linearised flow of clusters is minus a Laplacian of the graph of clusters with the weights g'(gap). Where all gaps are
larger than the angle τ at which g' changes its sign, cos τ = (√(4β² + 1) - 1) / (2β), every weight is negative: besides
the rotation, with k clusters k - 1 modes grow. A pair that merges passes τ, and its mode then decays.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._base.numerics import double_precision
from ..._dynamics.modes import modes
from ..._dynamics.rodas5p import Rodas5P
from ..._dynamics.simulate import simulate
from ..._model.attention import UnnormalisedAttention
from ..._model.field import AttentionField
from ..._observables import cluster_labels
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, percent
from ..shared.ensemble import draw_starts, mean_and_error
from ..shared.exact import turning_angle
from ..shared.layout import figure_of_run
from ..shared.sources import particles


TS = np.concatenate([[0.0], np.logspace(-1, 6, 57)])
TIMES = (0.0, 1.0, 10.0, 1e3, 1e6)  # the times of the snapshots
NARROW = 0.1  # the width of a cluster, in units of tau, below which its tokens have gathered
LATE = 10.0  # the time after which the number of growing modes is claimed to fall only
RESOLVED = 1e-13  # a rate below this is a rounding error
NEAR = 1e-6  # the relative distance of a gap from the angle at which its mode changes its sign
SHARES = (0.5, 0.25, 0.1)  # the masses of one of two clusters


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(16, "the number of tokens", least=4, most=64)
    beta: float = parameter(9.0, "the inverse temperature", least=2, most=12)


class Results(NamedTuple):
    """The measurement."""

    p: Parameters
    starts: int
    rates: np.ndarray  # the eigenvalues by decreasing real part, (starts, times, n)
    clusters: np.ndarray  # the number of clusters at the radius 2 sin(tau/2), (starts, times)
    gathered: np.ndarray  # True if all clusters are narrow, (starts, times)
    shown: np.ndarray  # the tokens of one start, (times, n, 2)
    sides: np.ndarray  # the rate of the mode of two clusters with a gap just above and just below tau, (shares, 2)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    with double_precision():
        field = AttentionField(UnnormalisedAttention(p.beta, offset=p.beta))
        x0 = draw_starts(settings.seed, settings.starts, p.n, 2)
        say("simulating")
        run = lambda x: simulate(field, x, jnp.asarray(TS), solver=Rodas5P()).xs
        xs = jax.jit(jax.vmap(run))(x0)
        say("linearising")
        rates = np.array([[rates_of(field, x) for x in run] for run in xs])
        radius = 2 * np.sin(turning_angle(p.beta) / 2)
        labels = np.asarray(jax.vmap(jax.vmap(lambda x: cluster_labels(x, radius)))(xs))
        clusters = np.sum(labels == np.arange(p.n), axis=-1)
        xs = np.asarray(xs)
        widths = np.linalg.norm(xs - np.take_along_axis(xs, labels[..., None], axis=2), axis=-1).max(axis=-1)
        sides = np.array([[_rate_of_two(p.beta, m, side) for side in (1 + NEAR, 1 - NEAR)] for m in SHARES])
        return Results(p, settings.starts, rates, clusters, widths < NARROW * radius, xs[0], sides)


def rates_of(field: AttentionField, x: jax.Array) -> np.ndarray:
    """All eigenvalues at the tokens, by decreasing real part; the Jacobian of this field is symmetric."""
    return np.real(modes(field, x, x.shape[0], which="growing").values)


def _rate_of_two(beta: float, mass: float, side: float) -> float:
    """The rate of the mode of two clusters with the gap `side` times the turning angle."""
    gap = side * turning_angle(beta)
    x = jnp.asarray([[1.0, 0.0], [np.cos(gap), np.sin(gap)]])
    field = AttentionField(UnnormalisedAttention(beta, offset=beta), masses=jnp.asarray([mass, 1 - mass]))
    rates = rates_of(field, x)
    # The other mode is the rotation, whose rate is zero.
    return float(rates[np.abs(rates).argmax()])


def growing(m: Results) -> np.ndarray:
    """The number of growing modes, (starts, times)."""
    return np.sum(m.rates > RESOLVED, axis=-1)


@claim(f"above zero at (1 + {NEAR:g}) tau and below zero at (1 - {NEAR:g}) tau for every mass", kind="identity")
def crossing(m: Results) -> Found:
    """The mode of two clusters changes from growth to decay where their gap is the angle of largest attraction."""
    above, below = m.sides.T
    words = f"rates from {above.min():.1e} above and to {below.max():.1e} below, at tau = {turning_angle(m.p.beta):.4f}"
    return Found(words, bool((above > 0).all() and (below < 0).all()), float(above.min()))


@claim("below 1e-12 at every time", kind="identity")
def rotation(m: Results) -> Found:
    """One eigenvalue is zero at all times, that of a rotation of all tokens."""
    worst = float(np.abs(m.rates).min(axis=-1).max())
    return Found(f"the smallest absolute value of an eigenvalue is at most {worst:.1e}", worst < 1e-12, worst)


def _agreement(m: Results, states: np.ndarray) -> tuple[float, float]:
    """The share of these states, (starts, times), with one growing mode less than clusters, and its standard error."""
    agree = growing(m) + 1 == m.clusters
    shares = [a[chosen].mean() for a, chosen in zip(agree, states, strict=True) if chosen.any()]
    mean, error = mean_and_error(np.array(shares)) if len(shares) > 1 else (np.nan, np.nan)
    return float(mean), float(error)


@claim(f"in at least 99 % of the saved states in which every cluster is narrower than {NARROW:g} tau")
def counted(m: Results) -> Found:
    """Once tokens have gathered, the growing modes are one fewer than the clusters."""
    share, error = _agreement(m, m.gathered)
    words = f"in {percent(share, error, 1)} of these states, {int(m.gathered.sum())} of {m.gathered.size}"
    return Found(words, share >= 0.99, share, error)


@claim("in less than 90 % of the states in which a cluster is wider")
def scattered(m: Results) -> Found:
    """Before tokens have gathered, the growing modes do not count clusters."""
    share, error = _agreement(m, ~m.gathered)
    return Found(f"they agree in {percent(share, error, 1)} of these states", share < 0.9, share, error)


@claim(f"in every start, from t = {LATE:g} on")
def monotone(m: Results) -> Found:
    """After the first mergers the number of growing modes never rises."""
    falls = np.all(np.diff(growing(m)[:, TS >= LATE], axis=1) <= 0, axis=1)
    return Found(f"in {int(falls.sum())} of {m.starts} starts", bool(falls.all()), float(falls.mean()))


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} uniform tokens on the circle under unnormalised attention with beta = {m.p.beta:g} and V = I, in the "
        "unit of time in which equal tokens attract at rate one. Above: one start. Below, of this start: (a) all "
        "eigenvalues of the linearised flow; the scale is linear between the dashed lines. A mode of two clusters "
        "grows ever faster until their gap is the angle of largest attraction, crosses zero, and decays at a rate of "
        "the order of one: the clusters merge. (b) The number of clusters, and the number of growing modes plus one."
    )


def series(m: Results) -> dict:
    return {"t": TS, "growing modes": growing(m)[0], "clusters": m.clusters[0], "largest rate": m.rates[0, :, 0]}


def draw(m: Results) -> Figure:
    smallest = 1e-9

    def spectrum(ax: Axes) -> None:
        ax.plot(TS[1:], m.rates[0, 1:], ls="none", marker=".", ms=3, color=OKABE_ITO[0])
        ax.set_yscale("symlog", linthresh=smallest)
        for line in (-smallest, smallest):
            ax.axhline(line, color="0.6", lw=0.6, ls="--")
        ax.set(xscale="log", xlabel="t", ylabel="eigenvalues", yticks=[-1, -1e-4, 0, 1e-4, 1])

    def counts(ax: Axes) -> None:
        ax.step(TS[1:], m.clusters[0, 1:], where="post", color="0.2", lw=1, label="clusters")
        label = "growing modes + 1"
        ax.plot(TS[1:], growing(m)[0, 1:] + 1, ls="none", marker="o", ms=3, color=OKABE_ITO[1], label=label)
        ax.set(xscale="log", xlabel="t", ylabel="number", ylim=(0, None))
        ax.legend()

    return figure_of_run(TS, {"": m.shown}, TIMES, (spectrum, counts), highlight=None)


FIGURE = figure(
    __name__,
    on=lambda m: particles(tokens=m.p.n, d=2, beta=m.p.beta, t=float(TS[-1]), starts=m.starts),
    recorded=lambda m: {"d": 2, "value": "identity", "query_key": "identity", "attention": "unnormalised",
                        "mask": "full", "starts": m.starts, "narrow": NARROW, "resolved": RESOLVED},
)  # fmt: skip
