"""The same measurement on random weights and on shuffled tokens, without which a trained network shows nothing.

Differences are paired by text. Against shuffled tokens their standard error is that of their mean over independent
units, which are texts or what the texts are parts of (`clustered_error`); against random weights the variance between
the networks drawn is added, and the degrees of freedom of the sum are those of Welch and Satterthwaite (Biometrics
Bulletin, 1946).

Invariants: a verdict is NaN, and so never positive, for one text or one network; each run has its own file in the
store; what was removed from a network stays removed in its control.
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

from ..._check import (
    check_callable,
    check_concrete,
    check_instance,
    check_integer,
    check_key,
    check_number,
    check_path,
    check_sequence,
    refusal,
    shown,
)
from ..._random import generator
from ..._summary import estimate, levels, short, spread
from ..networks.batch import Encoded
from ..networks.load import Model, check_model, replace_network
from ..networks.network import AbstractNetwork
from .head_correlations import HeadCorrelations
from .sinks import AttentionSinks
from .survey import encoded
from .tally import Average, clustered_error, threshold, units_of


Statistic = str | Callable[[Any], Average]
Initial = Callable[[PRNGKeyArray], AbstractNetwork]


class Comparison(NamedTuple):
    """The trained network against one control, paired by text.

    **Attributes:**

    - `difference`: The statistic of the trained network less that of the control, the mean over texts, (levels,), or
        (levels, heads).
    - `error`: Its standard error: from the spread of the differences of texts and, for random weights, from that
        between the networks that were drawn; NaN for one text, or one network.
    - `z`: `difference` divided by `error`.
    - `freedom`: The degrees of freedom of `error`: one less than the independent units, which are the texts where
        `controls` was given no others; for random weights, where it is the sum of
        two, those of Welch and Satterthwaite.

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
        """Where the difference is significantly above zero: a one-sided t-test.

        Its level is the probability that a normal number exceeds its mean by `sigmas` standard deviations. With few
        texts or networks the threshold of `z` is larger than `sigmas`, since it is a quantile of Student's t.

        **Raises:**

        - `ValueError` if `sigmas` is no finite number.
        """
        return self.z > threshold(self.freedom, check_number(sigmas, "sigmas"))


