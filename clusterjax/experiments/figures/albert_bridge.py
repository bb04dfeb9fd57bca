"""What the bridge measures: one network as it is, and as particles with its own heads, with two controls.

Texts are used in two halves: time per layer and beta are fitted on one half and the curves are measured on the other,
so that the fit cannot describe the texts that it is judged by. A wide network costs more for each step, and gets fewer
texts and steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error, of_units
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..shared.causal import BRIDGE_TEXTS as TEXTS, CURVES, BridgeControls, Effort, controls_of, share_missed
from ..shared.controls import NAMES_OF_CONTROLS, STARTS, random_words
from ..shared.layout import WIDTH
from ..shared.networks import WIDE, Network, articles_words, by_articles, network_of


@dataclass(frozen=True)
class Parameters:
    """What of the bridge can be set."""

    steps_per_layer: int = parameter(4, "the number of steps of the solver in a layer", quick=2, least=1, most=64)
    controls: int = parameter(TEXTS, "the number of texts of each control, at most", least=2, most=64)
    draws: int = parameter(STARTS, "the number of networks of random weights", least=2, most=32)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the bridge shows.

    **Attributes:**

    - `how`: The effort that was made.
    - `texts`, `others`: The texts that were measured, and those that time and beta were fitted to.
    - `bridge`: The network and the particles on `texts`.
    - `beside`: The controls, with the article of each text.
    """

    p: Parameters
    how: Effort
    texts: probe.Encoded
    others: probe.Encoded
    bridge: probe.Bridge
    beside: BridgeControls


