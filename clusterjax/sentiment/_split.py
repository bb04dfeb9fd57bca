"""The training, validation and test part of reviews, with films kept separate if they are known.

Union-find joins reviews of one film, and reviews with one text, into groups. The validation part consists of whole
groups, which are added in random order as long as they fit.

Invariants: no review is in two parts; the validation part and the training part have no film and no text in common; the
parts keep the order of the reviews, and a key determines the parts.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Array, Int

from .._check import check_flag, check_integer, check_number
from .._random import generator
from ._encode import check_reviews
from ._reviews import Reviews


@final
@dataclass(frozen=True, eq=False)
class Split:
    """The three parts of the reviews.

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
            f"validation must hold a whole film, but {validation!r} of {len(train)} reviews is less than each; pass "
            "more, or 0."
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
    """The number of the group of each review; reviews of one film or with one text are in one group."""
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
