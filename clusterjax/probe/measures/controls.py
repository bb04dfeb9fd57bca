"""A measurement repeated on random weights and on shuffled tokens, the controls for a trained network.

Invariants: for one text or one network z is NaN and the verdict never positive; each run has its own file in the
store; parts that were removed from a network stay removed in its control.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flax import nnx
from jaxtyping import ArrayLike, Int, PRNGKeyArray

from ..._base.checks import (
    check_callable,
    check_concrete,
    check_instance,
    check_integer,
    check_key,
    check_number,
    check_path,
    refusal,
    shown,
)
from ..._base.random import generator
from ..._base.summary import estimate, levels, short, spread
from ..networks.batch import Encoded
from ..networks.load import Model, check_model, replace_network
from ..networks.network import Network
from ..networks.token_ids import listed_ids
from .heads import HeadCorrelations
from .sinks import AttentionSinks, special_ids
from .survey import Average, clustered_error, encoded, threshold, units_of
from .table import tabled


Statistic = str | Callable[[Any], Average]
Initial = Callable[[PRNGKeyArray], Network]


@tabled("level", difference="level *", error="level *", z="level *")
class Comparison(NamedTuple):
    """The comparison of the trained network with one control, paired by text.

    **Attributes:**

    - `difference`: The statistic of the trained network minus that of the control, the mean over texts, (levels,), or
        (levels, heads).
    - `error`: The standard error of `difference`: from the spread of the differences between texts and, for random
        weights, also from the spread between the drawn networks; NaN for one text or one network.
    - `z`: `difference` divided by `error`.
    - `freedom`: The degrees of freedom of `error`: the number of independent units (by default the texts) minus one;
        for random weights, where the variance is a sum of two, the degrees of freedom of Welch and Satterthwaite.

    ??? cite "Source"

        Satterthwaite, *An approximate distribution of estimates of variance components* (Biometrics Bulletin, 1946):
        the degrees of freedom.
    """

    difference: np.ndarray
    error: np.ndarray
    z: np.ndarray
    freedom: np.ndarray | float = np.inf

    __repr__ = short

    def summary(self) -> str:
        """The difference ± its standard error, at the first and the last level."""
        return f"{levels(self.difference, self.error)}"

    def exceeds(self, sigmas: float = 2.0) -> np.ndarray:
        """True where the difference is significantly above zero by a one-sided t-test.

        The level of the test is the probability that a normal variable exceeds its mean by `sigmas` standard
        deviations. With few texts or networks the threshold of `z`, a quantile of Student's t, is larger than `sigmas`.

        **Raises:**

        - `ValueError` if `sigmas` is not a finite number.
        """
        return self.z > threshold(self.freedom, check_number(sigmas, "sigmas"))


@tabled("level", units="text")
class Controls(NamedTuple):
    """The result of `controls`.

    **Attributes:**

    - `trained`: The measurement on the given network and texts.
    - `shuffled`: The measurement on the tokens of each text in random order.
    - `random`: The measurements on networks with random weights, one for each draw.
    - `beyond_shuffled`, `beyond_random`: The `Comparison` of the trained network with each control.
    - `level`: The level of the verdict.
    - `sigmas`: The number of standard errors by which a difference must exceed zero, if there are many texts and
        networks; see `Comparison.exceeds`.
    - `spread`: The standard deviation of the random weights; None if `initial` drew the weights, and for T5, whose
        matrices have different standard deviations.
    - `units`: The index of the independent unit of each text; None where each text is its own unit.
    """

    trained: Any
    shuffled: Any
    random: tuple[Any, ...]
    beyond_shuffled: Comparison
    beyond_random: Comparison
    level: int
    sigmas: float
    spread: float | None = None
    units: np.ndarray | None = None

    __repr__ = short

    def summary(self) -> str:
        """The difference from each control ± its standard error at `level`, and the verdict."""
        rows = [f"the statistic of the trained network at level {self.level}, less that of each control:"]
        drawn = "random weights" if self.spread is None else f"random weights of spread {self.spread:.3g}"
        for name, by in (("shuffled tokens", self.beyond_shuffled), (drawn, self.beyond_random)):
            difference = estimate(by.difference[self.level], by.error[self.level])
            rows.append(f"  {name}: {difference}, z = {spread(by.z[self.level])}")
        verdict = "exceeds both" if self.clusters_beyond_controls else "does not exceed both"
        return "\n".join([*rows, f"it {verdict}, by {self.sigmas:g} standard errors."])

    @property
    def z(self) -> float:
        """The smallest z-score over both comparisons, and over all heads, at `level`; NaN if any of these is NaN."""
        return float(np.min([self.beyond_shuffled.z[self.level], self.beyond_random.z[self.level]]))

    @property
    def clusters_beyond_controls(self) -> bool:
        """True if the trained network significantly exceeds both controls at `level`, in all heads if the statistic is
        by head; False for a single text or a single network of random weights."""
        comparisons = (self.beyond_shuffled, self.beyond_random)
        return all(bool(np.all(comparison.exceeds(self.sigmas)[self.level])) for comparison in comparisons)

    def compare(self, statistic: Statistic) -> tuple[Comparison, Comparison]:
        """Compare another statistic of the same runs: with shuffled tokens, and with random weights.

        **Arguments:**

        - `statistic`: As in `controls`.

        **Returns:**

        Two `Comparison`s.

        **Raises:**

        - `ValueError` as in `controls`.
        """
        return _compare(statistic, self.trained, self.shuffled, self.random, self.units)


def controls(
    measure: Callable[..., Any],
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    key: PRNGKeyArray,
    statistic: Statistic | None = None,
    draws: int = 3,
    initial: Initial | None = None,
    spread: float | None = None,
    fixed: Sequence[int] | None = None,
    units: Int[ArrayLike, " texts"] | None = None,
    level: int = -1,
    sigmas: float = 2.0,
    length: int | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Controls:
    """Measure a trained network, the network on shuffled tokens, and networks with random weights, and compare them.

    A network with random weights may cluster more than the trained network, and shuffled tokens as much as the text:
    only an effect that exceeds both controls is learnt and is due to language. Texts are paired: the standard error is
    that of the mean over texts of the difference within each text.

    **Arguments:**

    - `measure`: A function `measure(model, texts)`, such as `similarity_histograms`, `head_correlations` or
        `attention_sinks`, or a `functools.partial` with options. With a `store` it also receives `store=`.
    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `key`: PRNG key of the random weights and of the random orders.
    - `statistic`: The `Average` in the result of `measure` that is compared. It must keep the values of texts,
        (texts, levels) or (texts, levels, heads). Give its name, such as "near_mass" or "excess.[CLS]", or a function
        that selects it. None selects "between_heads" of `head_correlations`, "excess.first" of `attention_sinks`, and
        "cosine" of any other result. `Controls.compare` compares other statistics without measuring again.
    - `draws`: The number of networks with random weights. With one, the standard error is NaN.
    - `initial`, `spread`: The initialisation of the network, if it differs from that of `transformers`; see
        `randomise`. The sign of the difference may depend on the spread.
    - `fixed`: Ids that keep their positions when tokens are shuffled; None selects the tokenizer's special tokens.
    - `units`: The independent unit of each text, such as the article of a passage, for the errors. None makes each text
        a unit, which underestimates the errors if several texts are passages of one article.
    - `level`: The level of the verdict.
    - `sigmas`: The number of standard errors by which both differences must exceed zero, if there are many texts and
        draws; with few, the threshold is larger, so that the level of the test is the same.
    - `length`: The maximum number of tokens; longer texts are cut.
    - `store`: A folder with one file for each run; see `survey`.

    **Returns:**

    A `Controls`.

    **Raises:**

    - `ValueError` if `draws` is not positive, `statistic` gives no values of texts and levels, `units` is not one
        integer for each text, and in the cases of `measure` and `randomise`.
    """
    check_callable(measure, "measure", "a function of model and texts", takes=2)
    check_concrete(check_key(key), "key")
    check_concrete(units, "units")
    check_integer(draws, "draws", remedy="pass 3, say")
    check_integer(level, "level", least=None, remedy="pass -1 for the last")
    sigmas = check_number(sigmas, "sigmas", least=0)
    if statistic is not None:
        _check_statistic(statistic)
    sizes = None if initial is not None else _drawn_sizes(check_model(model), spread)
    if initial is not None:
        _check_initial(initial, spread)
    if fixed is not None:
        listed_ids(fixed, "fixed", "ids")
    if store is not None:
        check_path(store, "store")
    # The texts are encoded once, so that the three runs read the same token ids and are paired by text.
    data = encoded(model, texts, length)
    unit_of_text = None if units is None else units_of(units, len(data.mask))
    weights, orders = jr.split(key)
    run = lambda name, model, texts: measure(
        model, texts, **({} if store is None else {"store": Path(store) / f"{name}.safetensors"})
    )
    # The trained network runs first, since the default statistic depends on the result of the measure.
    trained = run("trained", model, data)
    if statistic is None:
        kinds = ((HeadCorrelations, "between_heads"), (AttentionSinks, "excess.first"), (object, "cosine"))
        statistic = next(name for kind, name in kinds if isinstance(trained, kind))
    levels = _values(statistic, trained).shape[1]  # a wrong statistic is refused before the other runs
    check_integer(level, "level", least=-levels, most=levels - 1, remedy="pass -1 for the last")
    # Special tokens keep their positions: [CLS] elsewhere than at the start would be another kind of input.
    shuffled = run("shuffled", model, shuffle_tokens(data, orders, special_ids(model) if fixed is None else fixed))
    random = tuple(
        run(f"random-{draw}", randomise(model, jr.fold_in(weights, draw), initial=initial, spread=spread), data)
        for draw in range(draws)
    )
    beyond = _compare(statistic, trained, shuffled, random, unit_of_text)
    return Controls(trained, shuffled, random, *beyond, level, sigmas, getattr(sizes, "spread", None), unit_of_text)


def randomise(model: Model, key: PRNGKeyArray, *, initial: Initial | None = None, spread: float | None = None) -> Model:
    """The model with random weights in place of its trained weights, as in an untrained network.

    Without `initial` the weights are drawn with the initialisation of `transformers`. Matrices and embeddings are
    normal, for ALBERT and Llama with the standard deviation `initializer_range`, and for T5 with the standard
    deviations of Mesh TensorFlow; biases are 0 and the scales of norms are 1. GGUF files and the language models of
    `transformer` do not state the standard deviation, so that `spread` is required; for "smollm2" the published value
    1/24 is known. If the network was initialised in another way, pass its initialisation as `initial`, since the
    verdict may depend on it; for the ALBERT of the package this is `bundled_start`. The depth and the heads are those
    of the model. Removed norms, and parameters that are all zero, stay removed. The result has no pooler and no head.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `key`: PRNG key.

    **Other arguments:**

    - `initial`: A function that maps a PRNG key to a network of the same sizes with its weights before training; None
        selects the initialisation above.
    - `spread`: The standard deviation of matrices and embeddings; None selects that of the network.

    **Returns:**

    A `Model`, whose name states the spread.

    **Raises:**

    - `ValueError` if the spread is neither known nor given, if it is given together with `initial` or for a T5, or if
        the result of `initial` lacks a parameter of the network or has it in another shape.

    The spreads are those of `transformers`.
    """
    network: Any = nnx.clone(check_model(model).network)
    check_concrete(check_key(key), "key")
    # The head plays no part in the hidden states, and `initial` may return a network without a head.
    network.drop_head()
    name = f"{model.name} with random weights"
    if initial is None:
        sizes = _drawn_sizes(model, spread)
        name += f" of spread {sizes.spread:.3g}" if sizes.factor is None else ""
        initial, spread = lambda key: Network(sizes, nnx.Rngs(key)), None
    drawn_network = _check_initial(initial, spread)(key)
    if not isinstance(drawn_network, Network):
        raise refusal(
            "initial",
            "return a network of probe",
            f"it returns {shown(drawn_network)}",
            "build one with model.network.sizes",
        )
    # Parameters are matched by their path in the tree, since modules may have been replaced.
    drawn = dict(nnx.to_flat_state(nnx.state(drawn_network, nnx.Param)))
    # `other_variables` holds variables that are not parameters, such as the radius of `on_sphere`.
    form, parameters, other_variables = nnx.split(network, nnx.Param, ...)
    filled = [
        (path, old.replace(_redrawn(path, old[...], drawn.get(path)))) for path, old in nnx.to_flat_state(parameters)
    ]
    network = nnx.merge(form, nnx.from_flat_state(filled), other_variables)
    return replace_network(model, network, name)


def _drawn_sizes(model: Model, spread: float | None) -> Any:
    """The sizes of the model, with the spread from which its random weights are drawn."""
    sizes: Any = model.network.sizes
    if spread is not None:
        spread = check_number(spread, "spread", above=0)
        if sizes.factor is not None:
            problem = f"those of {model.name!r} have one each"
            raise refusal("spread", "be None where matrices have no common spread", problem, "leave it out")
        return sizes._replace(spread=spread)
    if sizes.spread is None and sizes.factor is None:
        raise ValueError(
            f"spread must be given where no file says how the weights of a network were drawn, but it is None, and "
            f"{model.name!r} is such a network; pass the standard deviation of its weights before training, "
            "say the initializer_range of its published configuration, or two that enclose it, one after the other."
        )
    return sizes


def _redrawn(path: Any, old: Any, drawn: Any) -> Any:
    shape = None if drawn is None else drawn[...].shape
    if shape != old.shape:
        raise ValueError(
            f"initial must return a network of the sizes of the model, whose {'/'.join(map(str, path))} is of shape "
            f"{old.shape}, but there it is {'missing' if shape is None else shape}; build it with model.network.sizes."
        )
    # A parameter that is all zero was removed on purpose (`without_feed_forward`) and stays zero. So do biases that are
    # zero, whose initial value is zero in any case.
    return jnp.asarray(np.asarray(drawn[...]).astype(old.dtype), old.dtype) if np.any(np.asarray(old)) else old


def shuffle_tokens(texts: Encoded, key: PRNGKeyArray, fixed: Sequence[int] = ()) -> Encoded:
    """Returns the words of each text in a uniformly random order.

    **Arguments:**

    - `texts`: An `Encoded`.
    - `key`: PRNG key.
    - `fixed`: Ids that keep their positions, usually the special tokens.

    **Returns:**

    An `Encoded` with the same mask.

    **Raises:**

    - `ValueError` if `texts` is not an `Encoded`, `key` is not a PRNG key, or `fixed` contains a non-integer.
    """
    check_instance(texts, "texts", Encoded, "an Encoded", "pass what encode returns")
    fixed = listed_ids(fixed, "fixed", "ids")
    rng, ids = generator(key), np.array(texts.token_ids)
    movable = np.asarray(texts.mask) & ~np.isin(ids, np.asarray(fixed, np.int64))
    # The movable words of each text are permuted among their positions.
    for row, free in zip(ids, movable, strict=True):
        row[free] = rng.permutation(row[free])
    return Encoded(ids, np.asarray(texts.mask))


def _check_initial(initial: Any, spread: Any = None) -> Initial:
    if spread is not None:
        raise refusal("spread", "be None beside initial, which draws the weights", f"it is {shown(spread)}", "pass one")
    return check_callable(initial, "initial", "a function of a PRNG key", takes=1)


def _check_statistic(statistic: Any) -> None:
    if not isinstance(statistic, str):
        check_callable(statistic, "statistic", "the name of an Average, or a function that picks it", takes=1)


def _values(statistic: Statistic, result: Any) -> np.ndarray:
    """The values of a statistic, (texts, levels) or (texts, levels, heads), in the result of a measure."""
    _check_statistic(statistic)
    try:
        if isinstance(statistic, str):
            for name in statistic.split("."):
                result = result[name] if isinstance(result, dict) else getattr(result, name)
        else:
            result = statistic(result)
    except (AttributeError, KeyError):
        result = None
    if not isinstance(result, Average) or result.values is None or result.values.ndim not in (2, 3):
        raise ValueError(
            "statistic must give an Average whose values are kept, (texts, levels) or (texts, levels, heads), but "
            f"{statistic!r} gives {type(result).__name__}; pass 'near_mass' of similarity_histograms, say."
        )
    return result.values


def _compare(
    statistic: Statistic, trained: Any, shuffled: Any, random: Sequence[Any], units: np.ndarray | None
) -> tuple[Comparison, Comparison]:
    ours, drawn = _values(statistic, trained), np.stack([_values(statistic, drawn_run) for drawn_run in random])
    draws, means = len(drawn), drawn.mean(axis=1)
    # The variance of the mean over draws, for the mean over texts of each draw.
    between = means.var(axis=0, ddof=1) / draws if draws > 1 else np.full(means.shape[1:], np.nan)
    return (
        _comparison(ours - _values(statistic, shuffled), np.zeros(means.shape[1:]), np.inf, units),
        _comparison(ours - drawn.mean(axis=0), between, float(draws - 1), units),
    )


def _comparison(differences: np.ndarray, between: np.ndarray, freedom: float, units: Any = None) -> Comparison:
    """The `Comparison` of paired differences, (texts, levels). The variance `between`, estimated with `freedom` degrees
    of freedom, is added to their squared standard error; `units` are those of `clustered_error`."""
    paired = clustered_error(differences, units)
    within = paired.error**2
    # Where all differences are zero, z is 0 / 0 = NaN, which `exceeds` does not count as above zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(within + between)
        welch = (within + between) ** 2 / (within**2 / (paired.units - 1) + between**2 / freedom)
        return Comparison(paired.mean, error, paired.mean / error, np.where(error == 0, paired.units - 1, welch))
