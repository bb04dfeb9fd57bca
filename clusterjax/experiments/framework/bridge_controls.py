"""The bridge of networks of random weights, and of shuffled words: what particles predict without training or order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe
from ...probe.measures.controls import _comparison
from ...probe.measures.survey import clustered_error
from .starts import STARTS, Starts, keys_of, starts_of


TEXTS, STEPS, PER_LAYER = 6, 8, 2  # at most: of each control
CURVES = ("particles", "fitted")


@dataclass(frozen=True)
class Effort:
    """How many texts, of how many tokens each, how many steps of the fit at most, and how many steps of the solver in a
    layer.
    """

    texts: int
    length: int
    steps: int
    per_layer: int


@dataclass(frozen=True, eq=False)
class BridgeControls:
    """How far particles miss the curve of a text, as a share of what the best constant misses it by.

    **Attributes:**

    - `trained`: By curve, "particles" as they come and "fitted", of all texts of the network, (texts,).
    - `rows`: Which of these texts the controls have.
    - `shuffled`: The same of those texts with their words in random order.
    - `random`: Of networks of random weights, each with its own time and beta, (networks, texts).
    - `units`: The independent unit of each text of the network, such as its article, (texts,).
    """

    trained: dict[str, np.ndarray]
    rows: np.ndarray
    shuffled: dict[str, np.ndarray]
    random: dict[str, np.ndarray]
    units: np.ndarray

    def runs(self, curve: str) -> list[tuple[float, float]]:
        """Mean and standard error: trained and shuffled over the units of texts, random over networks."""
        each = (
            clustered_error(self.trained[curve], self.units),
            clustered_error(self.shuffled[curve], self.units[self.rows]),
            clustered_error(self.random[curve].mean(axis=1)),
        )
        return [(float(one.mean), float(one.error)) for one in each]

    @property
    def beyond_shuffled(self) -> probe.Comparison:
        """By how much the fitted particles miss shuffled words by more, of the same texts."""
        # Of the same texts: paired.
        apart = self.shuffled["fitted"] - self.trained["fitted"][self.rows]
        return _comparison(apart[:, None], np.zeros(1), np.inf, self.units[self.rows])

    @property
    def beyond_random(self) -> Starts:
        """By how much they miss networks of random weights by more; signs are turned, so that more is better."""
        # `starts_of` asks whether the first is above the others; missing less is better.
        ours, random = -self.trained["fitted"][self.rows, None], list(-self.random["fitted"][..., None])
        return starts_of(ours, random, self.units[self.rows])


def share_missed(bridge: probe.Bridge, curve: str) -> np.ndarray:
    """The root mean square over levels of the difference of each text, divided by the spread of its own curve: below 1
    is better than the best constant, (texts,).
    """
    apart, own = bridge.difference(curve).values, bridge.network.values
    assert apart is not None and own is not None
    # The best constant misses by the standard deviation of the curve.
    return np.sqrt(np.mean(apart**2, axis=1)) / own.std(axis=1)


def controls_of(
    model: probe.Model,
    bridge: probe.Bridge,
    texts: probe.Encoded,
    others: probe.Encoded,
    how: Effort,
    seed: int,
    store: Path | None,
    say: Callable[[str], None],
    *,
    units: np.ndarray,
    special: Sequence[int] = (),
    draw: Callable[[probe.Model, PRNGKeyArray], probe.Model] = probe.randomise,
    many: int = TEXTS,
    draws: int = STARTS,
) -> BridgeControls:
    """The controls of a bridge: fewer texts and steps, in the same way.

    **Arguments:**

    - `model`: The network.
    - `bridge`, `texts`, `others`, `how`: Its bridge, what that was of, what it was fitted to, and with how much effort.
    - `seed`: Of weights and orders.
    - `store`: A folder; None keeps nothing.
    - `say`: Is given each line of progress.
    - `units`: The independent unit of each text, such as its article, over which errors are.
    - `special`: Ids that stay in place when a text is shuffled.
    - `draw`: The network with random weights in place of its own, as it was before training.
    - `many`, `draws`: How many texts each control has at most, and how many networks of random weights there are.
    """
    # The same texts for all controls, evenly spread; of those that were fitted to there may be fewer.
    spread = lambda data: np.linspace(0, len(data.mask) - 1, min(many, len(data.mask))).astype(int)
    few = lambda data: probe.Encoded(data.token_ids[spread(data)], data.mask[spread(data)])
    rows, shown, fitted = spread(texts), few(texts), few(others)

    def run(name: str, model: probe.Model, shown: probe.Encoded, fitted: probe.Encoded) -> dict[str, np.ndarray]:
        say(f"running {name} as a network and as particles")
        made = probe.bridge(
            model, shown, fit_on=fitted, fit_steps=min(STEPS, how.steps), steps_per_layer=min(PER_LAYER, how.per_layer),
            batch_size=len(rows), store=None if store is None else store / name.replace(" ", "-"),
        )  # fmt: skip
        return {curve: share_missed(made, curve) for curve in CURVES}

    # Both halves are shuffled, those of the fit too: a fit to ordered texts would not be that of the control.
    mixed = [
        probe.shuffle_tokens(data, key, tuple(special))
        for data, key in zip((shown, fitted), jr.split(jr.key(seed)), strict=True)
    ]
    shuffled = run("shuffled words", model, mixed[0], mixed[1])
    drawn = [
        run(f"random weights {number} of {draws}", draw(model, key), shown, fitted)
        for number, key in enumerate(keys_of(seed, draws), 1)
    ]
    random = {curve: np.stack([one[curve] for one in drawn]) for curve in CURVES}
    return BridgeControls({curve: share_missed(bridge, curve) for curve in CURVES}, rows, shuffled, random, units)
