"""What is measured of a causal network as particles: the bridge with its controls, the first token, and the heads.

Texts are used in two parts: time per layer and beta are fitted to every fifth text and the curves are measured on the
others. SmolLM2-135M-Instruct (Q4_1) is the network where it is installed, else the language model of the package.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ... import probe
from ..framework.bridge_controls import BridgeControls, Effort, controls_of
from ..framework.causal import NAME, OWN, PASSAGES, QUICK_TEXTS, SMOLLM2, TEXTS, reading_of, spread_words, untrained
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS
from ..framework.passages import articles_of, by_articles, passages
from ..framework.verdict import Subject
from .first_path import FirstPath, first_path
from .head_runs import HeadRuns, head_runs


LONGEST = 64
OWN_NAME, ALBERT_NAME = "the language model of the package", "the ALBERT of the package"
EVERY = 5  # of so many texts one is fitted to


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    tokens: int = parameter(32, "the number of tokens of a text", quick=16, least=8, most=LONGEST)
    steps_per_layer: int = parameter(2, "the number of steps of the solver in a layer", quick=1, least=1, most=16)
    fit_steps: int = parameter(8, "the number of steps of the fit, at most", quick=4, least=1, most=64)
    controls: int = parameter(4, "the number of texts of each control, at most", quick=2, least=2, most=64)
    draws: int = parameter(3, "the number of networks of random weights", quick=2, least=2, most=32)
    n: int = parameter(64, "the number of particles that a head moves", quick=32, least=4, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature of these", above=0, most=50)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `network`, `data`: What was measured, and on what.
    - `name`: What the network is called in a sentence.
    - `layers`: How many it has.
    - `installed`: Whether it is SmolLM2.
    - `articles`: The article of each of `texts`, over which errors are.
    - `spread`: How the random weights were drawn, in words.
    - `texts`, `others`: The texts that were measured, and those that time and beta were fitted to.
    - `bridge`: The network and its particles on `texts`.
    - `beside`: The controls.
    - `path`: The first token.
    - `heads`: The heads of the network, of the language model and of the ALBERT of the package.
    """

    p: Parameters
    network: Subject
    data: Subject
    name: str
    layers: int
    installed: bool
    articles: np.ndarray
    spread: str
    texts: probe.Encoded
    others: probe.Encoded
    bridge: probe.Bridge
    beside: BridgeControls
    path: FirstPath
    heads: tuple[HeadRuns, ...]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run the network, its particles, the controls, and the particles of each head."""
    many = settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)
    # `many` are measured; those that are fitted to come on top.
    asked = dataclasses.replace(settings, most_texts=max(4, -(-many * EVERY // (EVERY - 1))), length=None)
    reading, own = reading_of(asked, LONGEST), probe.load("language-model")
    if reading is None:
        model, network, data, name = own, OWN, PASSAGES, OWN_NAME
        ids, mask = passages(p.tokens)
        # Evenly spread over all, and all of one length.
        rows = np.flatnonzero(mask.all(axis=1))
        chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), asked.most_texts or len(rows))).astype(int)]
        every, articles = probe.Encoded(ids[chosen], mask[chosen]), articles_of(probe.bundled_texts())[chosen]
    else:
        model, network, data, name, every = reading.model, SMOLLM2, reading.data, NAME, reading.texts
        articles = reading.articles
    texts, others = parts_of(every, p.tokens)
    articles = articles[~fitted_of(len(every.mask))]
    how = Effort(len(texts.mask), p.tokens, p.fit_steps, p.steps_per_layer)
    say(f"running {len(texts.mask)} texts as a network and as particles, fitted to {len(others.mask)} others")
    bridge = probe.bridge(
        model, texts, fit_on=others, fit_steps=p.fit_steps, steps_per_layer=p.steps_per_layer, uniform=True,
        # As many as the controls have, so that one program serves all.
        batch_size=p.controls, store=settings.store, say=say,
    )  # fmt: skip
    beside = controls_of(
        model,
        bridge,
        texts,
        others,
        how,
        settings.seed,
        settings.store,
        say,
        units=articles,
        draw=untrained,
        many=p.controls,
        draws=p.draws,
    )
    say("following the first token")
    path = first_path(model, texts, bridge.radius, bridge.time_per_layer)
    networks = {name: model, OWN_NAME: own, ALBERT_NAME: probe.load()}
    # A quick run has the heads of the package's networks alone.
    heads = tuple(
        head_runs(name, network, settings.seed, p.n, p.beta, say)
        for name, network in networks.items()
        if not settings.quick or name != NAME
    )
    return Results(
        p,
        network,
        data,
        name,
        model.num_layers,
        reading is not None,
        articles,
        spread_words(model),
        texts,
        others,
        by_articles(bridge, articles),
        beside,
        path,
        heads,
    )


def fitted_of(texts: int) -> np.ndarray:
    """Which of so many texts time and beta are fitted to: every fifth, and of few texts the last."""
    fitted = np.arange(texts) % EVERY == EVERY - 1
    fitted[-1] |= not fitted.any()
    return fitted


def parts_of(texts: probe.Encoded, tokens: int) -> tuple[probe.Encoded, probe.Encoded]:
    """The texts to measure and every fifth, to fit to; both cut to their first tokens."""
    fitted = fitted_of(len(texts.mask))
    part = lambda rows: probe.Encoded(texts.token_ids[rows, :tokens], texts.mask[rows, :tokens])
    return part(~fitted), part(fitted)
