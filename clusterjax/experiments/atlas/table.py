"""The table of the atlas: one row for each cell, as numbers and words for the record."""

from typing import Any

import numpy as np

from .measure import CURVE, NOTHING, REST, THEOREM, Results


def table_of(m: Results) -> dict[str, dict[str, Any]]:
    """A row for each cell: which limits, what certifies them, and when tokens are there."""
    rows = {}
    for (row, beta, mask), cell in m.cells.items():
        kinds, counts = np.unique(cell.kinds, return_counts=True)
        followed, lost = cell.followed
        rows[f"{row}, beta = {beta:g}, {mask}"] = {
            "limits": {str(kind): int(count) for kind, count in zip(kinds, counts, strict=True)},
            "certified by": {by: int(np.sum(cell.by == by)) for by in (THEOREM, REST, CURVE, NOTHING)},
            "theorems": list(cell.theorems), "points": [int(cell.points.min()), int(cell.points.max())],
            "clusters at t = 15": float(cell.early.mean()),
            "log10 of the time": [float(one) for one in np.quantile(cell.log_times, (0.0, 0.5, 1.0))],
            "coarsened": followed, "not followed": lost,
            "heads": {one.name: number for one in m.heads if (number := one.counts().get((row, beta, mask)))},
        }  # fmt: skip
    return rows
