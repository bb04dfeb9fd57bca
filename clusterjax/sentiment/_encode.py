"""Encoding of reviews as arrays: the words of each review with their counts, in a few padded rectangles.

A row holds each word once with its count, since identical words move together through hardmax layers. Reviews are
sorted by length into a few buckets. The widths of the buckets minimise the cost, rows times width squared, over all
combinations of the few widths that are multiples of 32.

Invariants: padding is id 0 with count 0; the words of a review are in the order of their first occurrences; `rows`
gives the number of the encoded review for each row, after any selection or sorting.
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


STEP = 32  # widths are multiples of this number, the unrolling of the streaming sum over words


@final
@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded reviews: arrays of ids, padded with zeros on the right.

    **Attributes:**

    - `ids`: (reviews, width), the ids of the words of each review; each word once, in the order of first occurrences,
        unless repeated words were requested.
    - `counts`: (reviews, width), the count of each word; 0 where `ids` is padding.
    - `labels`: The label of each review, 0 or 1.
    - `lengths`: The number of ids of each review that are words; 0 for a review without known words.
    - `rows`: The number of each review among the encoded reviews.
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
        """The number of columns."""
        return self.ids.shape[1]

    def take(self, rows: Int[np.ndarray, " rows"], width: int | None = None) -> "Encoded":
        """Select some of the reviews, optionally in fewer columns.

        **Arguments:**

        - `rows`: Indices of the first axis.
        - `width`: The number of columns to keep; None keeps all.

        **Returns:**

        The selected reviews, in the order of `rows`.

        **Raises:**

        - `ValueError` if a selected review has more words than `width`.
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
        """Sort the reviews by length into at most `most` rectangles, which reduces the computation on padding.

        The widths are multiples of 32 that minimise the cost of attention, the sum of rows times width squared. Each
        width needs one compilation. The order within a bucket is unchanged.

        **Arguments:**

        - `most`: The largest number of buckets.

        **Returns:**

        The non-empty buckets, narrowest first.

        **Raises:**

        - `ValueError` if `most` is not a positive integer.
        """
        most = check_integer(most, "most", remedy="pass 3, or 1 for no buckets")
        if not len(self):
            return ()
        # Lengths are rounded up to a positive multiple of 32.
        needed = np.maximum(-(-self.lengths // STEP), 1) * STEP
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
    """Encode the words of each review as ids with counts, the input of the classifier.

    Identical words move together through the hardmax layers, so that a repeated word becomes one token of count 2:
    there are fewer tokens, and logit and gradient do not change. A review without known words is a row of zeros, of
    length 0.

    **Arguments:**

    - `reviews`: The reviews.
    - `vocabulary`: The words with their ids.
    - `length`: The largest number of words to keep of a review, including repetitions.
    - `keep`: `"last"` keeps the last words of a review, `"first"` the first words.
    - `unique`: True encodes each word once with its count, False each occurrence with the count 1.

    **Returns:**

    An `Encoded`, whose width is the length of the longest review rounded up to a multiple of 32.

    **Raises:**

    - `ValueError` if `length` is not a positive integer, or `keep` is neither `"last"` nor `"first"`.
    """
    check_reviews(reviews, "reviews")
    check_instance(vocabulary, "vocabulary", Vocabulary, "a Vocabulary", "pass one of Vocabulary.build")
    length, unique = check_window(length, keep), check_flag(unique, "unique")
    words_by_review = []
    for text in reviews.texts:
        ids = vocabulary.encode(text)
        # The window counts words in reading order, before repeated words are merged.
        ids = ids[-length:] if keep == "last" else ids[:length]
        words_by_review.append(Counter(ids) if unique else ids)
    lengths = np.array([len(ids) for ids in words_by_review], np.int32)
    width = max(-(-int(lengths.max(initial=0)) // STEP), 1) * STEP
    # The boolean mask is filled row by row from the left, in the order of `chain` below.
    filled = np.arange(width) < lengths[:, None]
    ids, counts = np.full(filled.shape, PADDING, np.int32), np.zeros(filled.shape, np.int32)
    ids[filled] = list(itertools.chain.from_iterable(words_by_review))
    counts[filled] = list(itertools.chain.from_iterable(row.values() for row in words_by_review)) if unique else 1
    return Encoded(ids, counts, reviews.labels, lengths, np.arange(len(reviews), dtype=np.int32))


def check_reviews(reviews: Any, name: str) -> None:
    """Raise a `ValueError` if `reviews` is not a `Reviews`."""
    check_instance(
        reviews, name, Reviews, "Reviews of clusterjax.sentiment", "pass those of load_imdb, or Reviews(...)"
    )


def check_encoded(reviews: Any, name: str) -> None:
    """Raise a `ValueError` if `reviews` is not an `Encoded`."""
    check_instance(reviews, name, Encoded, "an Encoded", "pass what encode_reviews returned")


def _cheapest(widths: tuple[int, ...], rows: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The cheapest choice of at most `most` of `widths`, including the last; `rows` counts the rows of each width."""

    # Each row goes into the narrowest chosen width that holds it.
    def cost(chosen: tuple[int, ...]) -> int:
        return sum(n * min(c for c in chosen if c >= width) ** 2 for width, n in zip(widths, rows, strict=True))

    # The largest width is always needed.
    choices = itertools.combinations(widths[:-1], min(most, len(widths)) - 1)
    return min(((*others, widths[-1]) for others in choices), key=cost)
