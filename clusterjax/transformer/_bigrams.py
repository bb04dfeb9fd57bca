"""What guessing by the word before costs: the baseline that a language model must beat.

Counts of pairs with the interpolated smoothing of Kneser and Ney (Chen and Goodman, *An empirical study of smoothing
techniques for language modeling*, 1999, Section 2.7): a discount D is taken from every count and given to the
distribution of continuations, which is proportional to how many different words come before a word.

Invariants: probabilities after each word sum to 1; the first word of each row is no target.
"""

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
    # Each pair as one integer v words + w, so that counting is sorting.
    pairs = _pairs(rows, words)
    distinct_pairs, counts = np.unique(pairs, return_counts=True)
    once, twice = (int((counts == k).sum()) for k in (1, 2))
    # The estimate of Ney, Essen and Kneser from the numbers of pairs seen once and twice; 0.5 where there is none.
    discount = once / (once + 2 * twice) if once else 0.5
    first, second = np.divmod(distinct_pairs, words)
    total = np.bincount(first, counts, minlength=words)
    followers = np.bincount(first, minlength=words)
    # How many different words come before w, not how often w is seen: Kneser and Ney's continuation count.
    predecessors = np.bincount(second, minlength=words) + 1.0
    continuation = predecessors / predecessors.sum()
    held_pairs = _pairs(held, words)
    # A binary search in the sorted distinct pairs; a pair that is not there is counted 0.
    place = np.minimum(np.searchsorted(distinct_pairs, held_pairs), len(distinct_pairs) - 1)
    pair_counts = np.where(distinct_pairs[place] == held_pairs, counts[place], 0)
    v, w = np.divmod(held_pairs, words)
    seen = np.maximum(total[v], 1)
    probability = np.maximum(pair_counts - discount, 0) / seen + discount * followers[v] / seen * continuation[w]
    # After a word that was never followed by any, the continuation probability alone.
    return float(-np.mean(np.log(np.where(total[v] > 0, probability, continuation[w]))))


def _pairs(rows: Int[np.ndarray, "rows n"], words: int) -> Int[np.ndarray, " pairs"]:
    """Each word and the next one of its row, as one number."""
    return (rows[:, :-1].astype(np.int64) * words + rows[:, 1:]).ravel()
