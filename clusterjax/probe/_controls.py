"""The same measurement on random weights and on shuffled tokens, without which a trained network shows nothing."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from flax import nnx
from jaxtyping import PRNGKeyArray

from ._albert import Albert
from ._batch import Encoded
from ._load import Model
from ._similarity import Similarity
from ._survey import dtype_of, encoded, generator
from ._t5 import T5Encoder
from ._tally import Average, average_of


class Comparison(NamedTuple):
    """The trained network against one control, paired by text.

    **Attributes:**

    - `difference`: The statistic of the trained network less that of the control, the mean over texts, (levels,).
    - `error`: Its standard error: from the spread of the differences of texts and, for random weights, from that
        between the networks that were drawn; NaN for one text.
    - `z`: `difference` divided by `error`.

    Source: this library.
    """

    difference: np.ndarray
    error: np.ndarray
    z: np.ndarray


class Controls(NamedTuple):
    """What `controls` returns.

    **Attributes:**

    - `trained`: The measurement on the network and the texts as they are.
    - `shuffled`: On the tokens of each text in random order.
    - `random`: On networks with random weights, one for each draw.
    - `beyond_shuffled`, `beyond_random`: A `Comparison` with each.
    - `level`: The level that the verdict is about.
    - `sigmas`: How many errors a difference must be above zero.

    Source: this library.
    """

    trained: Any
    shuffled: Any
    random: tuple[Any, ...]
    beyond_shuffled: Comparison
    beyond_random: Comparison
    level: int
    sigmas: float

    @property
    def z(self) -> float:
        """The smaller z-score of the two comparisons, at `level`; NaN if one of them is."""
        return float(np.minimum(self.beyond_shuffled.z[self.level], self.beyond_random.z[self.level]))

    @property
    def clusters_beyond_controls(self) -> bool:
        """Whether the trained network exceeds both controls by more than `sigmas` errors; never for one text."""
        return bool(self.z > self.sigmas)


def _cosine(found: Similarity) -> Average:
    return found.cosine


def controls(
    measure: Callable[..., Any],
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    key: PRNGKeyArray,
    statistic: Callable[[Any], Average] = _cosine,
    draws: int = 3,
    fixed: Sequence[int] | None = None,
    level: int = -1,
    sigmas: float = 2.0,
    length: int | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Controls:
    """One measurement three times: on the trained network, on shuffled tokens, and on random weights.

    A network with random weights may cluster more than a trained one, and a bag of the same tokens as much as a text:
    only what exceeds both is learnt and is about language. Texts are paired: the error bar is that of the mean
    difference of a text to itself.

    **Arguments:**

    - `measure`: `measure(model, texts)`, such as `similarity_histograms`, or `functools.partial` of it with options.
        With a `store` it is also given `store=`.
    - `model`: What `load` returned.
    - `texts`: The texts, or the `Encoded` of them. At least two tokens each.

    **Other arguments:**

    - `key`: PRNG key of the weights and of the orders.
    - `statistic`: Picks from what `measure` returns the `Average` to compare, of which the values of texts are kept,
        (texts, levels). The default is `cosine`, the mean cosine; `lambda found: found.near_mass` is another.
    - `draws`: How many networks with random weights; from two on the error bar has the spread between them too.
    - `fixed`: Ids that stay in place when tokens are shuffled; None is the special tokens of the model's tokenizer.
    - `level`: Which level the verdict is about.
    - `sigmas`: How many errors both differences must be above zero.
    - `length`: Longer texts are cut to so many tokens.
    - `store`: A folder, in which each run has its file; see `survey`.

    **Returns:**

    A `Controls`.

    **Raises:**

    - `ValueError` if `draws` is not positive, `statistic` gives no values of texts and levels, and as `measure` does.

    ??? cite "Source"

        This library.
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws must be a positive integer, but it is {draws!r}; pass 3, say.")
    data = encoded(model, texts, length)
    weights, orders = jr.split(key)
    run = lambda name, model, texts: measure(
        model, texts, **({} if store is None else {"store": Path(store) / f"{name}.safetensors"})
    )
    trained = run("trained", model, data)
    values = _values(statistic(trained))
    shuffled = run("shuffled", model, shuffle_tokens(data, orders, _special(model) if fixed is None else fixed))
    random = tuple(run(f"random-{draw}", randomise(model, jr.fold_in(weights, draw)), data) for draw in range(draws))
    of_random = np.stack([_values(statistic(found)) for found in random])
    return Controls(
        trained,
        shuffled,
        random,
        _compare(values, _values(statistic(shuffled))[None]),
        _compare(values, of_random),
        level,
        float(sigmas),
    )


def randomise(model: Model, key: PRNGKeyArray) -> Model:
    """The model with random weights, drawn as before its training: normal, with the spread of its configuration.

    For ALBERT all matrices and embeddings have the standard deviation `initializer_range`, for T5 those of
    `transformers`; biases are 0 and the scales of norms 1. Depth and heads are those of the model; it has no pooler and
    no masked-LM head.

    **Arguments:**

    - `model`: What `load` returned.
    - `key`: PRNG key.

    **Returns:**

    A `Model`.

    Source: this library; the spreads are those of `transformers`.
    """
    old, rngs, dtype = model.network, nnx.Rngs(key), dtype_of(model)
    if isinstance(old, Albert):
        network = Albert(old.sizes, rngs, depth=old.depth, heads=old.num_heads, dtype=dtype)
    else:
        network = T5Encoder(old.sizes, rngs, depth=old.depth, dtype=dtype)
    return dataclasses.replace(model, network=network, name=f"{model.name} with random weights")


def shuffle_tokens(texts: Encoded, key: PRNGKeyArray, fixed: Sequence[int] = ()) -> Encoded:
    """The words of each text in random order, each order equally likely.

    **Arguments:**

    - `texts`: An `Encoded`.
    - `key`: PRNG key.
    - `fixed`: Ids that stay where they are: special tokens.

    **Returns:**

    An `Encoded` with the same mask.

    Source: this library.
    """
    rng, ids = generator(key), np.array(texts.token_ids)
    moves = np.asarray(texts.mask) & ~np.isin(ids, np.asarray(list(fixed), ids.dtype))
    for row, free in zip(ids, moves, strict=True):
        row[free] = rng.permutation(row[free])
    return Encoded(ids, np.asarray(texts.mask))


def _special(model: Model) -> list[int]:
    return [] if model.tokenizer is None else list(model.tokenizer.all_special_ids)


def _values(average: Average) -> np.ndarray:
    if not isinstance(average, Average) or average.values is None or average.values.ndim != 2:
        raise ValueError(
            "statistic must give an Average whose values are kept, (texts, levels), but it gives "
            f"{type(average).__name__}; pass lambda found: found.near_mass, say."
        )
    return average.values


def _compare(trained: np.ndarray, control: np.ndarray) -> Comparison:
    """Of (texts, levels) against (draws, texts, levels)."""
    paired = average_of(trained - control.mean(axis=0))
    between = control.mean(axis=1).var(axis=0, ddof=1) / len(control) if len(control) > 1 else 0.0
    error = np.sqrt(paired.error**2 + between)
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing differs at all: 0 / 0 is no evidence
        z = paired.mean / error
    return Comparison(paired.mean, error, z)
