"""Reviews with their labels and, where these are known, their films and the part of the data that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Int, Shaped


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

    Source: this library.
    """

    texts: tuple[str, ...]
    labels: Int[np.ndarray, " reviews"]
    films: Shaped[np.ndarray, " reviews"] | None = None
    split: Shaped[np.ndarray, " reviews"] | None = None
    ratings: Int[np.ndarray, " reviews"] | None = None

    def __post_init__(self):
        if isinstance(self.texts, str):
            raise ValueError(f"texts must be a list of texts, but it is the text {self.texts[:40]!r}; pass [text].")
        object.__setattr__(self, "texts", tuple(self.texts))
        given = [name for name in ("films", "split", "ratings") if getattr(self, name) is not None]
        for name in ("labels", *given):
            value = getattr(self, name)
            if np.shape(value) != (len(self.texts),):
                raise ValueError(
                    f"{name} must have one value for each of the {len(self.texts)} texts, but its shape is "
                    f"{np.shape(value)}; pass as many."
                )
        if not np.isin(self.labels, (0, 1)).all():
            raise ValueError(f"labels must be 0 or 1, but they hold {np.unique(self.labels)}; map them.")
        object.__setattr__(self, "labels", np.asarray(self.labels, np.int8))
        if self.split is not None and not np.isin(self.split, ("train", "test")).all():
            raise ValueError(f"split must be 'train' or 'test', but it holds {np.unique(self.split)}; map it.")

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | Int[np.ndarray, " rows"]) -> "Reviews":
        """The reviews of the given rows, in that order.

        **Arguments:**

        - `rows`: Indices into `texts`.

        **Returns:**

        Reviews.

        Source: this library.
        """
        index = np.asarray(rows, int)
        others: dict[str, Any] = {}
        for name in ("films", "split", "ratings"):
            value = getattr(self, name)
            others[name] = None if value is None else value[index]
        return Reviews(tuple(self.texts[row] for row in index.tolist()), self.labels[index], **others)
