"""The picture of the inverse problem: errors against noise, and their law."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import chi2

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .claims import NOISY
from .measure import INSIDE, LEVELS, TOLD, Results


BLUE, ORANGE, GREEN, PINK = OKABE_ITO[:4]


@style()
def draw(m: Results) -> Figure:
    """Three panels beside each other."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    value, form, law = figure.subplots(1, 3)
    form.sharey(value)
    _errors(value, m.value, m.value_bound, m.value_search)
    noise = np.array([LEVELS[k] for k in NOISY])
    value.plot(noise, np.median(m.value_regression[1:], axis=1), "v-", color=GREEN, label="regression")
    value.set(ylabel="relative error", title="V")
    _errors(form, m.form, m.form_bound, m.form_search)
    form.set(title=r"$\beta B$")
    _law(law, m)
    # Both legends beside the panels, which curves fill.
    figure.legend(*value.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False)
    figure.legend(*law.get_legend_handles_labels(), loc="outside lower right", ncols=3, frameon=False)
    for letter, ax in zip("abc", (value, form, law), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _errors(ax: Axes, found: np.ndarray, bound: np.ndarray, searched: np.ndarray) -> None:
    noise = np.array([LEVELS[k] for k in NOISY])
    low, middle, high = np.quantile(found[1:], (0.1, 0.5, 0.9), axis=1)
    ax.fill_between(noise, low, high, color=BLUE, alpha=0.25, linewidth=0)
    ax.plot(noise, middle, "o-", color=BLUE, label="recover")
    ax.plot(noise, np.median(bound[1:], axis=1), "--", color="black", label="Cramer-Rao bound")
    ax.plot(noise, np.median(searched[1:], axis=1), "s-", color=ORANGE, label="random search")
    ax.set(xscale="log", yscale="log", xlabel="noise / length of a token")


def _law(ax: Axes, m: Results) -> None:
    squares = np.linspace(0, 3 * TOLD, 200)
    for colour, level in zip((BLUE, ORANGE, GREEN, PINK), NOISY, strict=True):
        ordered = np.sort(m.squares[level])
        ax.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=colour,
                label=f"{100 * LEVELS[level]:g} % noise")  # fmt: skip
    ax.plot(squares, chi2.cdf(squares, TOLD), "--", color="black", label="chi-squared")
    ax.axvline(INSIDE, color="0.6", linewidth=0.8)
    ax.set(
        xlabel="squared error in the\nmetric of the bound", ylabel="share of problems", title="law of errors",
        xlim=(0, 3 * TOLD), ylim=(0, 1.02),
    )  # fmt: skip
