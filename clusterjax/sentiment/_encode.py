"""Reviews to arrays: the words of each with their counts, in a few rectangles as narrow as their reviews allow."""

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Int

from .._check import check_flag, check_host_array, check_instance, check_integer
from ._reviews import Reviews, check_labels, check_rows
from ._vocabulary import PADDING, Vocabulary, check_window


STEP = 32  # widths are multiples of this: what a streaming sum over words is unrolled by


@final
@dataclass(frozen=True, eq=False)
class Encoded:
    """Reviews as ids, padded with zeros on their right.

    **Attributes:**

    - `ids`: (reviews, width), the ids of each review's words; each word once, at its first place, unless repeated
        words were asked for.
    - `counts`: (reviews, width), how often each word is there; 0 where `ids` is padding.
    - `labels`: 0 or 1 for each review.
    - `lengths`: How many of the ids of a review are words; 0 if it has no known word.
    - `rows`: Which of the reviews that were encoded each one is.

    Source: this library.
    """

    ids: Int[np.ndarray, "reviews width"]
    counts: Int[np.ndarray, "reviews width"]
    labels: Int[np.ndarray, " reviews"]
    lengths: Int[np.ndarray, " reviews"]
    rows: Int[np.ndarray, " reviews"]

    def __post_init__(self):
        ids = check_host_array(self.ids, "ids", shape=(None, None), integers=True, least=0)
        count, width = ids.shape
        whole = lambda name, shape, most: check_host_array(
            getattr(self, name), name, shape=shape, integers=True, least=0, most=most
        )
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "counts", whole("counts", ids.shape, None))
        labels = check_host_array(self.labels, "labels", shape=(count,), integers=True)
        object.__setattr__(self, "labels", check_labels(labels, "labels"))
        object.__setattr__(self, "lengths", whole("lengths", (count,), width))
        object.__setattr__(self, "rows", whole("rows", (count,), None))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """How many ids a row holds.

        Source: this library.
        """
        return self.ids.shape[1]

    def take(self, rows: Int[np.ndarray, " rows"], width: int | None = None) -> "Encoded":
        """Some of the reviews, perhaps in fewer columns.

        **Arguments:**

        - `rows`: Indices into this array's first axis.
        - `width`: How many columns are kept, or None for all.

        **Returns:**

        The reviews of these rows, in that order.

        **Raises:**

        - `ValueError` if one of these reviews has more words than `width`.

        Source: this library.
        """
        rows = check_rows(rows, len(self))
        width = None if width is None else check_integer(width, "width")
        longest = int(self.lengths[rows].max(initial=0))
        if width is not None and width < longest:
            raise ValueError(f"width must hold the longest review of {longest} words, but it is {width}; widen it.")
        return Encoded(
            self.ids[rows, :width],
            self.counts[rows, :width],
            self.labels[rows],
            self.lengths[rows],
            self.rows[rows],
        )

    def buckets(self, most: int = 3) -> tuple["Encoded", ...]:
        """The reviews sorted by length into at most `most` rectangles, so that less padding is computed with.

        Of all choices of widths, each a multiple of 32, the one with the least sum of rows times width squared,
        which is what attention costs. Each width is one more compilation. Within a bucket the order stays.

        **Arguments:**

        - `most`: The most buckets.

        **Returns:**

        The buckets, narrowest first; none of them empty.

        **Raises:**

        - `ValueError` if `most` is no positive integer.

        Source: this library.
        """
        most = check_integer(most, "most", remedy="pass 3, or 1 for no buckets")
        if not len(self):
            return ()
        needed = np.maximum(-(-self.lengths // STEP), 1) * STEP
        widths, rows = np.unique(needed, return_counts=True)
        best = _cheapest(tuple(widths.tolist()), tuple(rows.tolist()), most)
        chosen = np.array(best)[np.searchsorted(best, needed)]
        return tuple(self.take(np.flatnonzero(chosen == width), width) for width in best)


def encode_reviews(
    reviews: Reviews,
    vocabulary: Vocabulary,
    *,
    length: int = 256,
    keep: Literal["last", "first"] = "last",
    unique: bool = True,
) -> Encoded:
    """The words of each review as ids with counts: what the classifier is trained on.

    Identical words move as one through the hardmax layers, so that a word said twice is one token of count 2: fewer
    tokens, the same logit and the same gradient. A review with no known word is a row of zeros, of length 0.

    **Arguments:**

    - `reviews`: The reviews.
    - `vocabulary`: Which words have ids.
    - `length`: The most words that are kept of a review, repeated ones counted.
    - `keep`: Whether these are its `"last"` or its `"first"`.
    - `unique`: Whether each word is there once with its count; else each occurrence is there, with the count 1.

    **Returns:**

    An `Encoded` as wide as its longest review, rounded up to a multiple of 32.

    **Raises:**

    - `ValueError` if `length` is no positive integer, or `keep` none of the two.

    Source: this library.
    """
    check_reviews(reviews, "reviews")
    check_instance(vocabulary, "vocabulary", Vocabulary, "a Vocabulary", "pass one of Vocabulary.build")
    length, unique = check_window(length, keep), check_flag(unique, "unique")
    found = []
    for text in reviews.texts:
        ids = vocabulary.encode(text)
        ids = ids[-length:] if keep == "last" else ids[:length]
        found.append(Counter(ids) if unique else ids)
    lengths = np.array([len(ids) for ids in found], np.int32)
    width = max(-(-int(lengths.max(initial=0)) // STEP), 1) * STEP
    filled = np.arange(width) < lengths[:, None]
    ids, counts = np.full(filled.shape, PADDING, np.int32), np.zeros(filled.shape, np.int32)
    ids[filled] = list(itertools.chain.from_iterable(found))
    counts[filled] = list(itertools.chain.from_iterable(row.values() for row in found)) if unique else 1
    return Encoded(ids, counts, reviews.labels, lengths, np.arange(len(reviews), dtype=np.int32))


def check_reviews(reviews: Any, name: str) -> None:
    """Raise a ValueError unless `reviews` are `Reviews`."""
    check_instance(
        reviews, name, Reviews, "Reviews of clusterjax.sentiment", "pass those of load_imdb, or Reviews(...)"
    )


def check_encoded(reviews: Any, name: str) -> None:
    """Raise a ValueError unless `reviews` are `Encoded`."""
    check_instance(reviews, name, Encoded, "an Encoded", "pass what encode_reviews returned")


def _cheapest(widths: tuple[int, ...], rows: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most `most` of `widths`, the last of them among these, with the least cost of what `rows` need."""

    def cost(chosen: tuple[int, ...]) -> int:
        return sum(n * min(c for c in chosen if c >= width) ** 2 for width, n in zip(widths, rows, strict=True))

    choices = itertools.combinations(widths[:-1], min(most, len(widths)) - 1)
    return min(((*some, widths[-1]) for some in choices), key=cost)
