"""Encoding of reviews as arrays: the words of each review with their counts, in a few padded rectangles.

A row holds each word once with its count, since identical words move together through hardmax layers. Reviews are
sorted by length into a few buckets. The widths of the buckets minimise the cost, rows times width squared, over all
combinations of the few widths that are multiples of 32.

Invariants: padding is id 0 with count 0; the words of a review are in the order of their first occurrences; `rows`
gives the number of the encoded review for each row, after any selection or sorting.
"""

import itertools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Array, Int

from .._base.checks import check_flag, check_host_array, check_instance, check_integer, check_number
from .._base.random import generator
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
        width = self.width if width is None else check_integer(width, "width")
        longest = int(self.lengths[rows].max(initial=0))
        if width < longest:
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

    Identical words move together through the hardmax layers, so a repeated word can be one token with its count: this
    reduces the number of tokens and changes neither logit nor gradient. A review without known words is a row of zeros,
    of length 0.

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


@final
@dataclass(frozen=True, eq=False)
class Split:
    """The three parts of the reviews, which keep their order; validation and training share no film and no text.

    **Attributes:**

    - `train`: The reviews for the vocabulary and the training.
    - `validation`: The reviews for the choice of an epoch and a recipe.
    - `test`: The reviews for the final evaluation.
    """

    train: Reviews
    validation: Reviews
    test: Reviews

    def overlap(self) -> dict[str, int]:
        """The numbers of validation and test reviews whose text or film also occurs in the training part.

        **Returns:**

        The counts `validation_texts`, `test_texts` and, if films are known, `validation_films`, `test_films`.
        """
        counts = {}
        for name, part in (("validation", self.validation), ("test", self.test)):
            # Equal texts with different films overlap too.
            counts[f"{name}_texts"] = _shared(part.texts, self.train.texts)
            if part.films is not None and self.train.films is not None:
                counts[f"{name}_films"] = _shared(_known(part.films), _known(self.train.films))
        return counts


def official_split(
    reviews: Reviews, *, key: Array, validation: int | float = 0.1, drop_repeated: bool = False
) -> Split:
    """Use the split of the data, and set a part of its training reviews aside for validation.

    Whole films, and all reviews with one text, are set aside together, so that the validation part has no film and no
    text of the training part. A review without a known film is grouped by its text alone.

    **Arguments:**

    - `reviews`: Reviews with a `split`.
    - `key`: The PRNG key of the choice of films.
    - `validation`: The fraction of the training reviews to set aside; whole films fill at most this fraction.
    - `drop_repeated`: True drops test reviews whose text also occurs in the training or validation part.

    **Returns:**

    The three parts, in the order of `reviews`.

    **Raises:**

    - `ValueError` if the reviews have no split, a part of the split is empty, or `validation` is not a fraction or is
        too small for a film.

    ??? cite "Source"

        Maas et al., *Learning word vectors for sentiment analysis* (ACL 2011): the split.
    """
    check_reviews(reviews, "reviews")
    if reviews.split is None:
        raise ValueError("reviews must have a split, but theirs is None; use random_split.")
    train, test = (np.flatnonzero(reviews.split == name) for name in ("train", "test"))
    if not len(train) or not len(test):
        raise ValueError(
            f"reviews must be of both parts, but {len(train)} are of train and {len(test)} of test; use random_split."
        )
    return _parts(reviews, train, test, validation, drop_repeated, generator(key))


def random_split(
    reviews: Reviews,
    train: int | float = 0.7,
    test: int | float = 0.3,
    *,
    key: Array,
    validation: int | float = 0.1,
    drop_repeated: bool = False,
) -> Split:
    """Split randomly, as in the paper: reviews of one film, or with one text, may be in the training and the test part.

    The validation part is set aside from the training reviews as in `official_split`, in whole films. The released code
    has no validation part and chooses on the test part.

    **Arguments:**

    - `reviews`: The reviews.
    - `train`, `test`: The number of reviews of each part, as an integer or as a fraction of all reviews; the sum must
        not exceed all. The validation part is taken from `train`.
    - `key`: The PRNG key of the choice of reviews and films.
    - `validation`: The fraction of the training reviews to set aside; whole films fill at most this fraction.
    - `drop_repeated`: True drops test reviews whose text also occurs in the training or validation part.

    **Returns:**

    The three parts, in the order of `reviews`.

    **Raises:**

    - `ValueError` if there are too few reviews, or `validation` is not a fraction or is too small for a film.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers and its role in sentiment
        analysis* (2407.01602), Section 4: 35,000 and 15,000 reviews.
    """
    check_reviews(reviews, "reviews")
    numbers = [_number(value, name, len(reviews)) for value, name in ((train, "train"), (test, "test"))]
    if sum(numbers) > len(reviews):
        raise ValueError(
            f"train must leave room for test, but {numbers[0]} and {numbers[1]} are more than the {len(reviews)} "
            "reviews; pass less of one."
        )
    rng = generator(key)
    order = rng.permutation(len(reviews))
    # Sorting keeps the order of the reviews in each part.
    chosen = np.sort(order[: numbers[0]]), np.sort(order[numbers[0] : sum(numbers)])
    return _parts(reviews, *chosen, validation, drop_repeated, rng)


# The smallest number of different texts of each label for a split into three parts.
_LEAST = 10


