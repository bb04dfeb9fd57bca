"""The losses of unigram and bigram models: the baselines that a language model must beat.

The bigram model counts pairs of words and uses the interpolated smoothing of Kneser and Ney (Chen and Goodman, *An
empirical study of smoothing techniques for language modeling*, 1999, Section 2.7): the smoothing takes a discount D
from every count and gives it to the continuation distribution, which is proportional to the number of different words
that precede a word.

Invariants: the probabilities of the words after each word sum to 1; the first word of each row is not a target.
"""

import numpy as np
from jaxtyping import Int


def unigram_loss(rows: Int[np.ndarray, "rows n"], held: Int[np.ndarray, "held m"], words: int) -> float:
    """The mean loss in nats per word of a unigram model on all words of `held` except the first of each row.

    Every count is increased by one, so that no word has probability zero.

    **Arguments:**

    - `rows`: The ids of the training text, (rows, n).
    - `held`: The ids of the held-out text, (held, m).
    - `words`: The number of words of the vocabulary.

    Source: Laplace's rule of succession.
    """
    counts = np.bincount(rows[:, 1:].ravel(), minlength=words) + 1.0
    return float(-np.mean(np.log(counts / counts.sum())[held[:, 1:]]))


def bigram_loss(rows: Int[np.ndarray, "rows n"], held: Int[np.ndarray, "held m"], words: int) -> float:
    r"""The mean loss in nats per word of a bigram model with interpolated Kneser-Ney smoothing.

    $p(w | v) = \frac{\max(c(vw) - D, 0)}{c(v)} + \frac{D\,N(v\cdot)}{c(v)}\,p(w)$ with $D = n_1/(n_1 + 2 n_2)$, where
    $N(v\cdot)$ is the number of different words after v, and $p(w)$ is proportional to one plus the number of different
    words before w. After a word that is never followed by another word in `rows`, the probabilities are $p(w)$.

    **Arguments:**

    - `rows`, `held`, `words`: As in `unigram_loss`.

    ??? cite "Source"

        Chen, Goodman, *An empirical study of smoothing techniques for language modeling* (1999), Section 2.7.
    """
    # Each pair is encoded as the integer v * words + w, so that sorting counts the pairs.
    pairs = _pairs(rows, words)
    distinct_pairs, counts = np.unique(pairs, return_counts=True)
    once, twice = (int((counts == k).sum()) for k in (1, 2))
    # The estimate of Ney, Essen and Kneser uses the numbers of pairs seen once and twice; D is 0.5 if no pair is seen
    # once.
    discount = once / (once + 2 * twice) if once else 0.5
    first, second = np.divmod(distinct_pairs, words)
    total = np.bincount(first, counts, minlength=words)
    followers = np.bincount(first, minlength=words)
    # The continuation count of Kneser and Ney is the number of different words before w, not the frequency of w.
    predecessors = np.bincount(second, minlength=words) + 1.0
    continuation = predecessors / predecessors.sum()
    held_pairs = _pairs(held, words)
    # The distinct pairs are sorted, so a binary search finds a pair; an unseen pair has the count 0.
    place = np.minimum(np.searchsorted(distinct_pairs, held_pairs), len(distinct_pairs) - 1)
    pair_counts = np.where(distinct_pairs[place] == held_pairs, counts[place], 0)
    v, w = np.divmod(held_pairs, words)
    seen = np.maximum(total[v], 1)
    probability = np.maximum(pair_counts - discount, 0) / seen + discount * followers[v] / seen * continuation[w]
    # A word without a follower in `rows` has no bigram counts, so only the continuation probability remains.
    return float(-np.mean(np.log(np.where(total[v] > 0, probability, continuation[w]))))


def _pairs(rows: Int[np.ndarray, "rows n"], words: int) -> Int[np.ndarray, " pairs"]:
    """The pair of each word and the next word of its row, encoded as one integer."""
    return (rows[:, :-1].astype(np.int64) * words + rows[:, 1:]).ravel()
