"""Cases of `clusterjax.plot`: pictures of tokens, runs, matrices and words."""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from clusterjax import plot
from tests.doors.cases import Case, case
from tests.doors.rules import (
    ANY_TEXT,
    ARRAY,
    CALLABLE,
    COUNT,
    EMPTY,
    FLAG,
    LIST,
    LONG,
    NONE,
    NOTHING,
    NUMBER,
    PATH,
    POSITIVE,
    SIZE,
    TEXTS,
    rule,
)


ANGLES = np.linspace(0.0, 2.0, 4)
FLAT = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
ROUND = np.concatenate([FLAT, np.zeros((4, 1))], axis=1)
RUN, TS = np.stack([FLAT, FLAT, FLAT]), np.arange(3.0)
SQUARE = np.eye(3)
MERGERS = SimpleNamespace(times=np.array([1.0, 1e9]), pairs=np.array([[1, 2], [0, 1]]), num_tokens=3, t_end=1e12)

NAME = ANY_TEXT | NONE
NUMBERS = ARRAY | SIZE
GAPS = NUMBERS | rule("nan array, inf array", "entries that are not finite are left out, or grey")
COLOUR = NONE | rule("other shape", "three numbers are a colour")
COLOURS = NONE | ARRAY
FEW = POSITIVE | COUNT
SCALE = POSITIVE
LIMIT = NONE | EMPTY
VOCABULARY = CALLABLE | TEXTS

ax = functools.cache(lambda: Figure().add_subplot())
memory = functools.cache(
    lambda: SimpleNamespace(
        activation=np.ones((2, 2)), text=np.zeros((2, 2), int), position=np.array([[0, 1], [1, 2]]),
        promoted=np.array([[0, 1], [1, 2]]), promotion=np.ones((2, 2)),
    )
)  # fmt: skip
run = functools.cache(
    lambda: plot.WordRun(np.zeros((2, 2, 2)) + np.arange(2)[:, None], ("good", "bad"), np.array([0, -1]))
)


@functools.cache
def diagram() -> xr.Dataset:
    coords = {"beta": [1.0, 2.0], "t": [0.0, 1.0, 2.0]}
    return xr.Dataset({"close_pairs": (("beta", "t"), np.full((2, 3), 0.5))}, coords, {"n": 4})


def _tokens() -> dict[str, Case]:
    look: dict[str, Any] = {
        "labels": NONE | ARRAY, "colours": COLOURS, "highlight": NONE | COUNT, "counts_from": NONE, "size": SCALE,
        "arrows": NONE | rule("empty dict", "no arrows"), "view": ARRAY, "ax": NONE, "symbol": ANY_TEXT,
        "ts": NONE | ARRAY, "times": NONE | ARRAY | COUNT | POSITIVE | SIZE, "turn": NUMBER, "trajectory": GAPS,
        "xlabel": ANY_TEXT,
    }  # fmt: skip
    of = lambda *names: {name: look[name] for name in names}
    still = ("labels", "colours", "highlight", "counts_from", "size", "arrows", "ax")
    path = NONE | NUMBERS
    return {
        "cloud": case(
            lambda: {"x": 2 * FLAT, "limit": [FLAT]}, dear=True, x=NUMBERS, trail=path, reach=NONE | SCALE,
            limit=LIMIT | LIST, **of(*still, "view"),
        ),
        "attention_maps": case(
            lambda: {"weights": np.full((3, 4, 4), 0.25), "ts": TS}, dear=True, weights=GAPS, axes=NONE,
            **of("ts", "times"),
        ),
        "circle": case(lambda: {"x": FLAT, "ax": ax()}, x=NUMBERS, trail=path, **of(*still)),
        "sphere": case(lambda: {"x": ROUND}, x=NUMBERS, trail=path, **of(*still, "view")),
        "snapshots": case(
            {"trajectory": RUN, "ts": TS, "times": np.array([0.0, 2.0])}, dear=True, axes=NONE, panel=SCALE,
            trail=FLAG, limit=LIMIT,
            **of(*still[:-1], "view", "symbol", "ts", "times", "trajectory"),
        ),
        "animate": case(
            {"trajectory": RUN, "ts": TS, "frames": 2}, dear=True, path=NONE, frames=NONE, fps=FEW, dpi=FEW,
            inches=SCALE, progress=NONE | CALLABLE, trail=FLAG,
            limit=LIMIT, **of(*still[:-1], "view", "symbol", "ts", "turn", "trajectory"),
        ),
        "player": case(
            {"trajectory": RUN, "ts": TS}, dear=True, path=NONE, trail=FLAG, title=ANY_TEXT, radius=NONE | POSITIVE,
            fps=NONE | FEW, height=NOTHING,
            **of(*still[:-1], "symbol", "ts", "trajectory"), view=NONE | ARRAY,
        ),
        "polytope": case(
            lambda: {"x": FLAT, "corners": FLAT[:3]}, dear=True, x=NUMBERS, ax=NONE, corners=NONE | NUMBERS,
            leaders=EMPTY | COUNT | ARRAY, labels=NONE | ARRAY, reach=NONE | SCALE, size=SCALE,
        ),
        "attraction": case(
            lambda: {"x": FLAT, "token": 1}, dear=True, x=NUMBERS, token=COUNT, ax=NONE,
            form=NONE | ARRAY,
        ),
        "project": case({"x": ROUND}, x=NUMBERS, view=ARRAY),
    }  # fmt: skip