def stratified_split(reviews: Reviews, test: float = 0.2, *, key: Array, validation: int | float = 0.1) -> Split:
    """Split randomly with the same fraction of positive reviews in each part, up to rounding.

    Reviews with one text, or of one film, are in one part.

    **Arguments:**

    - `reviews`: The reviews.
    - `test`: The fraction of the reviews of each label for the test part.
    - `key`: The PRNG key of the choice of reviews.
    - `validation`: The fraction of the other reviews of each label for the validation part.

    **Returns:**

    The three parts, in the order of `reviews`.

    **Raises:**

    - `ValueError` if a fraction is not between 0 and 1, there are fewer than ten different texts of a label, or so many
        reviews have one text or film that a part would be empty.
    """
    check_reviews(reviews, "reviews")
    remedy = "pass 0.2, or another fraction"
    fractions = [
        check_number(value, name, above=0, below=1, remedy=remedy)
        for name, value in (("test", test), ("validation", validation))
    ]
    groups, rng = _groups(reviews), generator(key)
    # All reviews of a group count as reviews of the label of its first review.
    first = np.unique(groups, return_index=True)[1]
    label_of_group = reviews.labels[first]
    for label, name in enumerate(("negative", "positive")):
        if (count := int(np.sum(label_of_group == label))) < _LEAST:
            raise ValueError(
                f"reviews must hold {_LEAST} different texts of each label, but {count} are {name}; add reviews."
            )
    part = np.zeros(len(reviews), int)  # 0 is training, 1 is testing, 2 is validation
    for label in (0, 1):
        for number, fraction in enumerate(fractions, 1):
            rows = np.flatnonzero((label_of_group[groups] == label) & (part == 0))
            part[rows[np.isin(groups[rows], _some_of(groups[rows], max(1, round(fraction * len(rows))), rng))]] = number
    if len(np.unique(part)) < 3:
        raise ValueError(
            "reviews must be of many texts and films, but so many have one that a part would be empty; add reviews."
        )
    return Split(*(reviews.take(np.flatnonzero(part == number)) for number in (0, 2, 1)))


def _number(value: Any, name: str, total: int) -> int:
    """The number of reviews, from an integer or a fraction of `total`."""
    fraction = isinstance(value, float | np.floating)
    # The integer 1 is one review, and the float 1.0 is all reviews.
    number = round(value * total) if fraction and 0 < value <= 1 else value
    return check_integer(number, name, most=total, remedy="pass 0.5 for half of the reviews, or such a number")


def _parts(
    reviews: Reviews,
    train: Int[np.ndarray, " train"],
    test: Int[np.ndarray, " test"],
    validation: int | float,
    drop_repeated: bool,
    rng: np.random.Generator,
) -> Split:
    validation = check_number(validation, "validation", least=0, below=1, remedy="pass 0.1, or another fraction")
    if check_flag(drop_repeated, "drop_repeated"):
        # The training reviews still include the validation part here.
        known = {reviews.texts[row] for row in train.tolist()}
        test = np.array([row for row in test.tolist() if reviews.texts[row] not in known], int)
        if not len(test):
            raise ValueError("drop_repeated must leave test reviews, but every text is repeated; pass False.")
    # The test part is fixed, so only training reviews are grouped.
    groups = _groups(reviews.take(train))
    is_validation = np.isin(groups, _some_of(groups, int(validation * len(train)), rng))
    if validation and not is_validation.any():
        raise ValueError(
            f"validation must hold a whole film or text, but {validation!r} of {len(train)} reviews is less than each; "
            "pass more, or 0."
        )
    return Split(*(reviews.take(rows) for rows in (train[~is_validation], train[is_validation], test)))


def _some_of(groups: Int[np.ndarray, " reviews"], room: int, rng: np.random.Generator) -> list[int]:
    """Groups in random order, each taken if its reviews still fit into `room`."""
    sizes, chosen = np.bincount(groups), []
    # A group that does not fit is skipped, since a smaller group may fit later.
    for group in rng.permutation(len(sizes)).tolist():
        if sizes[group] <= room:
            chosen.append(group)
            room -= int(sizes[group])
    return chosen


def _groups(reviews: Reviews) -> Int[np.ndarray, " reviews"]:
    """The number of the group of each review: union-find joins reviews of one film, and reviews with one text."""
    # Without films each text with its repetitions is a group.
    films = reviews.films if reviews.films is not None else [""] * len(reviews)
    parent = list(range(len(reviews)))

    def root(row: int) -> int:
        # Path halving makes each visited row point to its grandparent.
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    first: dict[Hashable, int] = {}
    for row, (text, film) in enumerate(zip(reviews.texts, films, strict=True)):
        for name in [("text", text)] + ([("film", str(film))] if film else []):
            # This review joins the group of the first review with its text or film; the smaller index is the root.
            a, b = root(first.setdefault(name, row)), root(row)
            parent[max(a, b)] = min(a, b)
    return np.unique([root(row) for row in range(len(reviews))], return_inverse=True)[1]


def _known(films: Any) -> list[str]:
    return [str(film) for film in films if film]


def _shared(values: Any, others: Any) -> int:
    """The number of `values` that occur in `others`."""
    others = set(others)
    return sum(value in others for value in values)
