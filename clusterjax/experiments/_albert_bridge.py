"""From a trained network to the particle model with its own heads: how far the particles predict its similarity."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import probe
from ._albert_bridge_controls import CURVES, BridgeControls, controls_of
from ._albert_bridge_panels import PARTS, WORDS, draw
from ._controls import NAMES_OF_CONTROLS, random_words
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._networks import WIDE, Network, network_of
from ._starts import STARTS


UNIFORM = 0.01  # times the network's beta


@dataclass(frozen=True)
class Effort:
    """How many texts, of how many tokens each, how many steps of the fit at most, and how many steps of the solver in a
    layer.

    Source: this library.
    """

    texts: int
    length: int
    steps: int
    per_layer: int


def effort(quick: bool, width: int) -> Effort:
    """What a network of this hidden size allows for.

    Source: this library.
    """
    if quick:
        return Effort(6, 32, 12, 2) if width <= WIDE else Effort(2, 24, 4, 2)
    return Effort(16, 64, 30, 4) if width <= WIDE else Effort(6, 48, 16, 4)


def parts_of(texts: probe.Encoded, how: Effort) -> tuple[probe.Encoded, probe.Encoded]:
    """Twice so many of the texts, evenly spread over all and cut to their first tokens: every other one to measure, and
    the rest to fit to.

    Source: this library.
    """
    many = len(texts.mask)
    rows = np.linspace(0, many - 1, min(2 * how.texts, many - many % 2)).astype(int)
    part = lambda rows: probe.Encoded(texts.token_ids[rows, : how.length], texts.mask[rows, : how.length])
    return part(rows[::2]), part(rows[1::2])


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = network_of(settings)
    how = effort(settings.quick, found.model.network.sizes.hidden_size)
    texts, others = parts_of(found.texts, how)
    say(f"running {len(texts.mask)} texts as a network and as particles, fitted to {len(others.mask)} others")
    bridge = probe.bridge(
        found.model,
        texts,
        fit_on=others,
        fit_steps=how.steps,
        steps_per_layer=how.per_layer,
        batch_size=len(texts.mask),
        store=settings.store,
        say=say,
    )
    beside = controls_of(found, bridge, texts, others, how, settings.seed, settings.store, say)
    curves = {"network": bridge.network} | bridge.curves
    return Outcome(
        caption_of(found, bridge, texts, beside),
        claims_of(bridge, beside),
        {"network": found.words, "texts": found.of_texts, "starts": len(texts.mask), "tokens": texts.mask.shape[1],
         "layers": found.model.num_layers, "radius": np.asarray(bridge.radius).tolist(),
         "time_per_layer": bridge.time_per_layer, "beta": bridge.beta,
         "fit": f"at most {how.steps} steps of Levenberg and Marquardt, to {len(others.mask)} other texts",
         "converged": bridge.converged, "random weights": STARTS, "texts of the controls": len(beside.rows),
         "solver": f"Bogacki-Shampine, {how.per_layer} steps a layer, float32"},
        {"layer": np.arange(found.model.num_layers + 1), "loss_by_step": bridge.losses}
        | {
            f"{what} {name}": numbers
            for name, curve in curves.items()
            for what, numbers in (("cosine", curve.mean), ("error", curve.error))
            if np.isfinite(numbers).all()
        }
        | {
            f"share_missed_by_{whose}, {curve}": numbers
            for curve in CURVES
            for whose, numbers in (
                ("text", beside.trained[curve]), ("shuffled_text", beside.shuffled[curve]),
                ("random_network", beside.random[curve]),
            )
        },
        lambda: draw(bridge, beside),
        None,
        on=found.measured(texts=len(texts.mask), tokens=texts.mask.shape[1]),
    )  # fmt: skip


def caption_of(found: Network, bridge: probe.Bridge, texts: probe.Encoded, beside: BridgeControls) -> str:
    """What is seen, and how well the particles do.

    Source: this library.
    """
    last = len(bridge.network.mean) - 1
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
        f"Mean cosine of the tokens in {found.words}, and in what is made of its heads: {len(texts.mask)} of its "
        f"texts, cut to {texts.mask.shape[1]} tokens; means over texts with standard errors. (a) The network, and "
        "three that lack a part: the feed-forward; the norms within the layers; both, with a projection onto the "
        "sphere instead"
        + (f" ({', '.join(lost)}: overflows, and is not drawn from there on)" if lost else "")
        + ". (b) The network beside particles on the sphere, which move in continuous time by its own V and Q^T K from "
        "the same embedded tokens: a layer in time 1, and beta 1; and with both fitted to other texts: time "
        f"{bridge.time_per_layer:.3g} per layer, beta {bridge.beta:.2g} times the network's"
        f"{uniform if bridge.beta < UNIFORM else ''}. (c) The difference from "
        "the network at each layer. (d) What the particles miss the curve of a text by, as a share of what the best "
        "constant does (line), beside both controls: shuffled words, and "
        f"{random_words(found)}, all with time and beta of their own, {len(beside.rows)} texts each; standard errors "
        "over texts, of random weights over networks"
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
    """The standard deviation of the network's curve over its levels: the error of the best constant.

    Source: this library.
    """
    return float(bridge.network.mean.std())


def claims_of(bridge: probe.Bridge, beside: BridgeControls) -> tuple[Claim, ...]:
    """What particles predict, what the parts do, and what must hold.

    Source: this library.
    """
    return (
        *(_claim_of_curve(bridge, name) for name in ("particles", "fitted")),
        _claim_of_fit(bridge),
        _claim_of_controls(beside),
        _claim_of_feed_forward(bridge),
        *_identities(bridge),
    )


def _claim_of_curve(bridge: probe.Bridge, name: str) -> Claim:
    rmse, constant, end = bridge.rmse(name), spread(bridge), bridge.difference(name)
    how = {
        "particles": "as they come",
        "fitted": f"with time {bridge.time_per_layer:.3g} per layer and beta {bridge.beta:.3g}, fitted to other texts,",
    }[name]
    return Claim(
        f"The particles {'as they come' if name == 'particles' else 'with fitted time and beta'} predict the curve of "
        "the network better than a constant.",
        f"{how} rmse {rmse:.4f} over the layers, that of the best constant {constant:.4f}; correlation "
        f"{bridge.correlation(name):.2f}; difference after the last layer {plus_minus(end.mean[-1], end.error[-1], 3)}",
        "rmse below that of the best constant",
        rmse < constant,
        "finding",
        rmse,
    )


def _claim_of_fit(bridge: probe.Bridge) -> Claim:
    squares = [np.mean(_kept(bridge.difference(name)) ** 2, axis=1) for name in ("particles", "fitted")]
    gain = squares[0] - squares[1]
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else float("nan")
    return Claim(
        "One time and one beta for all layers, fitted to other texts, bring the particles closer to the network.",
        f"mean squared difference {squares[0].mean():.2e} before, {squares[1].mean():.2e} after; the gain of a text is "
        f"{gain.mean():.1e} ± {error:.0e}",
        "the gain exceeds two standard errors",
        bool(gain.mean() > 2 * error),
        "finding",
        float(gain.mean()),
        error,
    )


def _claim_of_controls(beside: BridgeControls) -> Claim:
    runs, shuffled, random = beside.runs("fitted"), beside.beyond_shuffled, beside.beyond_random.beyond
    nearer = min((shuffled, random), key=lambda one: float(one.z[0]))
    return Claim(
        "Fitted particles predict the trained network and its texts better than both controls.",
        "share of the error of the best constant that is left: "
        + "; ".join(
            f"{name} {plus_minus(*run)}" for name, run in zip(("trained", *NAMES_OF_CONTROLS), runs, strict=True)
        )
        + f"; of the same texts shuffled words are missed by {plus_minus(shuffled.difference[0], shuffled.error[0])} "
        f"more, random weights by {plus_minus(random.difference[0], random.error[0])} more",
        "both differences exceed two standard errors, or with few texts and networks as many as are as improbable",
        bool(shuffled.exceeds()[0]) and beside.beyond_random.exceeds(),
        "finding",
        float(nearer.difference[0]),
        float(nearer.error[0]),
    )


def _claim_of_feed_forward(bridge: probe.Bridge) -> Claim:
    apart = bridge.difference("without feed-forward")
    return Claim(
        "The feed-forward keeps tokens apart: without it they become more alike.",
        f"mean cosine after the last layer {bridge.curves['without feed-forward'].mean[-1]:.3f} without, "
        f"{bridge.network.mean[-1]:.3f} with it; difference {plus_minus(apart.mean[-1], apart.error[-1], 3)}",
        "the difference exceeds two standard errors",
        bool(apart.mean[-1] > 2 * apart.error[-1]),
        "finding",
        float(apart.mean[-1]),
        float(apart.error[-1]),
    )


def _identities(bridge: probe.Bridge) -> tuple[Claim, ...]:
    start = max(
        float(np.abs(_kept(curve)[:, 0] - _kept(bridge.network)[:, 0]).max()) for curve in bridge.curves.values()
    )
    return (
        Claim(
            "All curves start from the same embedded tokens.",
            f"largest difference before the first layer, over texts: {start:.1e}",
            "less than 1e-5",
            start < 1e-5,
            "identity",
            start,
        ),
    )


def _kept(average: probe.Average) -> np.ndarray:
    assert average.values is not None
    return average.values


ALBERT_BRIDGE = Experiment(
    "albert-bridge",
    "albert_bridge",
    "From a trained network to particles with its heads",
    "Transformers are modelled as particles on the sphere that attract each other (2312.10794, Section 2): how far "
    "does that predict the similarity of tokens in a trained network?",
    _run,
    reads_texts=True,
    least_texts=4,
    asks=True,
)
