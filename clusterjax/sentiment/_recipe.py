"""The hyperparameters of a classifier and its training: one frozen record, which is checked on construction.

The defaults were chosen on validation data for d = 2 and one head. `of_dim` has the values for other dimensions, heads
and n-grams, and `bag_of_words` has those for the linear model without layers, the baseline of clustering.

Invariants: every field is a plain Python value, so that a recipe can be written as JSON, hashed and compared; an
unknown name of a field is refused.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, final

from .._check import check_flag, check_instance, check_integer, check_number
from ._model import MOST_LAYERS
from ._text import MOST


@final
@dataclass(frozen=True)
class Recipe:
    r"""The hyperparameters of a classifier. The defaults are the best values found for d = 2 and one head.

    **Arguments:**

    - `dim`, `heads`, `depth`: The dimension d, the number of heads, and the number of layers K.
    - `length`: The number of last words of a review that are read; with the 128 of the paper the accuracy is half a
        percentage point lower.
    - `min_count`: The smallest count in the training part of a word of the vocabulary.
    - `ngrams`: With 2, each pair of neighbouring words becomes a word too, as in `TextOptions`; `length` and
        `min_count` then apply to words and pairs.
    - `epochs`, `batch_size`, `learning_rate`, `warm_up`, `clip`: The parameters of AdamW ($b_2 = 0.99$, no weight
        decay), whose learning rate rises for `warm_up` steps and then falls as a cosine to a fiftieth; `clip` bounds
        the norm of the gradient.
    - `smoothing`: The number that is added to each count in the naive-Bayes initialisation $E_i = r_i w/|w| +
        \text{noise}$, where $r_i$ is the log ratio of the fractions of positive and negative reviews with word i; rare
        words start near zero.
    - `naive_bayes`: True for this initialisation; otherwise E is noise.
    - `noise`: The standard deviation of the noise.
    - `drop`: A word of count c is dropped in a training step with probability $\text{drop}^c$: as query, as key and
        from the mean.
    - `label_smoothing`: The fraction of each label that is distributed evenly over both labels.
    - `alpha`: The initial step of the layers, which is fixed unless `learn_alpha` is True.
    - `learn_alpha`: True if the steps are trained.
    """

    dim: int = 2
    heads: int = 1
    depth: int = 8
    length: int = 256
    min_count: int = 3
    ngrams: int = 1
    epochs: int = 6
    batch_size: int = 64
    learning_rate: float = 3e-3
    warm_up: int = 200
    clip: float = 5.0
    smoothing: float = 10.0
    naive_bayes: bool = True
    noise: float = 0.1
    drop: float = 0.5
    label_smoothing: float = 0.1
    alpha: float = 1.0
    learn_alpha: bool = True

    def __post_init__(self):
        checked: dict[str, Any] = {}
        for name in ("dim", "heads", "length", "min_count", "ngrams", "epochs", "batch_size"):
            checked[name] = check_integer(getattr(self, name), name, most=MOST)
        checked["depth"] = check_integer(self.depth, "depth", least=0, most=MOST_LAYERS, remedy="pass 8, as the paper")
        checked["warm_up"] = check_integer(self.warm_up, "warm_up", least=0, remedy="pass 0 for none")
        for name in ("learning_rate", "smoothing", "alpha", "clip"):
            checked[name] = check_number(getattr(self, name), name, above=0)
        checked["noise"] = check_number(self.noise, "noise", least=0, remedy="pass 0 for none")
        for name in ("drop", "label_smoothing"):
            checked[name] = check_number(getattr(self, name), name, least=0, below=1, remedy="pass 0 for none")
        # Plain Python values can be written as JSON and hashed by `lru_cache`.
        for name in ("naive_bayes", "learn_alpha"):
            checked[name] = check_flag(getattr(self, name), name)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of_dim(cls, dim: int, **changes: float | int | bool) -> "Recipe":
        """The best recipe found for this d and for the `heads` and `ngrams` in `changes`, with `changes` applied.

        Several heads have the fixed alpha = 1.3. With n-grams, `min_count` is 5, since there are more words.
        """
        dim = check_integer(dim, "dim", most=MOST)
        # In more dimensions more noise is needed, or all words stay near the line along w.
        if dim <= 4:
            numbers: dict[str, Any] = {"noise": 0.1 if dim <= 2 else 0.2}
        else:
            numbers = {"noise": 0.3, "drop": 0.6} if dim <= 8 else {"noise": 0.4, "learning_rate": 6e-3}
        _check_names(changes)
        # The check precedes the comparison, which would raise a `TypeError` for a string.
        if check_integer(changes.get("heads", 1), "heads", most=MOST) > 1:
            numbers |= {"alpha": 1.3, "learn_alpha": False}
        if check_integer(changes.get("ngrams", 1), "ngrams", most=MOST) > 1:
            numbers |= {"min_count": 5}
        numbers = {"dim": dim} | numbers | changes
        return cls(**numbers)

    @classmethod
    def bag_of_words(cls, **changes: float | int | bool) -> "Recipe":
        """The recipe of a model without layers, which is linear in the counts of words: the baseline of clustering."""
        numbers: dict[str, Any] = {"dim": 1, "depth": 0, "noise": 0.01, "learning_rate": 1e-2}
        _check_names(changes)
        if check_integer(changes.get("ngrams", 1), "ngrams", most=MOST) > 1:
            numbers |= {"min_count": 5}
        given: dict[str, Any] = numbers | changes
        return cls(**given)

    def record(self) -> dict[str, Any]:
        """The recipe as a dictionary of values of JSON."""
        return asdict(self)

    def with_(self, **changes: float | int | bool) -> "Recipe":
        """The recipe with some fields changed."""
        _check_names(changes)
        return replace(self, **changes)


def _check_names(changes: dict[str, Any]) -> None:
    """Raise a `ValueError` if `changes` has a name that is not a field of a recipe."""
    for name in changes:
        if name not in Recipe.__dataclass_fields__:
            raise ValueError(
                f"{name} must be a number of a recipe, but it is none; pass some of {', '.join(asdict(Recipe()))}."
            )


def check_recipe(recipe: Any) -> None:
    """Raise a `ValueError` if `recipe` is not a `Recipe`."""
    check_instance(recipe, "recipe", Recipe, "a Recipe", "pass Recipe(), or one of its methods")
