"""Cases of `clusterjax.plot`: pictures of tokens, runs, matrices and words."""

import functools
from types import SimpleNamespace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from clusterjax import plot
from tests.doors.cases import Case, case


ANGLES = np.linspace(0.0, 2.0, 4)
FLAT = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
ROUND = np.concatenate([FLAT, np.zeros((4, 1))], axis=1)
RUN, TS = np.stack([FLAT, FLAT, FLAT]), np.arange(3.0)
SQUARE = np.eye(3)
MERGERS = SimpleNamespace(times=np.array([1.0, 1e9]), pairs=np.array([[1, 2], [0, 1]]), num_tokens=3, t_end=1e12)


ax = functools.cache(lambda: Figure().add_subplot())
memory = functools.cache(
    lambda: SimpleNamespace(
        activation=np.ones((2, 2)),
        text=np.zeros((2, 2), int),
        position=np.array([[0, 1], [1, 2]]),
        promoted=np.array([[0, 1], [1, 2]]),
        promotion=np.ones((2, 2)),
    )
)
run = functools.cache(
    lambda: plot.WordRun(np.zeros((2, 2, 2)) + np.arange(2)[:, None], ("good", "bad"), np.array([0, -1]))
)


@functools.cache
def diagram() -> xr.Dataset:
    coords = {"beta": [1.0, 2.0], "t": [0.0, 1.0, 2.0]}
    return xr.Dataset({"close_pairs": (("beta", "t"), np.full((2, 3), 0.5))}, coords, {"n": 4})


def _tokens() -> dict[str, Case]:
    return {
        "cloud": case(lambda: {"x": 2 * FLAT, "limit": [FLAT]}),
        "attention_maps": case(lambda: {"weights": np.full((3, 4, 4), 0.25), "ts": TS}),
        "circle": case(lambda: {"x": FLAT, "ax": ax()}),
        "sphere": case(lambda: {"x": ROUND}),
        "snapshots": case({"trajectory": RUN, "ts": TS, "times": np.array([0.0, 2.0])}),
        "animate": case({"trajectory": RUN, "ts": TS, "frames": 2}),
        "player": case({"trajectory": RUN, "ts": TS}),
        "polytope": case(lambda: {"x": FLAT, "corners": FLAT[:3]}),
        "attraction": case(lambda: {"x": FLAT, "token": 1}),
        "project": case({"x": ROUND}),
    }


def _numbers() -> dict[str, Case]:
    samples = np.array([[0.1, 0.2, 0.3, 0.1], [0.3, 0.4, 0.2, 0.9]])
    return {
        "time_series": case(lambda: {"ts": TS, "mean": TS, "error": TS}),
        "dendrogram": case(lambda: {"tree": MERGERS}),
        "histograms": case(lambda: {"values": samples, "bins": 4}),
        "heatmap": case(lambda: {"matrix": SQUARE, "xnames": ["a", "b", "c"]}),
        "phase_diagram": case(lambda: {"x_values": 1.0 + TS, "y_values": 1.0 + TS, "grid": SQUARE, "contour": 0.5}),
        "clustering_diagram": case(lambda: {"dataset": diagram(), "n": 4}),
        "spectrum": case(lambda: {"eigenvalues": np.array([1.0, 2.0])}),
        "position_table": case(lambda: {"table": SQUARE}),
        "position_cosines": case(lambda: {"table": SQUARE}),
        "position_offsets": case(lambda: {"table": SQUARE}),
        "relative_positions": case(lambda: {"vectors": SQUARE, "queries": np.ones((1, 2, 3)), "beta": np.ones(1)}),
    }


def _texts() -> dict[str, Case]:
    names = ["a", "b", "c", "d"]
    line, limits = (np.array([1.0, 0.0]), 0.5), ((-2.0, 2.0), (-2.0, 2.0))
    return {
        "words": case(lambda: {"x": FLAT, "names": names, "line": line, "limits": limits, "avoid": FLAT}),
        "WordRun": case({"xs": np.zeros((2, 2, 2)), "names": ["good", "bad"], "first": np.array([0, -1])}),
        "WordRun.leading": case({"k": 1}, run),
        "animate_words": case(
            lambda: {"runs": [run()], "path": "run.gif", "line": line, "limits": limits, "hold": 1, "move": 1}
        ),
        "logit_lens": case(lambda: {"logits": np.ones((2, 3, 2)), "words": ["a", "b"], "tokens": ["a", "b", "c"]}),
        "neuron_memory": case(
            lambda: dict(
                memory=memory(),
                neurons=np.array([0, 1]),
                words=["a", "b", "c"],
                texts=np.array([[0, 1, 2]]),
                present=np.ones((1, 3), bool),
            )
        ),
        "residual_flow": case(
            lambda: {"moved": np.ones((1, 1, 2, 2)), "written": np.ones((1, 2)), "tokens": ["a", "b"]}
        ),
        "save": case(lambda: {"fig": ax(), "path": "kept", "formats": ["svg"], "dpi": 20}),
        "style": case({"font_size": 10.0}),
    }


CASES = {f"plot.{name}": one for name, one in {**_tokens(), **_numbers(), **_texts()}.items()}
