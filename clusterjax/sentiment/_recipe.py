"""How a classifier is built and trained, as numbers: one frozen record, checked when it is made.

The defaults were found by validation for d = 2 and one head; `of_dim` has those for other dimensions, heads and
n-grams, `bag_of_words` the linear model without layers that clustering is compared with.

Invariants: every number is a plain Python value, so that a recipe can be written as JSON, hashed and compared; a name
that no recipe has is refused.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, final

from .._check import check_flag, check_instance, check_integer, check_number
from ._model import MOST_LAYERS
from ._text import MOST


@final
@dataclass(frozen=True)
class Recipe:
    r"""How a classifier is built and trained. The defaults are the best that was found for d = 2 and one head.

    **Arguments:**

    - `dim`, `heads`, `depth`: d, the number of heads, and K.
    - `length`: The last so many words of a review are read; the paper has 128, which costs half a point.
    - `min_count`: Words of the training part that are rarer are left out.
    - `ngrams`: 2 makes each two neighbouring words a word too, as in `TextOptions`; `length` and `min_count` are
        then of both.
    - `epochs`, `batch_size`, `learning_rate`, `warm_up`, `clip`: Of AdamW ($b_2 = 0.99$, no decay), whose learning
        rate rises for `warm_up` steps and falls as a cosine to a fiftieth.
    - `smoothing`: Of the naive-Bayes start $E_i = r_i w/|w| + \text{noise}$, $r_i$ the log ratio of the shares of
        positive and negative reviews with word i, `smoothing` added to each count: rare words start near zero.
    - `naive_bayes`: Whether there is this start; otherwise E is noise.
    - `noise`: Standard deviation of the start.
    - `drop`: Each word of a review is left out of a training step with probability `drop` to the power of its count:
        as query, as key and from the mean.
    - `label_smoothing`: The share of each label that goes to both.
    - `alpha`: Where the steps of the layers start, or stay.
    - `learn_alpha`: Whether they are trained.
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
        # Checked and made plain Python values, which JSON can hold and `lru_cache` can hash.
        for name in ("naive_bayes", "learn_alpha"):
            checked[name] = check_flag(getattr(self, name), name)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of_dim(cls, dim: int, **changes: float | int | bool) -> "Recipe":
        """The recipe that was found for this d, and for the heads and n-grams among `changes`; with `changes`.

        Several heads keep alpha = 1.3. With n-grams there are more words, and each is seen 5 times.
        """
        dim = check_integer(dim, "dim", most=MOST)
        # In more dimensions the start needs more noise, or all words stay near the line along w.
        if dim <= 4:
            numbers: dict[str, Any] = {"noise": 0.1 if dim <= 2 else 0.2}
        else:
            numbers = {"noise": 0.3, "drop": 0.6} if dim <= 8 else {"noise": 0.4, "learning_rate": 6e-3}
        _check_names(changes)
        # Checked before it is compared: a string would compare with an error about types.
        if check_integer(changes.get("heads", 1), "heads", most=MOST) > 1:
            numbers |= {"alpha": 1.3, "learn_alpha": False}
        if check_integer(changes.get("ngrams", 1), "ngrams", most=MOST) > 1:
            numbers |= {"min_count": 5}
        # What the caller changes comes last.
        numbers = {"dim": dim} | numbers | changes
        return cls(**numbers)

    @classmethod
    def bag_of_words(cls, **changes: float | int | bool) -> "Recipe":
        """The same model without layers, which is linear in the counts of words: the baseline of clustering."""
        numbers: dict[str, Any] = {"dim": 1, "depth": 0, "noise": 0.01, "learning_rate": 1e-2}
        _check_names(changes)
        if check_integer(changes.get("ngrams", 1), "ngrams", most=MOST) > 1:
            numbers |= {"min_count": 5}
        given: dict[str, Any] = numbers | changes
        return cls(**given)

    def record(self) -> dict[str, Any]:
        """The recipe as a dictionary that JSON can hold."""
        return asdict(self)

    def with_(self, **changes: float | int | bool) -> "Recipe":
        """The recipe with some of its numbers changed."""
        _check_names(changes)
        return replace(self, **changes)


def _check_names(changes: dict[str, Any]) -> None:
    """Raise a ValueError unless a recipe has each of these numbers."""
    for name in changes:
        if name not in Recipe.__dataclass_fields__:
            raise ValueError(
                f"{name} must be a number of a recipe, but it is none; pass some of {', '.join(asdict(Recipe()))}."
            )


def check_recipe(recipe: Any) -> None:
    """Raise a ValueError unless `recipe` is one."""
    check_instance(recipe, "recipe", Recipe, "a Recipe", "pass Recipe(), or one of its methods")
