"""Synthetic reviews of planted sentiment words and meaningless ones: the leaders are known in advance, and no data are
needed.

Each review draws an odd number of planted words, of which a majority has the sentiment of its label, and fills up with
pseudo-words whose frequencies follow Zipf's law, 1/r.

Invariants: the same key gives the same reviews; labels are balanced; each film is in one half of the split.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._check import check_integer, check_sequence
from .._random import generator
from ._reviews import Reviews
from ._text import MOST, NEGATORS, STOP_WORDS


POSITIVE = tuple("wonderful excellent superb brilliant delightful touching masterpiece charming perfect great".split())
NEGATIVE = tuple("awful terrible boring waste horrible dreadful pointless tedious worst lame".split())
_STARTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SENTENCE = 9  # words


@final
@dataclass(frozen=True, eq=False)
class SyntheticReviews:
    """Reviews, and the words that were planted in them.

    **Attributes:**

    - `reviews`: The reviews, with films and a split of halves.
    - `positive`, `negative`: The planted words. A review is positive if it holds more positive ones than negative.
    - `neutral`: The other words, the most frequent first. They mean nothing.
    """

    reviews: Reviews
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    neutral: tuple[str, ...]


def synthetic_reviews(
    key: Array,
    count: int = 2000,
    *,
    positive: Sequence[str] = POSITIVE,
    negative: Sequence[str] = NEGATIVE,
    num_neutral: int = 1000,
    shortest: int = 20,
    longest: int = 120,
    planted: int = 5,
    per_film: int = 10,
) -> SyntheticReviews:
    r"""`count` reviews whose sentiment is that of the planted words they hold, half of them positive.

    A review holds 1, 3, 5, ... planted words, `planted` at most, each chosen alike, so that there is always a majority;
    its label is the majority's. The rest are words without meaning, the r-th of them with probability proportional to
    $1/r$, in sentences with capitals, full stops and here and there a tag. Each film is in one half of the split.

    **Arguments:**

    - `key`: A PRNG key. The same key gives the same reviews.
    - `count`: How many reviews.
    - `positive`, `negative`: The words to plant, in lower case and in ASCII.
    - `num_neutral`: How many words without meaning there are.
    - `shortest`, `longest`: The least and the most words of a review, planted ones counted.
    - `planted`: The most planted words of a review, an odd number.
    - `per_film`: How many reviews each film has.

    **Returns:**

    A `SyntheticReviews`.

    **Raises:**

    - `ValueError` if a number is out of its range, or a planted word is on both sides, a stop word or not made of
        lower-case letters.

    Frequencies as in Zipf's law.
    """
    rng = generator(key)
    _check(count, positive, negative, num_neutral, shortest, longest, planted, per_film)
    neutral = _pseudo_words(rng, num_neutral, {*positive, *negative})
    # As many of each label, but for one if the count is odd.
    labels = rng.permutation(np.arange(count) % 2)
    lengths = rng.integers(shortest, longest + 1, count)
    # Odd, so that there is a majority.
    numbers = 2 * rng.integers(0, (planted + 1) // 2, count) + 1
    # From just above half to all of them, each as likely.
    majorities = rng.integers(numbers // 2 + 1, numbers + 1)
    ranks = 1 / np.arange(1, num_neutral + 1)
    # All fillers in one draw, split by review afterwards, which is faster than a draw for each review.
    fillers = rng.choice(num_neutral, int(np.sum(lengths - numbers)), p=ranks / ranks.sum())
    fillers = np.split(fillers, np.cumsum(lengths - numbers)[:-1])
    texts = []
    for label, number, majority, filler in zip(labels, numbers, majorities, fillers, strict=True):
        majority_words, minority_words = (positive, negative) if label else (negative, positive)
        words = [majority_words[i] for i in rng.integers(len(majority_words), size=majority)]
        words += [minority_words[i] for i in rng.integers(len(minority_words), size=number - majority)]
        words += [neutral[i] for i in filler.tolist()]
        # Planted words anywhere in the review.
        texts.append(" ".join(_sentences([words[i] for i in rng.permutation(len(words)).tolist()])))
    # Films in order; the first half of them is the training part.
    films = np.arange(count) // per_film
    split = np.where(films <= films[-1] // 2, "train", "test")
    reviews = Reviews(tuple(texts), labels, films=np.array([f"film{film:05d}" for film in films]), split=split)
    return SyntheticReviews(reviews, tuple(positive), tuple(negative), neutral)


def default_reviews() -> Reviews:
    """What `load_imdb` gives without a source: always the same 2,000 made-up reviews."""
    return synthetic_reviews(jr.key(0)).reviews


def _sentences(words: list[str]) -> Iterator[str]:
    """The words as sentences, every third with a tag after it."""
    for number, start in enumerate(range(0, len(words), _SENTENCE), 1):
        text = " ".join(words[start : start + _SENTENCE]).capitalize()
        yield f"{text}.<br /><br />" if number % 3 == 0 else f"{text}."


def _pseudo_words(rng: np.random.Generator, number: int, taken: set[str]) -> tuple[str, ...]:
    """Different pseudo-words of three syllables, none of which `TextOptions` would drop."""
    # `TextOptions` would drop stop words and take negators for something else.
    taken = taken | STOP_WORDS | NEGATORS
    words: dict[str, None] = {}
    while len(words) < number:
        starts, vowels = rng.integers(len(_STARTS), size=3).tolist(), rng.integers(len(_VOWELS), size=3).tolist()
        word = "".join(_STARTS[i] + _VOWELS[j] for i, j in zip(starts, vowels, strict=True))
        if word not in taken:
            words[word] = None
    return tuple(words)


def _check(
    count: int,
    positive: Sequence[str],
    negative: Sequence[str],
    num_neutral: int,
    shortest: int,
    longest: int,
    planted: int,
    per_film: int,
) -> None:
    # At most half of all pseudo-words, so that drawing until enough differ ends soon.
    most = (len(_STARTS) * len(_VOWELS)) ** 3 // 2
    ranges = (
        ("count", count, lambda: 2 * per_film, lambda: MOST),
        ("num_neutral", num_neutral, 1, lambda: most),
        ("planted", planted, 1, lambda: shortest),
        ("longest", longest, lambda: shortest, lambda: MOST),
        ("shortest", shortest, 1, lambda: MOST),
        ("per_film", per_film, 1, lambda: MOST // 2),
    )
    # From the last on, for each bound is a number that was let in.
    # Bounds are functions, so that each is computed once the number that it depends on is checked.
    for name, value, least, greatest in reversed(ranges):
        check_integer(value, name, least=least() if callable(least) else least, most=greatest())
    if planted % 2 == 0:
        raise ValueError(f"planted must be odd, for a majority, but it is {planted}; pass {planted - 1}.")
    for name, words in (("positive", positive), ("negative", negative)):
        words = check_sequence(words, name, str, "words")
        unusable = [word for word in words if word in STOP_WORDS | NEGATORS or not (word.isascii() and word.islower())]
        unusable += [word for word in words if not word.isalpha() or len(word) < 2]
        if unusable:
            raise ValueError(
                f"{name} must be words of lower-case letters that are no stop words, but it holds {unusable[:3]}; pass "
                "others."
            )
    shared = set(positive) & set(negative)
    if shared:
        raise ValueError(f"positive must share no word with negative, but {sorted(shared)} are in both; pass others.")