def _numbers() -> dict[str, Case]:
    named: dict[str, Any] = {"xlabel": ANY_TEXT, "ylabel": ANY_TEXT, "ax": NONE}
    samples = np.array([[0.1, 0.2, 0.3, 0.1], [0.3, 0.4, 0.2, 0.9]])
    many = GAPS | rule("ragged", "as many samples of one as there are")
    return {
        "time_series": case(
            lambda: {"ts": TS, "mean": TS, "error": TS}, dear=True, ts=NUMBERS, mean=GAPS,
            error=NONE | GAPS, label=NAME, colour=COLOUR, linestyle=ANY_TEXT, title=NAME, **named,
        ),
        "dendrogram": case(lambda: {"tree": MERGERS}, dear=True, ax=NONE),
        "histograms": case(
            lambda: {"values": samples, "bins": 4}, dear=True, values=many, axes=NONE,
            bins=NUMBERS, labels=NONE | TEXTS, counted=FLAG,
        ),
        "heatmap": case(
            lambda: {"matrix": SQUARE, "xnames": ["a", "b", "c"]}, dear=True, matrix=GAPS, label=ANY_TEXT,
            symmetric=FLAG, limits=NONE | ARRAY, xnames=NONE, ynames=NONE, **named,
        ),
        "phase_diagram": case(
            lambda: {"x_values": 1.0 + TS, "y_values": 1.0 + TS, "grid": SQUARE, "contour": 0.5}, dear=True,
            x_values=ARRAY, y_values=ARRAY, grid=GAPS, contour=NONE | NUMBER | NUMBERS,
            curves=NONE | rule("empty dict", "no curves"), label=ANY_TEXT, log_x=FLAG, symmetric=FLAG,
            limits=NONE | ARRAY, title=NAME, **named,
        ),
        "clustering_diagram": case(
            lambda: {"dataset": diagram(), "n": 4}, dear=True, n=NONE, delta=NONE, log_x=FLAG, title=NAME, ax=NONE,
        ),
        "spectrum": case(
            lambda: {"eigenvalues": np.array([1.0, 2.0])}, dear=True,
            eigenvalues=GAPS | rule("complex array", "eigenvalues are complex") | LONG,
            ax=NONE, unit_circle=FLAG, label=NAME, colour=COLOUR, size=SCALE, title=NAME,
        ),
        "position_table": case(
            lambda: {"table": SQUARE}, dear=True, table=NUMBERS, ax=NONE
        ),
        "position_cosines": case(lambda: {"table": SQUARE}, dear=True, table=NUMBERS, ax=NONE),
        "position_offsets": case(
            lambda: {"table": SQUARE}, dear=True, table=NUMBERS, ax=NONE, label=NAME, colour=COLOUR
        ),
        "relative_positions": case(
            lambda: {"vectors": SQUARE, "queries": np.ones((1, 2, 3)), "beta": np.ones(1)}, dear=True,
            vectors=NUMBERS, ax=NONE, queries=NONE | NUMBERS, beta=NUMBER | ARRAY, label=NAME, colour=COLOUR,
        ),
    }  # fmt: skip


def _texts() -> dict[str, Case]:
    names = ["a", "b", "c", "d"]
    line, limits = (np.array([1.0, 0.0]), 0.5), ((-2.0, 2.0), (-2.0, 2.0))
    return {
        "words": case(
            lambda: {"x": FLAT, "names": names, "line": line, "limits": limits, "avoid": FLAT}, dear=True,
            x=NUMBERS, ax=NONE, leaders=EMPTY | COUNT | ARRAY, line=NONE, colours=COLOURS, limits=NONE | LIST,
            equal=FLAG, avoid=NONE | NUMBERS, fontsize=SCALE,
        ),
        "WordRun": case(
            {"xs": np.zeros((2, 2, 2)), "names": ["good", "bad"], "first": np.array([0, -1])}, xs=NUMBERS, names=TEXTS,
            first=ARRAY, title=ANY_TEXT,
        ),
        "WordRun.leading": case({"k": 1}, run, k=COUNT),
        "animate_words": case(
            lambda: {"runs": [run()], "path": "run.gif", "line": line, "limits": limits, "hold": 1, "move": 1},
            dear=True, hold=COUNT, move=COUNT, limits=LIST, fps=FEW, dpi=FEW, progress=NONE | CALLABLE,
        ),
        "logit_lens": case(
            lambda: {"logits": np.ones((2, 3, 2)), "words": ["a", "b"], "tokens": ["a", "b", "c"]},
            dear=True, logits=ARRAY, words=VOCABULARY, ax=NONE, tokens=NONE, entropy=FLAG,
        ),
        "neuron_memory": case(
            lambda: {
                "memory": memory(), "neurons": np.array([0, 1]), "words": ["a", "b", "c"],
                "texts": np.array([[0, 1, 2]]), "present": np.ones((1, 3), bool),
            },
            dear=True, neurons=COUNT, words=VOCABULARY, texts=ARRAY, ax=NONE, present=NONE | ARRAY,
        ),
        "residual_flow": case(
            lambda: {"moved": np.ones((1, 1, 2, 2)), "written": np.ones((1, 2)), "tokens": ["a", "b"]},
            dear=True, moved=ARRAY, ax=NONE, written=NONE | ARRAY, tokens=NONE | TEXTS,
        ),
        "save": case(
            lambda: {"fig": ax(), "path": "kept", "formats": ["svg"], "dpi": 20}, dear=True, path=PATH,
            formats=EMPTY | NONE,
        ),
        "style": case({"font_size": 10.0}),
    }  # fmt: skip


CASES = {f"plot.{name}": one for name, one in {**_tokens(), **_numbers(), **_texts()}.items()}
