"""What guessing by the word before costs: the baseline that a language model must beat."""

import numpy as np
from jaxtyping import Int


def unigram_loss(rows: Int[np.ndarray, "rows n"], held: Int[np.ndarray, "held m"], words: int) -> float:
    """Nats a word by frequency alone, of all words of `held` but the first of each row.

    Each word is counted once more than it was seen, so that none is impossible.

    **Arguments:**

    - `rows`: What was seen.
    - `held`: What is measured.
    - `words`: How many there are.

    Source: Laplace's rule of succession.
    """
    counts = np.bincount(rows[:, 1:].ravel(), minlength=words) + 1.0
    return float(-np.mean(np.log(counts / counts.sum())[held[:, 1:]]))


def bigram_loss(rows: Int[np.ndarray, "rows n"], held: Int[np.ndarray, "held m"], words: int) -> float:
    r"""Nats a word by the word before, with the smoothing of Kneser and Ney, interpolated.

    $p(w | v) = \frac{\max(c(vw) - D, 0)}{c(v)} + \frac{D\,N(v\cdot)}{c(v)}\,p(w)$ with $D = n_1/(n_1 + 2 n_2)$, where
    $N(v\cdot)$ is the number of different words after v, and $p(w)$ is proportional to that of different words before
    w, plus one. A word that came before nothing is followed by $p(w)$.

    **Arguments:**

    - `rows`, `held`, `words`: As in `unigram_loss`.

    ??? cite "Source"

        Chen, Goodman, *An empirical study of smoothing techniques for language modeling* (1999), Section 2.7.
    """
    pairs = _pairs(rows, words)
    kinds, counts = np.unique(pairs, return_counts=True)
    once, twice = (int((counts == k).sum()) for k in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5
    first, second = np.divmod(kinds, words)
    total = np.bincount(first, counts, minlength=words)
    followers = np.bincount(first, minlength=words)
    before = np.bincount(second, minlength=words) + 1.0
    by_kinds = before / before.sum()
    asked = _pairs(held, words)
    place = np.minimum(np.searchsorted(kinds, asked), len(kinds) - 1)
    found = np.where(kinds[place] == asked, counts[place], 0)
    v, w = np.divmod(asked, words)
    seen = np.maximum(total[v], 1)
    likely = np.maximum(found - discount, 0) / seen + discount * followers[v] / seen * by_kinds[w]
    return float(-np.mean(np.log(np.where(total[v] > 0, likely, by_kinds[w]))))


def _pairs(rows: Int[np.ndarray, "rows n"], words: int) -> Int[np.ndarray, " pairs"]:
    """Each word and the next one of its row, as one number."""
    return (rows[:, :-1].astype(np.int64) * words + rows[:, 1:]).ravel()
