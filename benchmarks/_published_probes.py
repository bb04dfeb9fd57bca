"""The published measurements of networks, rewritten from the scripts, without the parts that draw."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def head_correlations(attention: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the maps of one layer, (texts, heads, n, n), each pair twice, text by text."""
    texts, heads = attention.shape[:2]
    found = np.zeros((heads, heads))
    for i in range(heads):
        for j in range(heads):
            one, other = attention[:, i].reshape(texts, -1), attention[:, j].reshape(texts, -1)
            each = [np.corrcoef(one[t], other[t])[0, 1] for t in range(texts)]
            found[i, j] = np.mean([value for value in each if not np.isnan(value)])
    return found


def all_cosines(hidden: Sequence[Any]) -> list[Any]:
    """The cosines of all pairs of tokens of one text, including pairs i = i, for each level, a tensor (n, d)."""
    import torch

    unit = [torch.nn.functional.normalize(level.clone(), dim=1) for level in hidden]
    return [torch.matmul(level, level.T).flatten() for level in unit]


def similarity_histograms(hidden: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Density and edges for each level, in bins of the width of Freedman and Diaconis."""
    cosines, top = all_cosines(hidden), 0.0
    for level in cosines:
        top = max(top, np.histogram(level, bins=100, density=True)[0].max())  # the common height of the figures
    return [np.histogram(level, bins=_freedman_diaconis(level), density=True) for level in cosines]


def _freedman_diaconis(level: Any) -> int:
    """The number of bins; Python's `max` and `min` iterate over single numbers of the tensor, as in the script."""
    width = 2 * (np.percentile(level, 75) - np.percentile(level, 25)) / len(level) ** (1 / 3)
    return max(1, int((max(level) - min(level)) / width))


def same_bins(hidden: Sequence[Any], edges: np.ndarray) -> list[np.ndarray]:
    """The counts of each level in given bins, which is faster than the published way."""
    return [np.histogram(level, bins=edges)[0] for level in all_cosines(hidden)]


def head_spectra(matrices: Sequence[Any], head: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of V and of the symmetric part of B of one head, through (d, d); W_Q, W_K, W_V, W_O of PyTorch."""
    import torch

    query, key, value, output = matrices
    part = slice(head * size, (head + 1) * size)
    padded = torch.zeros_like(value)
    padded[:, part] = value[:, part]
    of_value = torch.linalg.eigvals(torch.matmul(padded, output).T)
    form = torch.matmul(query[:, part], key[:, part].T)
    of_form = torch.linalg.eigvalsh(0.5 * (form + form.T) / math.sqrt(size))
    return of_value[of_value.abs() > 1e-4].numpy(), of_form[of_form.abs() > 1e-6].numpy()
