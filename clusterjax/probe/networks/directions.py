"""Directions of the hidden space as words, the nearest embeddings by cosine; and the matrices of each head.

Invariants: the mean of the vocabulary is subtracted first; words of equal cosine are in the order of the vocabulary;
the matrices of heads are float64 on the host, in the order of `network.blocks()`.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..._base.checks import check_array, check_concrete, check_integer, refusal
from .load import Model, check_model
from .network import HeadMatrices
from .recorded import Recorded


class NearestWords(NamedTuple):
    """The result of `nearest_words`.

    **Attributes:**

    - `token_ids`: The ids of the nearest words, (vectors, top), in decreasing order of the cosine.
    - `cosines`: The cosines of these words, (vectors, top).
    - `words`: The tokens as strings, a list for each vector; None if the model has no tokenizer.
    """

    token_ids: np.ndarray
    cosines: np.ndarray
    words: list[list[str]] | None


def nearest_words(model: Model, vectors: Float[Any, "m d"], top: int = 10) -> NearestWords:
    """The words whose centred embeddings have the largest cosines with given directions.

    The embedding of ALBERT is factorised: word w is $e_w M$ in the hidden space, with a short vector $e_w$ and the map
    M to the hidden size. Therefore $⟨v, e_w M⟩ = ⟨M v, e_w⟩$, and norms follow from $M M^T$: the table of all words in
    the hidden space is never formed. The mean over the vocabulary is subtracted. Norms, positions and token types of
    the embedding are left out. The words nearest to -v differ from those nearest to v: query both.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `vectors`: (m, d), real, such as the real parts of `value_directions(...).vectors`.
    - `top`: The number of words for each vector.

    **Returns:**

    A `NearestWords`.

    **Raises:**

    - `ValueError` if the vectors are not real, finite, non-zero and of the hidden size, or `top` is not from 1 to the
        size of the vocabulary.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942), Section 3.1: the factors. Peat, *Clustering in Transformers*,
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
    # The mean is common to all words and would dominate the cosines.
    words = words - words.mean(axis=0)
    # (m, e): the directions are mapped to the e dimensions of the table, not the table to the d of the hidden space.
    short = v.astype(np.float64) if map_ is None else v.astype(np.float64) @ map_.T
    # The squared norm of word w in the hidden space is e_w M M^T e_w^T, the row sum of words * gram.
    gram = words if map_ is None else words @ (map_ @ map_.T)
    lengths = np.sqrt(np.maximum(np.sum(words * gram, axis=1), 0.0))
    cosines = (short @ words.T) / np.where(lengths > 0, lengths, np.inf) / np.linalg.norm(v, axis=1, keepdims=True)
    # A stable sort keeps words with equal cosines in the order of the vocabulary on every machine.
    ids = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
    known = model.tokenizer
    names = None if known is None else [known.convert_ids_to_tokens(row.tolist()) for row in ids]
    return NearestWords(ids, np.take_along_axis(cosines, ids, axis=1), names)


def head_matrices(model: Model | Recorded) -> HeadMatrices:
    """The matrices of each head of each layer with its own weights, without biases; scales of norms stand beside them.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`.

    **Returns:**

    A `HeadMatrices`. Head h of block b adds `sum_j w_ij x_j @ value[b, h] @ output[b, h]` to the row x_i.

    **Raises:**

    - `ValueError` if `model` is neither, or its weights were not recorded.
    """
    if isinstance(model, Recorded):
        return model.matrices
    network = check_model(model).network
    query, key, value, output = (np.stack(maps) for maps in zip(*network.attention_maps(), strict=True))
    return HeadMatrices(query, key, value, output, network.score_scale, *norms_of(model))


def norms_of(model: Model | Recorded) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray]:
    """The last three fields of `head_matrices`, without a copy of the maps: the scales of the norms before attention,
    (blocks, d), and after the last layer, (d,), each None where there is none; and the block of each layer, (layers,).
    """
    if isinstance(model, Recorded):
        return model.matrices[-3:]
    network = check_model(model).network
    scales = network.norm_scales()
    return None if scales is None else np.stack(scales), network.last_scale(), np.asarray(network.order())
