"""The bridge of networks of random weights, and of shuffled words: what particles predict without training or order."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np

from .. import probe
from ..probe._bridge import _Particles
from ..probe._controls import _comparison
from ..probe._tally import average_of
from ._networks import Network
from ._starts import STARTS, Starts, keys_of, starts_of


TEXTS, STEPS, PER_LAYER = 6, 8, 2  # at most: of each control
CURVES = ("particles", "fitted")


@dataclass(frozen=True, eq=False)
class BridgeControls:
    """How far particles miss the curve of a text, as a share of what the best constant misses it by.

    **Attributes:**

    - `trained`: By curve, "particles" as they come and "fitted", of all texts of the network, (texts,).
    - `rows`: Which of these texts the controls have.
    - `shuffled`: The same of those texts with their words in random order.
    - `random`: Of networks of random weights, each with its own time and beta, (networks, texts).

    Source: this library.
    """

    trained: dict[str, np.ndarray]
    rows: np.ndarray
    shuffled: dict[str, np.ndarray]
    random: dict[str, np.ndarray]

    def runs(self, curve: str) -> list[tuple[float, float]]:
        """Mean and standard error: trained and shuffled over texts, random over networks."""
        each = self.trained[curve], self.shuffled[curve], self.random[curve].mean(axis=1)
        return [(float(one.mean()), float(one.std(ddof=1) / np.sqrt(len(one)))) for one in each]

    @property
    def beyond_shuffled(self) -> probe.Comparison:
        """By how much the fitted particles miss shuffled words by more, of the same texts."""
        apart = self.shuffled["fitted"] - self.trained["fitted"][self.rows]
        return _comparison(apart[:, None], np.zeros(1), np.inf)

    @property
    def beyond_random(self) -> Starts:
        """By how much they miss networks of random weights by more; signs are turned, so that more is better."""
        return starts_of(-self.trained["fitted"][self.rows, None], list(-self.random["fitted"][..., None]))


def share_missed(bridge: probe.Bridge, curve: str) -> np.ndarray:
    """The root mean square over levels of the difference of each text, divided by the spread of its own curve: below 1
    is better than the best constant, (texts,).

    Source: this library.
    """
    apart, own = bridge.difference(curve).values, bridge.network.values
    assert apart is not None and own is not None
    return np.sqrt(np.mean(apart**2, axis=1)) / own.std(axis=1)


def controls_of(
    found: Network,
    bridge: probe.Bridge,
    texts: probe.Encoded,
    others: probe.Encoded,
    how: Any,
    seed: int,
    store: Path | None,
    say: Callable[[str], None],
) -> BridgeControls:
    """The controls of a bridge, of fewer of its texts.

    Shuffled words have the time and beta of the bridge, which were fitted to texts in order: a fit of their own may
    end in another minimum, far worse than these, and would say more of the fit than of the words. Networks of random
    weights are fitted each, in fewer steps than the trained one.

    **Arguments:**

    - `found`: The network.
    - `bridge`, `texts`, `others`, `how`: Its bridge, what that was of, what it was fitted to, and with how much effort.
    - `seed`: Of weights and orders.
    - `store`: A folder; None keeps nothing.
    - `say`: Is given each line of progress.

    Source: this library.
    """
    rows = np.linspace(0, len(texts.mask) - 1, min(TEXTS, len(texts.mask))).astype(int)
    few = lambda data: probe.Encoded(data.token_ids[rows], data.mask[rows])
    shown, fitted = few(texts), few(others)
    special = found.fixed if found.fixed is not None else getattr(found.model.tokenizer, "all_special_ids", ())

    per_layer, size = min(PER_LAYER, how.per_layer), len(rows)
    place = lambda name: None if store is None else store / name.replace(" ", "-")

    say("running shuffled words as a network and as particles")
    mixed = probe.shuffle_tokens(shown, jr.key(seed), tuple(special))
    made = probe.bridge(
        found.model, mixed, fit_steps=0, steps_per_layer=per_layer, batch_size=size, store=place("shuffled words")
    )
    particles = _Particles.make(found.model, mixed, made.radius, size, per_layer)
    known = average_of(particles.curves(np.log([bridge.time_per_layer, bridge.beta]))[0])
    shuffled = _missed(made._replace(curves=made.curves | {"fitted": known}))
    initial, drawn = probe.bundled_start if found.bundled else None, []
    for number, key in enumerate(keys_of(seed), 1):
        say(f"running random weights {number} of {STARTS} as a network and as particles")
        model = probe.randomise(found.model, key, initial=initial)
        drawn.append(
            _missed(
                probe.bridge(
                    model, shown, fit_on=fitted, fit_steps=min(STEPS, how.steps), steps_per_layer=per_layer,
                    batch_size=size, store=place(f"random weights {number}"),
                )
            )
        )  # fmt: skip
    random = {curve: np.stack([one[curve] for one in drawn]) for curve in CURVES}
    return BridgeControls(_missed(bridge), rows, shuffled, random)


def _missed(bridge: probe.Bridge) -> dict[str, np.ndarray]:
    return {curve: share_missed(bridge, curve) for curve in CURVES}
