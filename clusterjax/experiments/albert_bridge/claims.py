"""What the bridge claims: how far particles with a network's own heads predict the similarity of its tokens."""

import numpy as np

from ... import probe
from ...probe.measures.tally import clustered_error, of_units
from ..framework.bridge_controls import BridgeControls, share_missed
from ..framework.controls import NAMES_OF_CONTROLS, random_words
from ..framework.experiment import Claim, over, plus_minus
from ..framework.networks import Network
from ..framework.passages import articles_words
from .panels import PARTS, WORDS


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
