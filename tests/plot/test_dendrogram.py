"""`plot.dendrogram`: the places of its lines, and its refusals."""

from types import SimpleNamespace

import numpy as np
import pytest

from clusterjax import plot


def tree(times, pairs, n=4, t_end=1e12):
    return SimpleNamespace(times=np.array(times), pairs=np.array(pairs).reshape(-1, 2), num_tokens=n, t_end=t_end)


def lines(ax):
    return sorted(tuple(np.round(line.get_xydata().ravel(), 9).tolist()) for line in ax.lines)


def test_lines_join_where_clusters_merge():
    ax = plot.dendrogram(tree([10.0, 1e3, 1e6], [(1, 3), (0, 2), (0, 1)]))
    left, right = ax.get_xlim()
    assert ax.get_xscale() == "log" and left < 10 and right == pytest.approx(3e6)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "2", "1", "3"]
    start = round(left, 9)
    assert lines(ax) == sorted(
        [
            (start, 2.0, 10.0, 2.0), (start, 3.0, 10.0, 3.0), (10.0, 2.0, 10.0, 3.0),
            (start, 0.0, 1e3, 0.0), (start, 1.0, 1e3, 1.0), (1e3, 0.0, 1e3, 1.0),
            (1e3, 0.5, 1e6, 0.5), (10.0, 2.5, 1e6, 2.5), (1e6, 0.5, 1e6, 2.5),
            (1e6, 1.5, 3e6, 1.5),
        ]
    )  # fmt: skip


def test_what_does_not_merge_goes_on_to_the_end():
    ax = plot.dendrogram(tree([], [], n=2, t_end=5.0))
    assert lines(ax) == [(0.1, 0.0, 5.0, 0.0), (0.1, 1.0, 5.0, 1.0)]


def test_mergers_at_the_start_are_at_the_left_edge():
    ax = plot.dendrogram(tree([0.0, 30.0], [(0, 1), (0, 2)], n=3))
    assert (10.0, 0.0, 10.0, 1.0) in lines(ax) and ax.get_xlim()[0] == 10.0


@pytest.mark.parametrize(
    "wrong",
    [3, None, tree([1.0], []), tree([1.0], [(0, 9)]), tree([1.0, 2.0], [(0, 1), (2, 1)]), tree([1.0], [(1, 1)])],
)
def test_what_is_no_tree(wrong):
    with pytest.raises(ValueError, match="tree must"):
        plot.dendrogram(wrong)
