"""Reviews with their labels and, if known, their films, ratings and parts of the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Int, Shaped

from .._check import check_host_array, check_sequence


@final
@dataclass(frozen=True, eq=False)
class Reviews:
    """Texts with a label for each: 0 is negative, and 1 is positive.

    **Arguments:**

    - `texts`: The reviews, unprocessed.
    - `labels`: The label of each review, 0 or 1.
    - `films`: The name of the film of each review, "" for an unknown film; None if all films are unknown.
    - `split`: "train" or "test" for each review; None if the data have no split.
    - `ratings`: The stars of each review, 1 to 10; None if unknown.

    **Raises:**

    - `ValueError` if an array has another length than `texts`, or invalid values.
    """

    texts: tuple[str, ...]
    labels: Int[np.ndarray, " reviews"]
    films: Shaped[np.ndarray, " reviews"] | None = None
    split: Shaped[np.ndarray, " reviews"] | None = None
    ratings: Int[np.ndarray, " reviews"] | None = None

    def __post_init__(self):
        object.__setattr__(self, "texts", tuple(check_sequence(self.texts, "texts", str, "texts", least=0)))
        # int8 suffices for labels, which are compared and counted, but never summed in their dtype.
        object.__setattr__(self, "labels", check_labels(self._checked("labels", check_host_array), "labels"))
        # Arrays of strings, unlike arrays of objects, compare elementwise.
        names = lambda value, name: np.array(check_sequence(value, name, str, "strings", least=0), str)
        integers = lambda value, name: check_host_array(value, name, integers=True)
        for name, check in (("films", names), ("split", names), ("ratings", integers)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._checked(name, check))
        if self.split is not None and not np.isin(self.split, ("train", "test")).all():
            raise ValueError(f"split must be 'train' or 'test', but it holds {np.unique(self.split)}; map it.")

    def _checked(self, name: str, check: Callable[[Any, str], np.ndarray]) -> np.ndarray:
        """Return the checked array of this name, with one value for each text."""
        value = check(getattr(self, name), name)
        if value.shape != (len(self.texts),):
            raise ValueError(
                f"{name} must have one value for each of the {len(self.texts)} texts, but its shape is {value.shape}; "
                "pass as many."
            )
        return value

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | Int[np.ndarray, " rows"]) -> "Reviews":
        """Select the reviews of the given rows, in the order of `rows`.

        **Arguments:**

        - `rows`: Indices of `texts`.

        **Returns:**

        The selected `Reviews`.
        """
        # NumPy would interpret negative indices and booleans differently from row numbers.
        index = check_rows(rows, len(self))
        others: dict[str, Any] = {}
        for name in ("films", "split", "ratings"):
            value = getattr(self, name)
            others[name] = None if value is None else value[index]
        return Reviews(tuple(self.texts[row] for row in index.tolist()), self.labels[index], **others)


def check_labels(labels: Any, name: str) -> Int[np.ndarray, " reviews"]:
    """Return `labels` as an int8 vector if each label is 0 or 1; raise a `ValueError` otherwise."""
    array = check_host_array(labels, name, shape=(None,))
    if not np.isin(array, (0, 1)).all():
        values = np.unique(array)
        shown = values if len(values) <= 8 else f"{len(values)} values from {values[0]} to {values[-1]}"
        raise ValueError(f"{name} must be 0 or 1, but they hold {shown}; map them.")
    return np.asarray(array, np.int8)


def check_rows(rows: Any, count: int) -> Int[np.ndarray, " rows"]:
    """Return `rows` as a vector of integers if each is the index of one of `count` reviews."""
    remedy = f"pass indices of the {count} reviews"
    return check_host_array(rows, "rows", shape=(None,), integers=True, least=0, most=count - 1, remedy=remedy)
