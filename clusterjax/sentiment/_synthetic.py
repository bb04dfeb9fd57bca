"""Synthetic reviews with planted sentiment words and meaningless words: the leaders are known in advance, and no data
are needed.

Each review contains an odd number of planted words, most of which have the sentiment of its label; the other words are
pseudo-words whose frequencies follow Zipf's law, 1/r.

Invariants: the key determines the reviews; labels are balanced; each film is in one half of the split.
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
    """Synthetic reviews and their planted words.

    **Attributes:**

    - `reviews`: The reviews, with films and a split into halves.
    - `positive`, `negative`: The planted words. A review is positive if it has more positive than negative words.
    - `neutral`: The other words, which have no meaning, in decreasing order of frequency.
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
    r"""Generate `count` reviews whose sentiment is that of their planted words; half of the reviews are positive.

    A review has 1, 3, 5, ... planted words, at most `planted`, with equal probabilities of all these numbers; the
    number is odd, so that a majority exists, and the label is that of the majority. The other words have no meaning,
    and the r-th word has a probability proportional to $1/r$. The text has sentences with capitals, full stops and some
    tags. Each film is in one half of the split.

    **Arguments:**

    - `key`: The PRNG key, which determines the reviews.
    - `count`: The number of reviews.
    - `positive`, `negative`: The words to plant, in lower case and in ASCII.
    - `num_neutral`: The number of words without meaning.
    - `shortest`, `longest`: The smallest and the largest number of words of a review, including planted words.
    - `planted`: The largest number of planted words of a review, an odd number.
    - `per_film`: The number of reviews of each film.

    **Returns:**

    A `SyntheticReviews`.

    **Raises:**

    - `ValueError` if a number is out of range, or a planted word is both positive and negative, a stop word, or not
        made of lower-case letters.

    Source: Zipf's law, for the frequencies.
    """
    rng = generator(key)
    _check(count, positive, negative, num_neutral, shortest, longest, planted, per_film)
    neutral = _pseudo_words(rng, num_neutral, {*positive, *negative})
    # The numbers of both labels differ by at most one.
    labels = rng.permutation(np.arange(count) % 2)
    lengths = rng.integers(shortest, longest + 1, count)
    # The number of planted words is odd, so that a majority exists.
    numbers = 2 * rng.integers(0, (planted + 1) // 2, count) + 1
    # The size of the majority is uniform from just above half to all planted words.
    majorities = rng.integers(numbers // 2 + 1, numbers + 1)
    ranks = 1 / np.arange(1, num_neutral + 1)
    # One draw of all fillers, split afterwards, is faster than a draw for each review.
    fillers = rng.choice(num_neutral, int(np.sum(lengths - numbers)), p=ranks / ranks.sum())
    fillers = np.split(fillers, np.cumsum(lengths - numbers)[:-1])
    texts = []
    for label, number, majority, filler in zip(labels, numbers, majorities, fillers, strict=True):
        majority_words, minority_words = (positive, negative) if label else (negative, positive)
        words = [majority_words[i] for i in rng.integers(len(majority_words), size=majority)]
        words += [minority_words[i] for i in rng.integers(len(minority_words), size=number - majority)]
        words += [neutral[i] for i in filler.tolist()]
        # The permutation puts planted words anywhere in the review.
        texts.append(" ".join(_sentences([words[i] for i in rng.permutation(len(words)).tolist()])))
    # The first half of the films is the training part.
    films = np.arange(count) // per_film
    split = np.where(films <= films[-1] // 2, "train", "test")
    reviews = Reviews(tuple(texts), labels, films=np.array([f"film{film:05d}" for film in films]), split=split)
    return SyntheticReviews(reviews, tuple(positive), tuple(negative), neutral)


def default_reviews() -> Reviews:
    """The 2,000 fixed synthetic reviews that `load_imdb` returns without a source."""
    return synthetic_reviews(jr.key(0)).reviews


def _sentences(words: list[str]) -> Iterator[str]:
    """The words as sentences, with a tag after every third sentence."""
    for number, start in enumerate(range(0, len(words), _SENTENCE), 1):
        text = " ".join(words[start : start + _SENTENCE]).capitalize()
        yield f"{text}.<br /><br />" if number % 3 == 0 else f"{text}."


def _pseudo_words(rng: np.random.Generator, number: int, taken: set[str]) -> tuple[str, ...]:
    """Different pseudo-words of three syllables that `TextOptions` does not drop."""
    # `TextOptions` drops stop words and handles negators differently.
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
    # At most half of all pseudo-words may be drawn, so that the search for different words ends soon.
    most = (len(_STARTS) * len(_VOWELS)) ** 3 // 2
    ranges = (
        ("count", count, lambda: 2 * per_film, lambda: MOST),
        ("num_neutral", num_neutral, 1, lambda: most),
        ("planted", planted, 1, lambda: shortest),
        ("longest", longest, lambda: shortest, lambda: MOST),
        ("shortest", shortest, 1, lambda: MOST),
        ("per_film", per_film, 1, lambda: MOST // 2),
    )
    # Bounds are functions of other numbers, so the checks run in reverse order: a bound uses only checked numbers.
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
