"""Directions of the hidden space read as words: the nearest embeddings by cosine.

ALBERT's table is factorised, word w being e_w M with e_w of size e and M of shape (e, d) (Lan et al., *ALBERT*,
1909.11942, Section 3.1). So inner products are taken in e dimensions, <v, e_w M> = <M v, e_w>, and lengths follow from
M M^T: the (words, d) table is never made.

Invariants: the mean of the vocabulary is subtracted first; words of equal cosine come in the order of the vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..._check import check_array, check_concrete, check_integer, refusal
from .load import Model, check_model


class NearestWords(NamedTuple):
    """The result of `nearest_words`.

    **Attributes:**

    - `token_ids`: (vectors, top), the nearest first.
    - `cosines`: (vectors, top).
    - `words`: The tokens as strings, a list for each vector; None if the model has no tokenizer.
    """

    token_ids: np.ndarray
    cosines: np.ndarray
    words: list[list[str]] | None


def nearest_words(model: Model, vectors: Float[Any, "m d"], top: int = 10) -> NearestWords:
    r"""The items of the vocabulary whose embeddings, less their mean, have the largest cosines with a direction.

    The embedding of ALBERT is factorised: word w is $e_w M$ in the hidden space, with $e_w$ short and M the map to the
    hidden size. So $\langle v, e_w M\rangle = \langle M v, e_w\rangle$, and the lengths follow from $M M^\top$: the
    table of all words in the hidden space is never made. The mean over the vocabulary, which all words share, is taken
    off. Norms, positions and token types of the embedding are left out. A direction has two ends: ask for -v too.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `vectors`: (m, d), real, such as the real parts of `value_directions(...).vectors`.
    - `top`: How many words for each.

    **Returns:**

    A `NearestWords`.

    **Raises:**

    - `ValueError` if the vectors are not real, finite, not zero and of the hidden size, or `top` is not from 1 to the
        size of the vocabulary.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942), Section 3.1 for the factors. Peat, *Clustering in Transformers*,
        Section 5, asks for the semantic interpretation of eigenspaces.
    """
    words, map_ = check_model(model).network.word_factors()
    d = words.shape[1] if map_ is None else map_.shape[1]
    check_concrete(vectors, "vectors")
    check_array(vectors, "vectors", shape=("m", d), remedy="pass the real parts of those of value_directions, say")
    v = np.asarray(vectors)
    if not v.any(axis=1).all():
        raise refusal("vectors", "not be zero", f"that of row {int(np.argmin(v.any(axis=1)))} is", "leave it out")
    check_integer(top, "top", most=len(words), remedy="pass 1, or up to the size of the vocabulary")
    # The mean is common to all words, and would dominate the cosines of a table that is not centred.
    words = words - words.mean(axis=0)
    # (m, e): directions brought to the e dimensions of the table, in place of the table to the d of the hidden space.
    short = v.astype(np.float64) if map_ is None else v.astype(np.float64) @ map_.T
    # The squared length of word w in the hidden space is e_w M M^T e_w^T, the row sum of words * gram.
    gram = words if map_ is None else words @ (map_ @ map_.T)
    lengths = np.sqrt(np.maximum(np.sum(words * gram, axis=1), 0.0))
    cosines = (short @ words.T) / np.where(lengths > 0, lengths, np.inf) / np.linalg.norm(v, axis=1, keepdims=True)
    # Stable, so that words with equal cosines come in the order of the vocabulary on every machine.
    ids = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
    known = model.tokenizer
    names = None if known is None else [known.convert_ids_to_tokens(row.tolist()) for row in ids]
    return NearestWords(ids, np.take_along_axis(cosines, ids, axis=1), names)
