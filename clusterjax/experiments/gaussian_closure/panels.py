"""The picture of Gaussian tokens: clouds with the ellipses of the closure, errors, the blow-up, and V = -I."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ..._space import Euclidean
from ...plot import OKABE_ITO, animate, style
from ..framework.layout import WIDTH
from .claims import WORDS
from .measure import CASES, Results, closure, matrices_of


MOST_SHOWN = 1500  # of the tokens


@style()
def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.9, 2.35))  # pyright: ignore
    for ax, ((case, t), x) in zip(top.subplots(1, len(m.shown)), m.shown.items(), strict=True):
        _cloud(ax, m, case, t, x)
    for letter, ax, fill in zip("abc", bottom.subplots(1, 3), (_errors, _growth, _round), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _cloud(ax: Axes, m: Results, case: str, t: float, x: np.ndarray) -> None:
    ax.scatter(*x[:MOST_SHOWN].T, s=1.5, lw=0, color="0.55", rasterized=True)
    if case == "repelling" or t < m.p.blow_up:
        row = closure(m.p.covariance, np.array([0.0, t]) if t else np.array([0.0, 1e-6]), *matrices_of(case))[-1]
        turn = np.linspace(0, 2 * np.pi, 200)
        ring = (
            row[:2] + 2 * np.stack([np.cos(turn), np.sin(turn)], axis=1) @ np.linalg.cholesky(row[2:].reshape(2, 2)).T
        )
        ax.plot(*ring.T, color=OKABE_ITO[1], lw=1.2)
    half = float(np.abs(x).max()) * 1.05
    ax.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", title=f"{WORDS[case]}, t = {t:.3g}")


def _errors(ax: Axes, m: Results) -> None:
    sizes = np.array(m.p.sizes, float)
    for case, colour, marker in zip(CASES, OKABE_ITO, "osD", strict=False):
        at = 1 if case == "repelling" else len(m.p.early) - 1
        rms = [np.sqrt(np.mean(m.moments[case, n].errors(at)[1] ** 2)) for n in m.p.sizes]
        ax.loglog(sizes, rms, marker=marker, ms=4, color=colour, label=WORDS[case])
        ax.loglog(sizes, rms[0] * (sizes / sizes[0]) ** -0.5, color=colour, ls="--", lw=0.8)
    ax.set(
        xlabel="tokens", ylabel="relative error of the covariance", xticks=sizes, xticklabels=[f"{n:g}" for n in sizes]
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
    ax.legend(loc="lower left")


def _growth(ax: Axes, m: Results) -> None:
    ts = m.p.ts / m.p.blow_up
    for n, colour in zip(m.p.sizes, OKABE_ITO, strict=False):
        ax.semilogy(ts, np.median(m.moments["attracting", n].largest, axis=0), color=colour, label=f"n = {n}")
    fine = np.linspace(0, 0.995, 300)
    ax.semilogy(fine, m.p.spread / (1 - fine), color="0.2", ls="--", label="closure")
    ax.axvline(1.0, color="0.6", lw=0.8, ls=":")
    ax.set(xlabel="t / t*", ylabel=r"largest eigenvalue of Cov", ylim=(m.p.spread / 1.5, 40 * m.p.spread))
    ax.legend(loc="upper left")


def _round(ax: Axes, m: Results) -> None:
    fine = np.geomspace(m.p.late[1], m.p.end, 200)
    found = m.moments["repelling", m.p.n].covariances[0]
    start, found = np.linalg.eigvalsh(found[0]), found[1:]
    names = ("smallest", "largest")
    for k, (name, colour) in enumerate(zip(names, (OKABE_ITO[1], OKABE_ITO[0]), strict=True)):
        ax.semilogx(fine, 2 * fine / (1 / start[k] + 2 * fine), color=colour, lw=1)
        ax.semilogx(m.p.late[1:], 2 * m.p.late[1:] * np.linalg.eigvalsh(found)[:, k], ls="none", marker="o", ms=3,
                    color=colour, label=name)  # fmt: skip
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    ax.set(xlabel="t", ylabel=r"eigenvalues of 2t Cov, $V = -I$", ylim=(0, 1.05))
    ax.legend(loc="lower right")


def write_film(m: Results, path: Path) -> Any:
    """The smallest cloud with V = I, until the closure blows up."""
    return animate(m.film, path, ts=np.linspace(0, m.p.blow_up, len(m.film)), frames=41, fps=12, space=Euclidean())
