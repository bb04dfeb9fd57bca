"""A picture always gives the same bytes, whatever order a solver or a set has in one process or another."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from clusterjax.plot import save


class Shaken(ConstrainedLayoutEngine):
    """A layout that differs in the last bits, as the layouts of two processes do."""

    size = 1e-13

    def execute(self, fig):
        ConstrainedLayoutEngine.execute(self, fig)
        rng = np.random.default_rng(0)
        for sub in (fig, *fig.subfigs):
            for ax in sub.axes:
                place = ax.get_position(original=True)
                ax._set_position(Bbox(place.get_points() + self.size * rng.normal(size=(2, 2))), which="original")
        for sub in fig.subfigs:
            points = sub.bbox_relative.get_points()
            sub.bbox_relative.set_points(points + self.size * rng.normal(size=(2, 2)))


def picture(engine="constrained"):
    """Figures within a figure, with lines, an image, its bar, marks and a legend outside."""
    figure = Figure(figsize=(4, 3), layout=engine)
    top, bottom = figure.subfigures(2, 1)
    ax = top.subplots()
    top.colorbar(ax.imshow(np.outer(np.arange(5.0), np.arange(7.0)), aspect="auto"), ax=ax, label="bar")
    for ax in bottom.subplots(1, 3):
        ax.plot([0.0, 1.0, 2.0], [0.3, 0.1, 0.7], marker="o", label="line")
        ax.set(xlabel="x", ylabel="why")
    figure.legend(*bottom.axes[0].get_legend_handles_labels(), loc="outside lower right")
    return figure


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ("svg", "png", "pdf"))
def test_the_last_bits_of_a_layout_do_not_reach_the_file(tmp_path, kind):
    (one,) = save(picture(), tmp_path / "one", (kind,))
    (other,) = save(picture(Shaken()), tmp_path / "other", (kind,))
    assert one.read_bytes() == other.read_bytes()