class Controls(NamedTuple):
    """The result of `controls`.

    **Attributes:**

    - `trained`: The measurement on the network and the texts as they are.
    - `shuffled`: On the tokens of each text in random order.
    - `random`: On networks with random weights, one for each draw.
    - `beyond_shuffled`, `beyond_random`: A `Comparison` with each.
    - `level`: The level that the verdict is about.
    - `sigmas`: How many errors a difference must be above zero, if there are many texts and networks; see
        `Comparison.exceeds`.
    - `spread`: The standard deviation of the random weights; None where `initial` drew them, or a T5, whose matrices
        have one each.
    - `units`: The number of the independent unit of each text; None where each text is one.
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
            told = estimate(by.difference[self.level], by.error[self.level])
            rows.append(f"  {name}: {told}, z = {spread(by.z[self.level])}")
        found = "exceeds both" if self.clusters_beyond_controls else "does not exceed both"
        return "\n".join([*rows, f"it {found}, by {self.sigmas:g} standard errors."])

    @property
    def z(self) -> float:
        """The smallest z-score of the two comparisons, and of all heads, at `level`; NaN if one of them is."""
        return float(np.min([self.beyond_shuffled.z[self.level], self.beyond_random.z[self.level]]))

    @property
    def clusters_beyond_controls(self) -> bool:
        """Whether the trained network surely exceeds both controls, with all heads if the statistic is of heads; never
        for one text, or one network of random weights."""
        comparisons = (self.beyond_shuffled, self.beyond_random)
        return all(bool(np.all(comparison.exceeds(self.sigmas)[self.level])) for comparison in comparisons)

    def compare(self, statistic: Statistic) -> tuple[Comparison, Comparison]:
        """Another statistic of the same runs: beyond shuffled tokens, and beyond random weights.

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
    """One measurement three times: on the trained network, on shuffled tokens, and on random weights.

    A network with random weights may cluster more than a trained one, and a bag of the same tokens as much as a text:
    only what exceeds both is learnt and is about language. Texts are paired: the error bar is that of the mean
    difference of a text to itself.

    **Arguments:**

    - `measure`: `measure(model, texts)`, such as `similarity_histograms`, `head_correlations` or `attention_sinks`, or
        `functools.partial` of one with options. With a `store` it is also given `store=`.
    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `key`: PRNG key of the weights and of the orders.
    - `statistic`: Which `Average` of what `measure` returns is compared, of which the values of texts are kept,
        (texts, levels) or (texts, levels, heads): its name, such as "near_mass" or "excess.[CLS]", or a function that
        picks it. None is "between_heads" of `head_correlations`, "excess.first" of `attention_sinks`, and "cosine" of
        anything else. `Controls.compare` compares others without measuring again.
    - `draws`: How many networks with random weights. With one, nothing tells its difference from chance.
    - `initial`, `spread`: How the network was before training, if not as `transformers` begins; see `randomise`. The
        spread may turn the sign of the difference: what exceeds networks of one spread may fall short of another.
    - `fixed`: Ids that stay in place when tokens are shuffled; None is the special tokens of the model's tokenizer.
    - `units`: The independent unit of each text, such as the article of a passage, over which errors are. None takes
        each text for a unit; passages of one article are none, and their errors would be too small.
    - `level`: Which level the verdict is about.
    - `sigmas`: How many errors both differences must be above zero, if there are many texts and draws; with few it is
        more, so that chance exceeds it no more often.
    - `length`: Longer texts are cut to so many tokens.
    - `store`: A folder, in which each run has its file; see `survey`.

    **Returns:**

    A `Controls`.

    **Raises:**

    - `ValueError` if `draws` is not positive, `statistic` gives no values of texts and levels, `units` is not one
        integer for each text, and as `measure` and `randomise` do.
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
        _check_fixed(fixed)
    if store is not None:
        check_path(store, "store")
    # Encoded once: the three runs read the same token ids, and so are paired by text.
    data = encoded(model, texts, length)
    of = None if units is None else units_of(units, len(data.mask))
    weights, orders = jr.split(key)
    run = lambda name, model, texts: measure(
        model, texts, **({} if store is None else {"store": Path(store) / f"{name}.safetensors"})
    )
    # First, since the default statistic depends on what the measure returns.
    trained = run("trained", model, data)
    if statistic is None:
        kinds = ((HeadCorrelations, "between_heads"), (AttentionSinks, "excess.first"), (object, "cosine"))
        statistic = next(name for kind, name in kinds if isinstance(trained, kind))
    levels = _values(statistic, trained).shape[1]  # a wrong one is said before the other runs
    check_integer(level, "level", least=-levels, most=levels - 1, remedy="pass -1 for the last")
    # Special tokens keep their places: [CLS] elsewhere than at the start would be another input.
    shuffled = run("shuffled", model, shuffle_tokens(data, orders, _special(model) if fixed is None else fixed))
    random = tuple(
        run(f"random-{draw}", randomise(model, jr.fold_in(weights, draw), initial=initial, spread=spread), data)
        for draw in range(draws)
    )
    beyond = _compare(statistic, trained, shuffled, random, of)
    return Controls(trained, shuffled, random, *beyond, level, sigmas, getattr(sizes, "spread", None), of)


def randomise(model: Model, key: PRNGKeyArray, *, initial: Initial | None = None, spread: float | None = None) -> Model:
    """The model with random weights in place of its own: those of a network that has not been trained.

    Without `initial` they are drawn as `transformers` begins: normal; for ALBERT and Llama all matrices and embeddings
    with the standard deviation `initializer_range`, for T5 with those of Mesh TensorFlow; biases 0, the scales of norms
    1. Where no file says that deviation, as for GGUF and for the language models of `transformer`, it must be given;
    "smollm2" has the published one, 1/24. A network that began in another way has other controls, and they may reverse
    the verdict: pass how it began, which for the ALBERT of the package is `bundled_start`. Depth and heads
    are those of the model, and what was removed from it stays removed: norms, and parameters that are all zero. It has
    no pooler and no masked-LM head.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `key`: PRNG key.

    **Other arguments:**

    - `initial`: A function of a PRNG key that returns a network of the same sizes with its weights as before training;
        None is as above.
    - `spread`: The standard deviation of matrices and embeddings; None is that of the network.

    **Returns:**

    A `Model`, whose name tells the spread.

    **Raises:**

    - `ValueError` if the spread is not known and not given, it is given beside `initial` or for a T5, or what `initial`
        returns lacks a parameter of the network, or has it in another shape.

    The spreads are those of `transformers`.
    """
    network: Any = nnx.clone(check_model(model).network)
    check_concrete(check_key(key), "key")
    # It plays no part in the hidden states, and `initial` may return a network without it.
    network.drop_head()
    name = f"{model.name} with random weights"
    if initial is None:
        sizes = _drawn_sizes(model, spread)
        name += f" of spread {sizes.spread:.3g}" if hasattr(sizes, "spread") else ""
        initial, spread = lambda key: type(network)(sizes, nnx.Rngs(key)), None
    drawn_network = _check_initial(initial, spread)(key)
    if not isinstance(drawn_network, AbstractNetwork):
        raise refusal(
            "initial",
            "return a network of probe",
            f"it returns {shown(drawn_network)}",
            "build one with model.network.sizes",
        )
    # By path in the parameter tree, since the modules may have been replaced.
    drawn = dict(nnx.to_flat_state(nnx.state(drawn_network, nnx.Param)))
    # `rest` holds what is no parameter, such as the radius of `on_sphere`.
    form, parameters, rest = nnx.split(network, nnx.Param, ...)
    filled = [
        (path, old.replace(_redrawn(path, old[...], drawn.get(path)))) for path, old in nnx.to_flat_state(parameters)
    ]
    network = nnx.merge(form, nnx.from_flat_state(filled), rest)
    return replace_network(model, network, name)


def _drawn_sizes(model: Model, spread: float | None) -> Any:
    """The sizes of the model, with the spread that its random weights are drawn with."""
    sizes: Any = model.network.sizes
    if spread is not None:
        spread = check_number(spread, "spread", above=0)
        if not hasattr(sizes, "spread"):
            problem = f"those of {model.name!r} have one each"
            raise refusal("spread", "be None where matrices have no common spread", problem, "leave it out")
        return sizes._replace(spread=spread)
    if getattr(sizes, "spread", 0.0) is None:
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
    # A parameter that is all zero was removed on purpose (`without_feed_forward`), and stays zero. So do biases, which
    # begin at zero anyway.
    return drawn[...].astype(old.dtype) if jnp.any(old != 0) else old


def shuffle_tokens(texts: Encoded, key: PRNGKeyArray, fixed: Sequence[int] = ()) -> Encoded:
    """The words of each text in random order, each order equally likely.

    **Arguments:**

    - `texts`: An `Encoded`.
    - `key`: PRNG key.
    - `fixed`: Ids that stay where they are: special tokens.

    **Returns:**

    An `Encoded` with the same mask.

    **Raises:**

    - `ValueError` if `texts` is not an `Encoded`, `key` no PRNG key, or `fixed` holds anything other than integers.
    """
    check_instance(texts, "texts", Encoded, "an Encoded", "pass what encode returns")
    fixed = _check_fixed(fixed)
    rng, ids = generator(key), np.array(texts.token_ids)
    movable = np.asarray(texts.mask) & ~np.isin(ids, np.asarray(fixed, np.int64))
    # A permutation of the movable words of each text among their own places.
    for row, free in zip(ids, movable, strict=True):
        row[free] = rng.permutation(row[free])
    return Encoded(ids, np.asarray(texts.mask))


def _special(model: Model) -> list[int]:
    return [] if model.tokenizer is None else list(model.tokenizer.all_special_ids)


def _check_initial(initial: Any, spread: Any = None) -> Initial:
    if spread is not None:
        raise refusal("spread", "be None beside initial, which draws the weights", f"it is {shown(spread)}", "pass one")
    return check_callable(initial, "initial", "a function of a PRNG key", takes=1)


def _check_fixed(fixed: Any) -> list[int]:
    ids = check_sequence(fixed, "fixed", object, "ids", least=0)
    return [check_integer(token, f"fixed[{place}]", least=0) for place, token in enumerate(ids)]


def _check_statistic(statistic: Any) -> None:
    if not isinstance(statistic, str):
        check_callable(statistic, "statistic", "the name of an Average, or a function that picks it", takes=1)


def _values(statistic: Statistic, result: Any) -> np.ndarray:
    """The values of a statistic, (texts, levels) or (texts, levels, heads), of what a measure returned."""
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
    # The variance of the mean over draws, of the mean over texts of each draw.
    between = means.var(axis=0, ddof=1) / draws if draws > 1 else np.full(means.shape[1:], np.nan)
    return (
        _comparison(ours - _values(statistic, shuffled), np.zeros(means.shape[1:]), np.inf, units),
        _comparison(ours - drawn.mean(axis=0), between, float(draws - 1), units),
    )


def _comparison(differences: np.ndarray, between: np.ndarray, freedom: float, units: Any = None) -> Comparison:
    """The `Comparison` of paired differences, (texts, levels), to whose squared standard error the variance `between`
    is added, itself estimated with `freedom` degrees of freedom; `units` are those of `clustered_error`."""
    paired = clustered_error(differences, units)
    within = paired.error**2
    # Where nothing differs at all, z is 0 / 0 = NaN, which `exceeds` does not count as above zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(within + between)
        welch = (within + between) ** 2 / (within**2 / (paired.units - 1) + between**2 / freedom)
        return Comparison(paired.mean, error, paired.mean / error, np.where(error == 0, paired.units - 1, welch))
