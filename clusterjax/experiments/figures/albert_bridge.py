"""A trained network beside particles on the sphere that move by its heads (2312.10794, Section 2), and two controls.

One half of the texts serves to fit the time per layer and beta of the particles; all curves are measured on the other
half. A wide network costs more per step, and is therefore measured on fewer texts with fewer steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error, of_units
from ...probe.particle_bridge.field import check_linear
from ..framework.experiment import Inapplicable
from ..framework.figure import Claim, ClaimOf, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.causal import (
    BRIDGE_TEXTS,
    CURVES,
    BridgeControls,
    Effort,
    controls_of,
    missed_panel,
    same_start,
    share_missed,
)
from ..shared.controls import STARTS, random_words
from ..shared.layout import one_legend, panels
from ..shared.networks import WIDE, Network, articles_words, by_articles, each_text, network_of


UNIFORM = 0.01  # the beta, relative to the beta of the network, below which attention is almost uniform
PARTS = ("without feed-forward", "without norms", "on the sphere")
# The label, the colour and the line of each curve.
LOOKS = {
    "without feed-forward": ("without feed-forward", OKABE_ITO[1], "--"),
    "without norms": ("without norms", OKABE_ITO[3], ":"),
    "on the sphere": ("attention on the sphere", OKABE_ITO[2], "-."),
    "particles": ("particles, not fitted", OKABE_ITO[4], "--"),
    "fitted": ("particles, fitted", OKABE_ITO[5], "-"),
}


@dataclass(frozen=True)
class Parameters:
    steps_per_layer: int = parameter(4, "the number of steps of the solver in a layer", quick=2, least=1, most=64)
    controls: int = parameter(BRIDGE_TEXTS, "the largest number of texts of each control", least=2, most=64)
    draws: int = parameter(STARTS, "the number of networks of random weights", least=2, most=32)


class Results(NamedTuple):
    p: Parameters
    network: Network
    how: Effort  # the number of texts, tokens and steps
    # `texts`, `others`: the texts of the curves, and the texts of the fit
    texts: probe.Encoded
    others: probe.Encoded
    bridge: probe.Bridge  # the curves of the network and of the particles on `texts`, with errors over articles
    beside: BridgeControls  # the controls, with the article of each text

    @property
    def constant(self) -> float:
        """The error of the best constant: the standard deviation over levels of the curve of the network."""
        return float(self.bridge.network.mean.std())

    def difference(self, curve: str) -> probe.Average:
        """The difference between a curve and the curve of the network, with errors over articles."""
        return of_units(self.bridge.difference(curve), self.beside.units)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    network = network_of(settings)
    how = effort(settings.quick, network.model.network.sizes.hidden_size, p.steps_per_layer)
    texts, others = parts_of(network.texts, how)
    say(f"running {len(texts.mask)} texts as a network and as particles, fitted to {len(others.mask)} other texts")
    articles = network.articles[rows_of(network.texts, how)[::2]]
    bridge = probe.bridge(
        network.model, texts, fit_on=others, fit_steps=how.steps, steps_per_layer=how.per_layer,
        batch_size=len(texts.mask), store=settings.store, say=say,
    )  # fmt: skip
    special = network.fixed if network.fixed is not None else probe.special_ids(network.model)
    # The initial weights of the network of the package are known.
    draw = partial(probe.randomise, initial=probe.bundled_start if network.bundled else None)
    beside = controls_of(
        network.model, bridge, texts, others, how, settings.seed, settings.store, say, special=tuple(special),
        units=articles, draw=draw, many=p.controls, draws=p.draws,
    )  # fmt: skip
    return Results(p, network, how, texts, others, by_articles(bridge, articles), beside)


def effort(quick: bool, width: int, per_layer: int) -> Effort:
    sizes = (((16, 64, 30), (6, 48, 16)), ((6, 32, 12), (2, 24, 4)))
    return Effort(*sizes[quick][width > WIDE], per_layer)


def rows_of(texts: probe.Encoded, how: Effort) -> np.ndarray:
    """The rows of the texts of both halves in turn, evenly spread over all texts; their number is even."""
    num_texts = len(texts.mask)
    return np.linspace(0, num_texts - 1, min(2 * how.texts, num_texts - num_texts % 2)).astype(int)


def parts_of(texts: probe.Encoded, how: Effort) -> tuple[probe.Encoded, probe.Encoded]:
    """The texts of the curves and the texts of the fit, cut to their first tokens."""
    rows = rows_of(texts, how)
    part = lambda rows: probe.Encoded(texts.token_ids[rows, : how.length], texts.mask[rows, : how.length])
    return part(rows[::2]), part(rows[1::2])


def prediction(curve: str, particles: str) -> ClaimOf:
    @claim(
        "the remaining share of the error is below 1 by two standard errors",
        says=f"{particles} predict the mean cosine of the network over the layers better than a constant.",
    )
    def predicts(m: Results) -> Found:
        bridge, end = m.bridge, m.difference(curve)
        share = clustered_error(share_missed(bridge, curve), m.beside.units)
        fitted = f"time {bridge.time_per_layer:.3g} per layer and beta {bridge.beta:.3g}, fitted to other passages"
        return Found(
            f"{fitted if curve == 'fitted' else 'time 1 per layer and beta 1'}: rmse {bridge.rmse(curve):.4f} over the "
            f"layers, rmse of the best constant {m.constant:.4f}; correlation {bridge.correlation(curve):.2f}; "
            f"difference after the last layer {plus_minus(end.mean[-1], end.error[-1], 3)}; share of the error of the "
            f"best constant of a text that remains {plus_minus(share.mean, share.error)}",
            share.below(1.0), share.mean, share.error,
        )  # fmt: skip

    return predicts


@claim("the gain exceeds two standard errors")
def fit(m: Results) -> Found:
    """One time per layer and one beta, fitted to other texts, bring the particles closer to the network."""
    squares = [np.mean(each_text(m.bridge.difference(name)) ** 2, axis=1) for name in CURVES]
    gain = clustered_error(squares[0] - squares[1], m.beside.units)
    return Found(
        f"mean squared difference {squares[0].mean():.2e} before the fit, {squares[1].mean():.2e} after the fit; the "
        f"gain of a text is {gain.mean:.1e} ± {gain.error:.0e}",
        gain.above(), gain.mean, gain.error,
    )  # fmt: skip


@claim("both differences exceed two standard errors, or, with few texts and networks, as many as are as improbable")
def beyond_controls(m: Results) -> Found:
    """Fitted particles predict the trained network better than a network of random weights, and better than the trained
    network on shuffled tokens."""
    return m.beside.beyond_both()


@claim("the difference exceeds two standard errors")
def feed_forward(m: Results) -> Found:
    """Without the feed-forward layers the tokens are more alike after the last layer than with them."""
    apart = clustered_error(each_text(m.bridge.difference("without feed-forward"))[:, -1], m.beside.units)
    return Found(
        f"mean cosine after the last layer {m.bridge.curves['without feed-forward'].mean[-1]:.3f} without the "
        f"feed-forward, {m.bridge.network.mean[-1]:.3f} with it; difference {plus_minus(apart.mean, apart.error, 3)}",
        apart.above(), apart.mean, apart.error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    bridge, beside = m.bridge, m.beside
    # A network without its norms may overflow in float32.
    lost = ", ".join(LOOKS[name][0] for name in PARTS if not np.isfinite(bridge.curves[name].mean).all())
    overflow = f" ({lost}: overflows, and is not drawn from there on)" if lost else ""
    uniform = ", so that attention is almost uniform, and the targets of attention do not help to predict the curve"
    return (
        f"Mean cosine of the tokens in {m.network.words}, and in models made of its heads: {len(m.texts.mask)} texts, "
        f"cut to {m.texts.mask.shape[1]} tokens; means over texts with standard errors over "
        f"{articles_words(beside.units)}. (a) The network, and three networks that lack a part: the feed-forward; the "
        f"norms within the layers; both, with a projection onto the sphere instead{overflow}. (b) The network beside "
        "particles on the sphere, which move in continuous time by the V and Q^T K of the network from the same "
        "embedded tokens: not fitted, a layer takes time 1 and beta is 1; fitted to other texts, time "
        f"{bridge.time_per_layer:.3g} per layer and beta {bridge.beta:.2g} times the beta of the network"
        f"{uniform if bridge.beta < UNIFORM else ''}{'' if bridge.converged else '; the fit has not converged'}. (c) "
        "The difference from the network at each layer. (d) The error of the particles for the curve of a text, "
        "divided by the error of the best constant (line at 1), beside two controls: shuffled tokens, and "
        f"{random_words(m.network, len(beside.random['fitted']))}. Each control has its own fitted time and beta, and "
        f"{len(beside.rows)} texts; the errors of random weights are over networks."
    )


def series(m: Results) -> dict:
    curves = {"network": m.bridge.network} | m.bridge.curves
    named = {f"{quantity} {name}": numbers for name, curve in curves.items()
             for quantity, numbers in (("cosine", curve.mean), ("error", curve.error))}  # fmt: skip
    return (
        {"layer": np.arange(m.network.model.num_layers + 1), "loss_by_step": m.bridge.losses}
        # JSON has no number for a curve that overflows.
        | {name: numbers for name, numbers in named.items() if np.isfinite(numbers).all()}
        | m.beside.series()
    )


@style()
def draw(m: Results) -> Figure:

    def beside_network(*names: str) -> Callable[[Axes, Results], None]:
        def fill(ax: Axes, m: Results) -> None:
            _curve(ax, m.bridge.network, ("network", "#000000", "-"), "mean cosine")
            ax.get_lines()[0].set_linewidth(2.0)
            for name in names:
                _curve(ax, m.bridge.curves[name], LOOKS[name], "mean cosine")

        return fill

    shown = panels(m, (beside_network(*PARTS), beside_network(*CURVES), _differences, _controls), columns=2, height=4.9)
    axes = shown.get_axes()
    axes[1].sharey(axes[0])
    one_legend(shown, axes, loc="outside upper center", ncols=3, handlelength=2.4)
    return shown


def _curve(ax: Axes, curve: probe.Average, look: tuple[str, str, str], ylabel: str) -> None:
    label, colour, line = look
    error = curve.error if np.isfinite(curve.error).all() else None
    time_series(np.arange(len(curve.mean)), curve.mean, error, ax, colour=colour, linestyle=line, label=label,
                xlabel="layer", ylabel=ylabel)  # fmt: skip


def _differences(ax: Axes, m: Results) -> None:
    for name in ("on the sphere", *CURVES):
        _curve(ax, m.difference(name), LOOKS[name], "difference of mean cosine")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)


def _controls(ax: Axes, m: Results) -> None:
    missed_panel(ax, m.beside, {curve: LOOKS[curve][:2] for curve in CURVES}, 0.4)


def check(settings: Settings) -> None:
    try:
        check_linear(network_of(settings).model)
    except ValueError as error:
        raise Inapplicable(str(error)) from error


FIGURE = figure(
    __name__,
    claims=(
        prediction("particles", "Particles that are not fitted"),
        prediction("fitted", "Particles with fitted time and beta"),
        fit, beyond_controls, feed_forward, same_start,
    ),
    over=lambda m: f"{articles_words(m.beside.units)}, of random weights over networks",
    on=lambda m: m.network.measured(texts=len(m.texts.mask), tokens=m.texts.mask.shape[1]),
    recorded=lambda m: {
        "network": m.network.words, "texts": m.network.of_texts, "starts": len(m.texts.mask),
        "tokens": m.texts.mask.shape[1], "layers": m.network.model.num_layers,
        "radius": np.asarray(m.bridge.radius).tolist(), "time_per_layer": m.bridge.time_per_layer,
        "beta": m.bridge.beta, "converged": m.bridge.converged, "texts of the controls": len(m.beside.rows),
        "fit": f"at most {m.how.steps} steps of Levenberg and Marquardt, to {len(m.others.mask)} other texts",
        "solver": f"Bogacki-Shampine, {m.how.per_layer} steps a layer, float32",
    },
)  # fmt: skip