def measure(p: Parameters, network: Network, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run the network and its particles on the same texts, and both controls."""
    # The texts and the steps of the fit follow from the width; the rest can be set.
    how = effort(settings.quick, network.model.network.sizes.hidden_size, p.steps_per_layer)
    texts, others = parts_of(network.texts, how)
    say(f"running {len(texts.mask)} texts as a network and as particles, fitted to {len(others.mask)} others")
    articles = network.articles[rows_of(network.texts, how)[::2]]
    bridge = probe.bridge(
        network.model,
        texts,
        fit_on=others,
        fit_steps=how.steps,
        steps_per_layer=how.per_layer,
        batch_size=len(texts.mask),
        store=settings.store,
        say=say,
    )
    special = network.fixed if network.fixed is not None else getattr(network.model.tokenizer, "all_special_ids", ())
    beside = controls_of(
        network.model, bridge, texts, others, how, settings.seed, settings.store, say, special=tuple(special),
        # The package knows how its network was drawn.
        units=articles,
        draw=partial(probe.randomise, initial=probe.bundled_start if network.bundled else None), many=p.controls,
        draws=p.draws,
    )  # fmt: skip
    return Results(p, how, texts, others, by_articles(bridge, articles), beside)


def effort(quick: bool, width: int, per_layer: int | None = None) -> Effort:
    """What a network of this hidden size allows for."""
    per_layer = (2 if quick else 4) if per_layer is None else per_layer
    if quick:
        return Effort(6, 32, 12, per_layer) if width <= WIDE else Effort(2, 24, 4, per_layer)
    return Effort(16, 64, 30, per_layer) if width <= WIDE else Effort(6, 48, 16, per_layer)


def rows_of(texts: probe.Encoded, how: Effort) -> np.ndarray:
    """Twice so many of the texts as are measured, evenly spread over all."""
    many = len(texts.mask)
    # An even number, as every other one goes to either half.
    return np.linspace(0, many - 1, min(2 * how.texts, many - many % 2)).astype(int)


def parts_of(texts: probe.Encoded, how: Effort) -> tuple[probe.Encoded, probe.Encoded]:
    """Every other one of these texts to measure, and the rest to fit to, cut to their first tokens."""
    rows = rows_of(texts, how)
    # Truncated from the end; the special token at the end is lost, as in any long text.
    part = lambda rows: probe.Encoded(texts.token_ids[rows, : how.length], texts.mask[rows, : how.length])
    return part(rows[::2]), part(rows[1::2])


# The panels of the bridge: curves of the network and of what lacks a part, of particles, and of the controls.


PARTS = ("without feed-forward", "without norms", "on the sphere")
WORDS = {
    "without feed-forward": "without feed-forward",
    "without norms": "without norms",
    "on the sphere": "attention on the sphere",
    "particles": "particles, as they come",
    "fitted": "particles, fitted",
}
STYLES = {
    "without feed-forward": (OKABE_ITO[1], "--"),
    "without norms": (OKABE_ITO[3], ":"),
    "on the sphere": (OKABE_ITO[2], "-."),
    "particles": (OKABE_ITO[4], "--"),
    "fitted": (OKABE_ITO[5], "-"),
}


@style()
def draw(bridge: probe.Bridge, beside: BridgeControls) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplots(2, 2)
    levels = np.arange(len(bridge.network.mean))
    for ax, names in ((axes[0, 0], PARTS), (axes[0, 1], ("particles", "fitted"))):
        _curve(ax, levels, bridge.network, "network", "#000000", "-", "mean cosine")
        for name in names:
            _curve(ax, levels, bridge.curves[name], WORDS[name], *STYLES[name], "mean cosine")
        # The network itself, drawn first.
        ax.get_lines()[0].set_linewidth(2.0)
    axes[0, 1].sharey(axes[0, 0])
    for name in ("on the sphere", "particles", "fitted"):
        apart = of_units(bridge.difference(name), beside.units)
        _curve(axes[1, 0], levels, apart, WORDS[name], *STYLES[name], "difference of mean cosine")
    axes[1, 0].axhline(0, color="0.6", lw=0.6, zorder=0)
    _beside(axes[1, 1], beside)
    shown = {}
    for letter, ax in zip("abcd", axes.flat, strict=True):
        # One entry for each label, though several panels have it.
        shown |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        if ax.get_legend() is not None:
            ax.get_legend().remove()
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    figure.legend(shown.values(), shown, loc="outside upper center", ncols=3, handlelength=2.4)
    return figure


def _beside(ax: Axes, beside: BridgeControls) -> None:
    """What is missed of the trained network and of its controls, with each network of random weights as a cross."""
    places = np.arange(3)
    for curve, shift in (("particles", -0.2), ("fitted", 0.2)):
        mean, error = np.array(beside.runs(curve)).T
        ax.bar(places + shift, mean, 0.38, yerr=error, color=STYLES[curve][0], error_kw={"elinewidth": 0.8}, lw=0)
        # A cross for each network of random weights.
        each = beside.random[curve].mean(axis=1)
        ax.plot(np.full(len(each), places[2] + shift), each, "x", color="0.1", ms=3.5, mew=0.8)
    ax.axhline(1.0, color="0.1", lw=0.8, ls="--")
    ax.set_xticks(places, ["trained", "shuffled words", "random weights"])
    ax.set(ylabel="error / that of the best constant", ylim=(0, None))


def _curve(ax: Axes, levels: np.ndarray, curve: probe.Average, label: str, colour: str, line: str, ylabel: str) -> None:
    error = curve.error if np.isfinite(curve.error).all() else None
    time_series(
        levels, curve.mean, error, ax, colour=colour, linestyle=line, label=label, xlabel="layer", ylabel=ylabel
    )


# What the bridge claims: how far particles with a network's own heads predict the similarity of its tokens.


UNIFORM = 0.01  # times the network's beta


def caption_of(network: Network, bridge: probe.Bridge, texts: probe.Encoded, beside: BridgeControls) -> str:
    """What is seen, and how well the particles do."""
    last, draws = len(bridge.network.mean) - 1, len(beside.random["fitted"])
    # A network without its norms may overflow in float32.
    lost = [WORDS[name] for name in PARTS if not np.isfinite(bridge.curves[name].mean).all()]
    uniform = ", so that attention is all but uniform: whom a token attends to does not help to predict the curve"
    quality = "; ".join(
        f"{'fitted' if name == 'fitted' else 'as they come'} {bridge.rmse(name):.3f}, correlation "
        f"{bridge.correlation(name):.2f}"
        for name in ("particles", "fitted")
    )
    verdict = (
        "Fitted, they predict the curve better than any constant does"
        if bridge.rmse("fitted") < spread(bridge)
        else "Even fitted, they predict the curve no better than a constant does"
    )
    return (
        f"Mean cosine of the tokens in {network.words}, and in what is made of its heads: {len(texts.mask)} of its "
        f"texts, cut to {texts.mask.shape[1]} tokens; means over texts with standard errors, over "
        f"{articles_words(beside.units)}. (a) The network, and "
        "three that lack a part: the feed-forward; the norms within the layers; both, with a projection onto the "
        "sphere instead"
        + (f" ({', '.join(lost)}: overflows, and is not drawn from there on)" if lost else "")
        + ". (b) The network beside particles on the sphere, which move in continuous time by its own V and Q^T K from "
        "the same embedded tokens: a layer in time 1, and beta 1; and with both fitted to other texts: time "
        f"{bridge.time_per_layer:.3g} per layer, beta {bridge.beta:.2g} times the network's"
        f"{uniform if bridge.beta < UNIFORM else ''}. (c) The difference from the network at each layer. (d) What the "
        "particles miss the curve of a text by, as a share of what the best constant does (line), beside both "
        f"controls: shuffled words, and {random_words(network, draws)}, all with time and beta "
        f"of their own, {len(beside.rows)} texts each; of random weights, errors are over networks"
        + ("" if bridge.converged else "; the fit has not come to its end")
        + f". The rmse of the particles over {last} layers is {quality}; that "
        f"of the best constant is {spread(bridge):.3f}. {verdict}{_controls_words(beside)}."
    )


def _controls_words(beside: BridgeControls) -> str:
    """Whether the controls are predicted as well."""
    worse = [bool(beside.beyond_shuffled.exceeds()[0]), beside.beyond_random.exceeds()]
    as_well = [name for name, less in zip(NAMES_OF_CONTROLS, worse, strict=True) if not less]
    return f"; {' and '.join(as_well)} are predicted no worse" if as_well else ", and worse for both controls"


def spread(bridge: probe.Bridge) -> float:
    """The standard deviation of the network's curve over its levels: the error of the best constant."""
    return float(bridge.network.mean.std())


def claims_of(bridge: probe.Bridge, beside: BridgeControls) -> tuple[Claim, ...]:
    """What particles predict, what the parts do, and what must hold."""
    claims = (
        *(_claim_of_curve(bridge, name, beside.units) for name in ("particles", "fitted")),
        _claim_of_fit(bridge, beside.units),
        _claim_of_controls(beside),
        _claim_of_feed_forward(bridge, beside.units),
        *_identities(bridge),
    )
    return over(f"{articles_words(beside.units)}, of random weights over networks", claims)


def _claim_of_curve(bridge: probe.Bridge, name: str, articles: np.ndarray) -> Claim:
    rmse, constant, end = bridge.rmse(name), spread(bridge), of_units(bridge.difference(name), articles)
    share = clustered_error(share_missed(bridge, name), articles)
    how = {
        "particles": "as they come",
        "fitted": f"with time {bridge.time_per_layer:.3g} per layer and beta {bridge.beta:.3g}, fitted to other "
        "passages,",
    }[name]
    return Claim(
        says=f"The particles {'as they come' if name == 'particles' else 'with fitted time and beta'} predict the "
        "curve of the network better than a constant.",
        measured=f"{how} rmse {rmse:.4f} over the layers, that of the best constant {constant:.4f}; correlation "
        f"{bridge.correlation(name):.2f}; difference after the last layer "
        f"{plus_minus(end.mean[-1], end.error[-1], 3)}; of the error of the best constant of a text "
        f"{plus_minus(share.mean, share.error)} is left",
        criterion="the share that is left is below 1 by two standard errors",
        holds=share.below(1.0),
        kind="finding",
        value=float(share.mean),
        error=float(share.error),
    )


def _claim_of_fit(bridge: probe.Bridge, articles: np.ndarray) -> Claim:
    # Of each text, over the levels.
    squares = [np.mean(_kept(bridge.difference(name)) ** 2, axis=1) for name in ("particles", "fitted")]
    gain = clustered_error(squares[0] - squares[1], articles)
    return Claim(
        says="One time and one beta for all layers, fitted to other texts, bring the particles closer to the network.",
        measured=f"mean squared difference {squares[0].mean():.2e} before, {squares[1].mean():.2e} after; the gain of "
        f"a text is {gain.mean:.1e} ± {gain.error:.0e}",
        criterion="the gain exceeds two standard errors",
        holds=gain.above(),
        kind="finding",
        value=float(gain.mean),
        error=float(gain.error),
    )


def _claim_of_controls(beside: BridgeControls) -> Claim:
    runs, shuffled, random = beside.runs("fitted"), beside.beyond_shuffled, beside.beyond_random.beyond
    # The control that is closer decides.
    nearer = min((shuffled, random), key=lambda one: float(one.z[0]))
    return Claim(
        says="Fitted particles predict the trained network and its texts better than both controls.",
        measured="share of the error of the best constant that is left: "
        + "; ".join(
            f"{name} {plus_minus(*run)}" for name, run in zip(("trained", *NAMES_OF_CONTROLS), runs, strict=True)
        )
        + f"; of the same texts shuffled words are missed by {plus_minus(shuffled.difference[0], shuffled.error[0])} "
        f"more, random weights by {plus_minus(random.difference[0], random.error[0])} more",
        criterion="both differences exceed two standard errors, or with few texts and networks as many as are as "
        "improbable",
        holds=bool(shuffled.exceeds()[0]) and beside.beyond_random.exceeds(),
        kind="finding",
        value=float(nearer.difference[0]),
        error=float(nearer.error[0]),
    )


def _claim_of_feed_forward(bridge: probe.Bridge, articles: np.ndarray) -> Claim:
    apart = clustered_error(_kept(bridge.difference("without feed-forward"))[:, -1], articles)
    return Claim(
        says="Without the feed-forward the tokens end more alike than with it.",
        measured=f"mean cosine after the last layer {bridge.curves['without feed-forward'].mean[-1]:.3f} without, "
        f"{bridge.network.mean[-1]:.3f} with it; difference {plus_minus(apart.mean, apart.error, 3)}",
        criterion="the difference exceeds two standard errors",
        holds=apart.above(),
        kind="finding",
        value=float(apart.mean),
        error=float(apart.error),
    )


def _identities(bridge: probe.Bridge) -> tuple[Claim, ...]:
    # Whatever is left out of the layers, the embedded tokens are those of the network.
    start = max(
        float(np.abs(_kept(curve)[:, 0] - _kept(bridge.network)[:, 0]).max()) for curve in bridge.curves.values()
    )
    return (
        Claim(
            says="All curves start from the same embedded tokens.",
            measured=f"largest difference before the first layer, over texts: {start:.1e}",
            criterion="less than 1e-5",
            holds=start < 1e-5,
            kind="identity",
            value=start,
        ),
    )


def _kept(average: probe.Average) -> np.ndarray:
    assert average.values is not None
    return average.values


# The bridge as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    network = network_of(settings)
    m = measure(settings.read(Parameters), network, settings, say)
    return Outcome(
        caption_of(network, m.bridge, m.texts, m.beside),
        claims_of(m.bridge, m.beside),
        _record(network, m),
        _series(network, m),
        partial(draw, m.bridge, m.beside),
        None,
        on=network.measured(texts=len(m.texts.mask), tokens=m.texts.mask.shape[1]),
    )


def _record(network: Network, m: Results) -> dict:
    bridge, texts, how = m.bridge, m.texts, m.how
    return {
        "network": network.words, "texts": network.of_texts, "starts": len(texts.mask), "tokens": texts.mask.shape[1],
        "layers": network.model.num_layers, "radius": np.asarray(bridge.radius).tolist(),
        "time_per_layer": bridge.time_per_layer, "beta": bridge.beta,
        "fit": f"at most {how.steps} steps of Levenberg and Marquardt, to {len(m.others.mask)} other texts",
        "converged": bridge.converged, "random weights": m.p.draws, "texts of the controls": len(m.beside.rows),
        "solver": f"Bogacki-Shampine, {how.per_layer} steps a layer, float32",
    }  # fmt: skip


def _series(network: Network, m: Results) -> dict:
    beside, curves = m.beside, {"network": m.bridge.network} | m.bridge.curves
    # A curve that overflows has no numbers from there on, and JSON has none to stand for them.
    finite = {
        f"{what} {name}": numbers
        for name, curve in curves.items()
        for what, numbers in (("cosine", curve.mean), ("error", curve.error))
        if np.isfinite(numbers).all()
    }
    # By text for the network and its shuffled texts, by network and text for random weights.
    missed = {
        f"share_missed_by_{whose}, {curve}": numbers
        for curve in CURVES
        for whose, numbers in (
            ("text", beside.trained[curve]), ("shuffled_text", beside.shuffled[curve]),
            ("random_network", beside.random[curve]),
        )
    }  # fmt: skip
    return {"layer": np.arange(network.model.num_layers + 1), "loss_by_step": m.bridge.losses} | finite | missed


FIGURE = declared("albert-bridge", _run, parameters=Parameters)
