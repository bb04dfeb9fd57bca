"""Reviews to arrays: the words of each with their counts, in a few rectangles as narrow as their reviews allow.

Each word is there once with its count, since identical words move as one through hardmax layers. Reviews are sorted by
length into at most a few buckets; of all choices of widths the one of least cost, rows times width squared, is found
by trying all combinations of the few widths that are multiples of 32.

Invariants: padding is id 0 with count 0; the order of words in a review is that of their first places; `rows` says
which review each row was, whatever was taken or sorted.
"""

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
    """

    ids: Int[np.ndarray, "reviews width"]
    counts: Int[np.ndarray, "reviews width"]
    labels: Int[np.ndarray, " reviews"]
    lengths: Int[np.ndarray, " reviews"]
    rows: Int[np.ndarray, " reviews"]

    def __post_init__(self):
        ids = check_host_array(self.ids, "ids", shape=(None, None), integers=True, least=0)
        count, width = ids.shape
        checked_integers = lambda name, shape, most: check_host_array(
            getattr(self, name), name, shape=shape, integers=True, least=0, most=most
        )
        # Frozen, so that what was checked stays true; the arrays are NumPy's, on the host.
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "counts", checked_integers("counts", ids.shape, None))
        labels = check_host_array(self.labels, "labels", shape=(count,), integers=True)
        object.__setattr__(self, "labels", check_labels(labels, "labels"))
        object.__setattr__(self, "lengths", checked_integers("lengths", (count,), width))
        object.__setattr__(self, "rows", checked_integers("rows", (count,), None))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """How many ids a row holds."""
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
        """
        # Indices, and not a mask of booleans.
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
        """
        most = check_integer(most, "most", remedy="pass 3, or 1 for no buckets")
        if not len(self):
            return ()
        # Each length rounded up to a multiple of 32, one multiple at least.
        needed = np.maximum(-(-self.lengths // STEP), 1) * STEP
        # How many reviews need each width: a few numbers, however many reviews there are.
        widths, rows = np.unique(needed, return_counts=True)
        widths_chosen = _cheapest(tuple(widths.tolist()), tuple(rows.tolist()), most)
        width_of_row = np.array(widths_chosen)[np.searchsorted(widths_chosen, needed)]
        return tuple(self.take(np.flatnonzero(width_of_row == width), width) for width in widths_chosen)


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
    """
    check_reviews(reviews, "reviews")
    check_instance(vocabulary, "vocabulary", Vocabulary, "a Vocabulary", "pass one of Vocabulary.build")
    length, unique = check_window(length, keep), check_flag(unique, "unique")
    words_by_review = []
    for text in reviews.texts:
        ids = vocabulary.encode(text)
        # The window is of words as they are read, before repeated ones are joined.
        ids = ids[-length:] if keep == "last" else ids[:length]
        words_by_review.append(Counter(ids) if unique else ids)
    lengths = np.array([len(ids) for ids in words_by_review], np.int32)
    width = max(-(-int(lengths.max(initial=0)) // STEP), 1) * STEP
    # (reviews, width): filled from the left, row by row, which is the order of the chain below.
    filled = np.arange(width) < lengths[:, None]
    ids, counts = np.full(filled.shape, PADDING, np.int32), np.zeros(filled.shape, np.int32)
    ids[filled] = list(itertools.chain.from_iterable(words_by_review))
    counts[filled] = list(itertools.chain.from_iterable(row.values() for row in words_by_review)) if unique else 1
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

    # The cost of each row is that of the narrowest chosen width that holds it.
    def cost(chosen: tuple[int, ...]) -> int:
        return sum(n * min(c for c in chosen if c >= width) ** 2 for width, n in zip(widths, rows, strict=True))

    # The widest is always needed.
    choices = itertools.combinations(widths[:-1], min(most, len(widths)) - 1)
    return min(((*others, widths[-1]) for others in choices), key=cost)
