"""What a model is trained on, chosen by and tested on: three parts, with films kept apart where they are known.

Reviews of one film, and reviews of one text, are joined into groups by union-find; the validation part is made of
whole groups, in a random order, as many as fit.

Invariants: no review is in two parts; nothing of the validation part shares a film or a text with the training part;
the parts keep the order of the reviews, so that the same key gives the same parts.
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
    """Three parts of the reviews.

    **Attributes:**

    - `train`: What the vocabulary and the model are made from.
    - `validation`: What an epoch and a recipe are chosen by.
    - `test`: What is evaluated once.
    """

    train: Reviews
    validation: Reviews
    test: Reviews

    def overlap(self) -> dict[str, int]:
        """How many reviews of the validation and the test part share their text, or their film, with the training part.

        **Returns:**

        Counts under `validation_texts`, `test_texts` and, where films are known, `validation_films`, `test_films`.
        """
        counts = {}
        for name, part in (("validation", self.validation), ("test", self.test)):
            # The same text under two films is an overlap too.
            counts[f"{name}_texts"] = _shared(part.texts, self.train.texts)
            if part.films is not None and self.train.films is not None:
                counts[f"{name}_films"] = _shared(_known(part.films), _known(self.train.films))
        return counts


def official_split(
    reviews: Reviews, *, key: Array, validation: int | float = 0.1, drop_repeated: bool = False
) -> Split:
    """The split that the data come with, a part of its training reviews set aside for validation.

    Whole films are set aside, and reviews of one text together, so that nothing of the validation part was trained on.
    Where no film is known, each text is its own film.

    **Arguments:**

    - `reviews`: Reviews with a `split`.
    - `key`: A PRNG key, which chooses the films.
    - `validation`: Which fraction of the training reviews is set aside, at most: what whole films can fill of it.
    - `drop_repeated`: Whether test reviews go whose text is also in the training or validation part.

    **Returns:**

    The three parts, in the order of `reviews`.

    **Raises:**

    - `ValueError` if the reviews have no split or one of its parts is empty, or `validation` is no fraction or too
        small for a film.

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
    """A random split, as the paper has it: reviews of one film, and of one text, are in its training and its test part.

    The validation part is set aside from the training reviews as in `official_split`, whole films at a time; the
    released code has none and chooses by the test part.

    **Arguments:**

    - `reviews`: The reviews.
    - `train`, `test`: How many reviews each part has, as a number or as a fraction of all; together at most all. The
        validation part comes out of `train`.
    - `key`: A PRNG key, which chooses the reviews and the films.
    - `validation`: Which fraction of the training reviews is set aside, at most: what whole films can fill of it.
    - `drop_repeated`: Whether test reviews go whose text is also in the training or validation part.

    **Returns:**

    The three parts, in the order of `reviews`.

    **Raises:**

    - `ValueError` if there are not as many reviews, or `validation` is no fraction or too small for a film.

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
    # Sorted, so that the parts keep the order of the reviews.
    chosen = np.sort(order[: numbers[0]]), np.sort(order[numbers[0] : sum(numbers)])
    return _parts(reviews, *chosen, validation, drop_repeated, rng)


def _number(value: Any, name: str, total: int) -> int:
    """A number of reviews, given as one or as a fraction."""
    # Floats of NumPy count as fractions too.
    fraction = isinstance(value, float | np.floating)
    # 1 is one review and 1.0 is all of them.
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
        # Of the training reviews, from which the validation part is taken below.
        known = {reviews.texts[row] for row in train.tolist()}
        test = np.array([row for row in test.tolist() if reviews.texts[row] not in known], int)
        if not len(test):
            raise ValueError("drop_repeated must leave test reviews, but every text is repeated; pass False.")
    # Groups among the training reviews only: the test part is given.
    groups = _groups(reviews.take(train))
    is_validation = np.isin(groups, _some_of(groups, int(validation * len(train)), rng))
    if validation and not is_validation.any():
        raise ValueError(
            f"validation must hold a whole film, but {validation!r} of {len(train)} reviews is less than each; pass "
            "more, or 0."
        )
    return Split(*(reviews.take(rows) for rows in (train[~is_validation], train[is_validation], test)))


def _some_of(groups: Int[np.ndarray, " reviews"], room: int, rng: np.random.Generator) -> list[int]:
    """Groups in a random order, each taken if there still is room for its reviews."""
    sizes, chosen = np.bincount(groups), []
    # A group that does not fit is passed over; a smaller one later may fit.
    for group in rng.permutation(len(sizes)).tolist():
        if sizes[group] <= room:
            chosen.append(group)
            room -= int(sizes[group])
    return chosen


def _groups(reviews: Reviews) -> Int[np.ndarray, " reviews"]:
    """A number for each review, such that reviews of one film or of one text have the same."""
    # Without films each text is a group of its own, with its repetitions.
    films = reviews.films if reviews.films is not None else [""] * len(reviews)
    parent = list(range(len(reviews)))

    def root(row: int) -> int:
        # With path halving: each row points to its grandparent afterwards.
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    first: dict[Hashable, int] = {}
    for row, (text, film) in enumerate(zip(reviews.texts, films, strict=True)):
        for name in [("text", text)] + ([("film", str(film))] if film else []):
            # The first review of this text or film, and this one, are in one group; the smaller index is the root.
            a, b = root(first.setdefault(name, row)), root(row)
            parent[max(a, b)] = min(a, b)
    return np.unique([root(row) for row in range(len(reviews))], return_inverse=True)[1]


def _known(films: Any) -> list[str]:
    return [str(film) for film in films if film]


def _shared(values: Any, others: Any) -> int:
    """How many of `values` are among `others`."""
    others = set(others)
    return sum(value in others for value in values)
