"""The single unit that tells praise from blame best, chosen on some texts and scored on others.

A unit is a cell, a hidden state, a neuron, or a coordinate of the residual stream; its value for a text is the mean
over the last tokens of the text. Of all units of a kind the unit is chosen whose area under the ROC curve is farthest
from one half, with the threshold that divides the texts best.

Source: Radford, Jozefowicz, Sutskever, *Learning to generate reviews and discovering sentiment* (1704.01444), Section
4; *Transformers, part 2*, slide 12.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ... import transformer
from .networks import rows_of
from .small_models import Labelled


BATCH = 64


class Unit(NamedTuple):
    unit: int  # its number, counted through all layers for neurons and coordinates
    many: int  # the number of units
    chosen: float  # the accuracy on the texts on which the unit was chosen
    right: Bool[np.ndarray, " texts"]  # true for the other texts that the unit classifies correctly, (texts,)

    @property
    def accuracy(self) -> float:
        """The accuracy on the other texts."""
        return float(self.right.mean())

    @property
    def error(self) -> float:
        """The standard error of the accuracy p, (p (1 - p) / N)^(1/2)."""
        return float(np.sqrt(self.accuracy * (1 - self.accuracy) / len(self.right)))


def best_units(model: Any, chosen: Labelled, scored: Labelled, length: int) -> dict[str, Unit]:
    values, others = (values_of(model, *rows_of(part.texts, length, end=True)) for part in (chosen, scored))
    return {kind: best_unit(values[kind], chosen.labels, others[kind], scored.labels) for kind in values}


def best_unit(
    chosen: Float[np.ndarray, "texts units"],
    labels: Bool[np.ndarray, " texts"],
    scored: Float[np.ndarray, "others units"],
    other_labels: Bool[np.ndarray, " others"],
) -> Unit:
    """The unit that tells the labels best, from the values of all units in the texts to choose and to score on."""
    detector = transformer.best_detector(chosen, labels)
    return Unit(detector.neuron, chosen.shape[1], detector.accuracy, detector.predict(scored) == other_labels)


def values_of(model: Any, ids: np.ndarray, present: np.ndarray) -> dict[str, Float[np.ndarray, "texts units"]]:
    """The mean of each unit over the tokens of each text, by kind."""
    if isinstance(model, transformer.LSTMLanguageModel):
        states = _in_batches(_lstm_units, model, ids, present)
        return {"cell": states[0], "hidden": states[1]}
    neurons = [
        transformer.mean_activations(model, ids, present, layer=layer) for layer in range(model.stack.num_layers)
    ]
    (stream,) = _in_batches(_stream_units, model, ids, present)
    return {"neuron": np.concatenate(neurons, axis=1), "stream": stream}


def _in_batches(function: Any, model: Any, ids: np.ndarray, present: np.ndarray) -> list[np.ndarray]:
    """The outputs for all texts of a function of a model and a batch of texts."""
    parts = []
    for begin in range(0, len(ids), BATCH):
        count = min(BATCH, len(ids) - begin)
        # Copies of the last text fill up the last batch, so that one compiled program serves all.
        rows = np.minimum(np.arange(begin, begin + BATCH), len(ids) - 1)
        outputs = function(model, jnp.asarray(ids[rows]), jnp.asarray(present[rows]))
        parts.append([np.asarray(part)[:count] for part in outputs])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


@eqx.filter_jit
def _lstm_units(model: Any, ids: Array, present: Array) -> tuple[Array, Array]:
    states = jax.vmap(model.states)(ids, present)
    return _mean(states.cell, present), _mean(states.hidden, present)


@eqx.filter_jit
def _stream_units(model: Any, ids: Array, present: Array) -> tuple[Array]:
    levels = jax.vmap(lambda ids, present: streams(model, ids, present))(ids, present)
    means = jax.vmap(_mean, in_axes=(1, None), out_axes=1)(levels, present)
    return (means.reshape(len(means), -1),)


def _mean(values: Float[Array, "texts n units"], present: Bool[Array, "texts n"]) -> Float[Array, "texts units"]:
    weights = present[..., None].astype(values.dtype)
    return jnp.sum(values * weights, axis=1) / jnp.sum(weights, axis=1)


def streams(model: Any, ids: Array, present: Array) -> Float[Array, "levels n d"]:
    """The residual stream of one text before the blocks and after each."""

    def step(block: transformer.Block, x: Array, _: None) -> tuple[Array, Array]:
        x = block(x, present)
        return x, x

    x = model.embed(ids)
    return jnp.concatenate([x[None], model.stack.scan(step, x)[1]])
