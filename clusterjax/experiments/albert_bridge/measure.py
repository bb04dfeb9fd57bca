"""What the bridge measures: one network as it is, and as particles with its own heads, with two controls.

Texts are used in two halves: time per layer and beta are fitted on one half and the curves are measured on the other,
so that the fit cannot describe the texts that it is judged by. A wide network costs more for each step, and gets fewer
texts and steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ... import probe
from ..framework.bridge_controls import TEXTS, BridgeControls, Effort, controls_of
from ..framework.experiment import Settings
from ..framework.networks import WIDE, Network
from ..framework.parameters import parameter
from ..framework.passages import by_articles
from ..framework.starts import STARTS


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
