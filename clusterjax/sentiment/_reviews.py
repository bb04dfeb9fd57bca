"""Reviews with their labels and, where these are known, their films and the part of the data that they belong to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Int, Shaped

from .._check import check_host_array, check_sequence


@final
@dataclass(frozen=True, eq=False)
class Reviews:
    """Texts with a label each: 0 is negative, 1 is positive.

    **Arguments:**

    - `texts`: The reviews, as they were written.
    - `labels`: 0 or 1 for each.
    - `films`: A name for each review's film, "" where it is not known; None if nothing is known of films.
    - `split`: "train" or "test" for each review; None if the data come without a split.
    - `ratings`: The stars that each review gives, 1 to 10; None if they are not known.

    **Raises:**

    - `ValueError` if one of them is of another length than `texts`, or holds other values.
    """

    texts: tuple[str, ...]
    labels: Int[np.ndarray, " reviews"]
    films: Shaped[np.ndarray, " reviews"] | None = None
    split: Shaped[np.ndarray, " reviews"] | None = None
    ratings: Int[np.ndarray, " reviews"] | None = None

    def __post_init__(self):
        object.__setattr__(self, "texts", tuple(check_sequence(self.texts, "texts", str, "texts", least=0)))
        # int8: 50,000 labels are compared and counted, never summed in their own dtype.
        object.__setattr__(self, "labels", check_labels(self._checked("labels", check_host_array), "labels"))
        # Arrays of strings, and not of objects, so that comparisons are elementwise.
        names = lambda value, name: np.array(check_sequence(value, name, str, "strings", least=0), str)
        integers = lambda value, name: check_host_array(value, name, integers=True)
        for name, check in (("films", names), ("split", names), ("ratings", integers)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._checked(name, check))
        if self.split is not None and not np.isin(self.split, ("train", "test")).all():
            raise ValueError(f"split must be 'train' or 'test', but it holds {np.unique(self.split)}; map it.")

    def _checked(self, name: str, check: Callable[[Any, str], np.ndarray]) -> np.ndarray:
        """One of the arrays, with one value for each text."""
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
        """The reviews of the given rows, in that order.

        **Arguments:**

        - `rows`: Indices into `texts`.

        **Returns:**

        Reviews.
        """
        # NumPy would take negative indices and booleans for something else than row numbers.
        index = check_rows(rows, len(self))
        # What is not known stays None.
        others: dict[str, Any] = {}
        for name in ("films", "split", "ratings"):
            value = getattr(self, name)
            others[name] = None if value is None else value[index]
        return Reviews(tuple(self.texts[row] for row in index.tolist()), self.labels[index], **others)


def check_labels(labels: Any, name: str) -> Int[np.ndarray, " reviews"]:
    """`labels` as an int8 vector, if each of them is 0 or 1."""
    array = check_host_array(labels, name, shape=(None,))
    if not np.isin(array, (0, 1)).all():
        values = np.unique(array)
        shown = values if len(values) <= 8 else f"{len(values)} values from {values[0]} to {values[-1]}"
        raise ValueError(f"{name} must be 0 or 1, but they hold {shown}; map them.")
    return np.asarray(array, np.int8)


def check_rows(rows: Any, count: int) -> Int[np.ndarray, " rows"]:
    """`rows` as a vector of integers, if each is the index of one of `count` reviews."""
    remedy = f"pass indices of the {count} reviews"
    return check_host_array(rows, "rows", shape=(None,), integers=True, least=0, most=count - 1, remedy=remedy)
