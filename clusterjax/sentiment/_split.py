"""What a model is trained on, chosen by and tested on: three parts, films kept apart where they can be."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Array, Int

from .._check import check_flag, check_number
from ._encode import check_reviews
from ._random import generator
from ._reviews import Reviews


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Three parts of the reviews.

    **Attributes:**

    - `train`: What the vocabulary and the model are made from.
    - `validation`: What an epoch and a recipe are chosen by.
    - `test`: What is looked at once.

    Source: this library.
    """

    train: Reviews
    validation: Reviews
    test: Reviews

    def overlap(self) -> dict[str, int]:
        """How many reviews of the validation and the test part share their text, or their film, with the training part.

        **Returns:**

        Counts under `validation_texts`, `test_texts` and, where films are known, `validation_films`, `test_films`.

        Source: this library.
        """
        counts = {}
        for name, part in (("validation", self.validation), ("test", self.test)):
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

        Maas et al., *Learning word vectors for sentiment analysis* (ACL 2011): the split; the validation part: this
        library.
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
        analysis* (2407.01602), Section 4: 35,000 and 15,000 reviews; the validation part: this library.
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
    chosen = np.sort(order[: numbers[0]]), np.sort(order[numbers[0] : sum(numbers)])
    return _parts(reviews, *chosen, validation, drop_repeated, rng)


def _number(value: Any, name: str, total: int) -> int:
    """A number of reviews, given as one or as a fraction."""
    fraction = isinstance(value, float | np.floating)
    number = round(value * total) if fraction and 0 < value <= 1 else value
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 1 <= number <= total:
        raise ValueError(
            f"{name} must be a number of the {total} reviews or a fraction of them, but it is {value!r}; pass 0.5, or "
            "another."
        )
    return int(number)


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
        known = {reviews.texts[row] for row in train.tolist()}
        test = np.array([row for row in test.tolist() if reviews.texts[row] not in known], int)
        if not len(test):
            raise ValueError("drop_repeated must leave test reviews, but every text is repeated; pass False.")
    groups = _groups(reviews.take(train))
    aside = np.isin(groups, _some_of(groups, int(validation * len(train)), rng))
    if validation and not aside.any():
        raise ValueError(
            f"validation must hold a whole film, but {validation!r} of {len(train)} reviews is less than each; pass "
            "more, or 0."
        )
    return Split(*(reviews.take(rows) for rows in (train[~aside], train[aside], test)))


def _some_of(groups: Int[np.ndarray, " reviews"], room: int, rng: np.random.Generator) -> list[int]:
    """Groups in a random order, each taken if there still is room for its reviews."""
    sizes, chosen = np.bincount(groups), []
    for group in rng.permutation(len(sizes)).tolist():
        if sizes[group] <= room:
            chosen.append(group)
            room -= int(sizes[group])
    return chosen


def _groups(reviews: Reviews) -> Int[np.ndarray, " reviews"]:
    """A number for each review, such that reviews of one film or of one text have the same."""
    films = reviews.films if reviews.films is not None else [""] * len(reviews)
    parent = list(range(len(reviews)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    first: dict[Hashable, int] = {}
    for row, (text, film) in enumerate(zip(reviews.texts, films, strict=True)):
        for name in [("text", text)] + ([("film", str(film))] if film else []):
            a, b = root(first.setdefault(name, row)), root(row)
            parent[max(a, b)] = min(a, b)
    return np.unique([root(row) for row in range(len(reviews))], return_inverse=True)[1]


def _known(films: Any) -> list[str]:
    return [str(film) for film in films if film]


def _shared(these: Any, those: Any) -> int:
    those = set(those)
    return sum(one in those for one in these)
