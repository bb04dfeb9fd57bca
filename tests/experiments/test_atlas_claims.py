"""The claims of the atlas on made-up cells: each holds and can fail; the table and the picture."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clusterjax._limits.result import NONE, ONE, OPPOSITE
from clusterjax.experiments.figures.atlas import (
    APART,
    BETAS,
    CAUSAL,
    CLUSTERS,
    CURVE,
    DOUBLE,
    FULL,
    IDENTITY,
    MASKS,
    NEGATIVE,
    NOTHING,
    PAIR,
    REPULSIVE,
    REST,
    ROWS,
    SIMPLE,
    THEOREM,
    Cell,
    Heads,
    Parameters,
    Results,
    caption_of,
    claims_of,
    cross_error,
    draw,
    energies,
    place_of,
    sorted_cosines,
    table_of,
)
from tests.helpers import sphere_tokens
from tests.network_cases import texts_of


E1, E2, E3 = np.eye(3)


def test_numbers_of_configurations_are_those_of_loops():
    x = np.asarray(sphere_tokens(6, 4, 3))
    pairs = [x[i] @ x[j] for i in range(4) for j in range(i)]
    np.testing.assert_allclose(sorted_cosines(x), sorted(pairs), atol=1e-15)
    np.testing.assert_allclose(energies(x, 2.0), np.log(sum(np.exp(2 * one) for one in pairs)), rtol=1e-13)
    assert np.isfinite(energies(np.tile(E1, (4, 1)), 1e4))
    cross = np.array([E1, -E1, E2, -E2, -E3, E3])
    assert cross_error(cross) < 1e-15 and cross_error(cross[:5]) < 1e-15
    assert cross_error(np.concatenate([cross, [E1]])) < 1e-15, "tokens after the first six are not asked"
    assert cross_error(cross[[0, 2, 1, 3, 4, 5]]) == pytest.approx(1) and cross_error(np.tile(E1, (6, 1))) == 2


def cell(ends, kind=ONE, by=REST, **other):
    starts = len(ends)
    made = {
        "kinds": np.full(starts, kind), "by": np.full(starts, by), "points": np.ones(starts, int),
        "log_times": np.full(starts, 2.0), "early": np.full(starts, 3), "rates": np.ones(starts),
        "ends": np.asarray(ends, float), "off": 0.0, "theorems": (), "followed": (0, 0),
        "reached": np.full(starts, 1e3),
    }  # fmt: skip
    return Cell(**(made | other))


def made_up(starts=4):
    """Results of which every claim holds."""
    cross = np.concatenate([np.array([E1, -E1, E2, -E2, E3, -E3])])
    x0 = np.tile(np.array([E1, E2, E3, -E1, -E2, -E3]), (starts, 1, 1))
    at = lambda *points: np.tile(np.array(points), (starts, 1, 1))
    one, both = at(*[E1] * 6), at(*[E1] * 3, *[-E1] * 3)
    made = {
        IDENTITY: lambda mask: cell(one, by=THEOREM, theorems=("a theorem",), rates=np.full(starts, {FULL: 1.0}.get(
            mask, 0.5))),
        DOUBLE: lambda mask: cell(one),
        SIMPLE: lambda mask: cell(both, OPPOSITE),
        PAIR: lambda mask: cell(one),
        NEGATIVE: lambda mask: cell(at(*cross), APART),
        REPULSIVE: lambda mask: cell(at(*cross), APART),
    }  # fmt: skip
    cells = {(row, beta, mask): made[row](mask) for row in ROWS for beta in BETAS for mask in MASKS}
    heads = (
        Heads("ALBERT", "an ALBERT", FULL, np.array([1.0, 2.0, 1j]), np.array(["attractive", "attractive", "rotating"]),
              np.array([2.0, 9.0, 20.0])),
        Heads("SmolLM2", "a causal network", CAUSAL, np.array([1.0, -2.0, 1.0]),
              np.array(["attractive", "repulsive", "attractive"]), np.array([200.0, 900.0, 200.0])),
    )  # fmt: skip
    return Results(Parameters(n=6), starts, x0, cells, heads, "")


NAMES = (
    "first", "rates", "full", "causal", "waiting", "simple", "double", "simple full", "double full", "pair", "apart",
    "cross", "certified", "heads",
)  # fmt: skip
SOME = np.array([True, False, False, False])


def changed(m, key, **other):
    return replace(m, cells=m.cells | {key: replace(m.cells[key], **other)})


def moved(m, key, to):
    """One token of the first start elsewhere."""
    ends = m.cells[key].ends.copy()
    ends[0, 2] = to
    return changed(m, key, ends=ends)


def test_verdicts_can_fail():
    m = made_up()
    failing = lambda other: {name for name, claim in zip(NAMES, claims_of(other), strict=True) if not claim.holds}
    assert failing(m) == set()
    nothing = np.where(SOME, NOTHING, REST)
    lost = np.where(SOME, NOTHING, THEOREM)
    assert failing(changed(m, (PAIR, 3.0, CAUSAL), off=0.01)) == {"first"}
    assert failing(changed(m, (IDENTITY, 1.0, CAUSAL), rates=np.array([0.5, 0.5, 0.5, 0.6]))) == {"rates"}
    assert failing(changed(m, (IDENTITY, 9.0, FULL), by=lost)) == {"full", "certified"}
    assert failing(changed(m, (IDENTITY, 3.0, CAUSAL), by=lost)) == {"causal", "certified"}
    assert failing(moved(m, (IDENTITY, 3.0, CAUSAL), E2)) == {"causal"}
    assert failing(moved(m, (IDENTITY, 3.0, FULL), E2)) == set(), "where the point of a full mask is nobody knows"
    assert failing(changed(m, (IDENTITY, 9.0, CAUSAL), early=np.array([1, 1, 2, 2]))) == {"waiting"}
    assert failing(changed(m, (IDENTITY, 3.0, CAUSAL), early=np.ones(4))) == set()
    assert failing(changed(m, (SIMPLE, 1.0, CAUSAL), by=nothing)) == {"simple", "certified"}
    assert failing(moved(m, (SIMPLE, 1.0, CAUSAL), E2)) == {"simple"}
    assert failing(changed(m, (SIMPLE, 1.0, CAUSAL), kinds=np.full(4, CLUSTERS))) == {"simple"}
    assert failing(moved(m, (SIMPLE, 3.0, FULL), E2)) == {"simple full"}
    assert failing(moved(m, (DOUBLE, 9.0, CAUSAL), E2)) == {"double"}
    assert failing(changed(m, (DOUBLE, 9.0, CAUSAL), by=nothing)) == {"double", "certified"}
    assert failing(moved(m, (DOUBLE, 9.0, FULL), E3)) == {"double full"}
    assert failing(changed(m, (DOUBLE, 9.0, FULL), kinds=np.full(4, CLUSTERS))) == {"double full"}
    assert failing(changed(m, (PAIR, 9.0, FULL), kinds=np.full(4, CLUSTERS))) == {"pair"}
    assert failing(changed(m, (PAIR, 9.0, CAUSAL), by=nothing)) == {"pair", "certified"}
    assert failing(moved(m, (REPULSIVE, 3.0, FULL), E1)) == {"apart"}
    assert failing(changed(m, (REPULSIVE, 3.0, FULL), kinds=np.full(4, CLUSTERS))) == {"apart"}
    assert failing(moved(m, (REPULSIVE, 3.0, CAUSAL), E1)) == {"cross"}
    few = Heads("few", "another", FULL, np.ones(2), np.array(["attractive", "repulsive"]), np.ones(2))
    assert failing(replace(m, heads=(*m.heads, few))) == {"heads"}
    assert len(claims_of(replace(m, heads=()))) == len(NAMES) - 1


def test_the_configuration_that_others_are_compared_with_is_certified():
    """One of less energy that nothing certifies is not it."""
    m = made_up()
    key = (REPULSIVE, 1.0, FULL)
    ends = m.cells[key].ends.copy()
    ends[1:] = np.array([E1, -E1, E2, -E2, E3, E3])  # of more energy
    by = np.array([NOTHING, REST, REST, REST])
    claim = claims_of(changed(m, key, ends=ends, by=by))[NAMES.index("apart")]
    assert claim.value == 0.75


def test_starts_that_cannot_be_followed_are_told():
    m = changed(made_up(), (IDENTITY, 9.0, FULL), followed=(3, 2))
    claim = claims_of(m)[NAMES.index("full")]
    assert "; 2 could not be followed" in claim.measured and "could not" not in claims_of(m)[3].measured


def test_the_table_has_a_row_for_each_cell():
    m = changed(made_up(), (PAIR, 3.0, FULL), kinds=np.array([ONE, ONE, NONE, CLUSTERS]), points=np.array([1, 1, 6, 2]))
    table = table_of(m)
    assert len(table) == len(ROWS) * len(BETAS) * len(MASKS)
    row = table["pair, beta = 3, full"]
    assert row["limits"] == {ONE: 2, NONE: 1, CLUSTERS: 1} and row["points"] == [1, 6]
    assert row["certified by"] == {THEOREM: 0, REST: 4, CURVE: 0, NOTHING: 0}
    assert row["log10 of the time"] == [2.0, 2.0, 2.0]
    assert table["simple, beta = 9, causal"]["heads"] == {"SmolLM2": 2}
    assert table["pair, beta = 9, full"]["heads"] == {"ALBERT": 1} and row["heads"] == {}


def test_marks_of_three_networks_stand_one_above_the_other():
    m = made_up()
    third = Heads("PL-BERT", "an ALBERT of phonemes", FULL, np.array([1.0, 1j]), np.array(["attractive", "rotating"]),
                  np.array([40.0, 50.0]))  # fmt: skip
    m = replace(m, heads=(*m.heads, third))
    grid, heads = draw(m).axes
    low = len(ROWS) - 1 - ROWS.index(PAIR)
    badges = {(line.get_marker(), round(float(line.get_ydata()[0]) - low, 2)) for line in grid.lines
              if 0 < line.get_ydata()[0] - low < 1}  # fmt: skip
    assert badges == {("o", 0.2), ("D", 0.58)}
    assert [line.get_label() for line in heads.lines[:3]] == ["ALBERT", "SmolLM2", "PL-BERT"]
    assert len({line.get_color() for line in heads.lines[:3]}) == 3
    assert "diamonds: 2 of an ALBERT of phonemes" in caption_of(m)


def test_the_picture_shows_shares_certificates_and_heads():
    m = made_up()
    by = np.array([REST, REST, REST, NOTHING])
    m = changed(m, (NEGATIVE, 1.0, FULL), kinds=np.array([APART, APART, CLUSTERS, NONE]), by=by)
    figure = draw(m)
    texts = texts_of(figure)
    assert texts.count("T 100 %") == 6 and texts.count("R 100 %") == 29 and texts.count("R 75 %") == 1
    assert {"one point", "opposite points", "clusters", "all apart", "no shape", "not certified"} <= set(texts)
    assert texts.count("2") >= 1 and "SmolLM2" in texts
    grid = figure.axes[0]
    inside = lambda patch: place_of(FULL, 1.0) < patch.get_x() < 1 and 1 < patch.get_y() < 2
    cut = [patch for patch in grid.patches if isinstance(patch, Rectangle) and inside(patch)]
    shares = [(round(patch.get_width() / 0.94, 3), patch.get_hatch()) for patch in cut if patch.get_fill()]
    assert sorted(shares, key=str) == [(0.25, "////"), (0.25, None), (0.5, None)]
    assert place_of(CAUSAL, 1.0) > place_of(FULL, 9.0) + 1
    for claim in claims_of(m):
        assert claim.measured
    assert "4 starts in each of 36 cells" in caption_of(m) and "squares: 3 of a causal network" in caption_of(m)
