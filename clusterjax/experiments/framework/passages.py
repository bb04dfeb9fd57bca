"""Passages of Wikipedia that come with the package: in word pieces, and which article each is of.

Passages of one article resemble each other, so that an error over passages counts articles and not passages
(`clustered_error`).
"""

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np

from ... import probe, transformer
from ...probe.measures.survey import of_units


T = TypeVar("T")
# How many passages of `probe.bundled_texts` each article has, in their order.
OF_ARTICLES = (2, 9, 2, 2, 3, 6, 2, 1, 2, 1, 11, 1, 4, 6, 6, 6)


def passages(length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first word pieces of each passage of the package, and which of them are there, (passages, length) each."""
    tokenizer = transformer.load_tokenizer()
    # No special tokens: in training no token stood at the beginning of a text, which began anywhere.
    rows = [
        encoding.ids[:length] for encoding in tokenizer.encode_batch(probe.bundled_texts(), add_special_tokens=False)
    ]
    mask = np.arange(length)[None, :] < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def articles_of(texts: Sequence[str]) -> np.ndarray:
    """The number of the article of each text, if it is a passage of the package; any other text is taken to be an
    article of its own, (texts,)."""
    numbers = np.repeat(np.arange(len(OF_ARTICLES)), OF_ARTICLES)
    known = dict(zip(probe.bundled_texts(), numbers.tolist(), strict=True))
    return np.array([known.get(text, -1 - place) for place, text in enumerate(texts)])


def by_articles(found: T, articles: np.ndarray) -> T:
    """What was measured, in which each `Average` that keeps the values of texts has the error of a mean over articles.

    **Arguments:**

    - `found`: A tree of named tuples, dicts and arrays.
    - `articles`: The article of each text, (texts,).
    """
    is_average = lambda part: isinstance(part, probe.Average)
    return jax.tree.map(lambda part: of_units(part, articles) if is_average(part) else part, found, is_leaf=is_average)


def articles_words(articles: np.ndarray) -> str:
    """What the independent units of some texts are, in words."""
    many = len(np.unique(articles))
    return f"{many} articles" if many < len(articles) else f"{many} texts"
