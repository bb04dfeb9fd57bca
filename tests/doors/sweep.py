"""Cases of `clusterjax.sweep`: grids of points, and their stores."""

import functools
import tempfile

import jax
import numpy as np

from clusterjax import sweep
from tests.doors.cases import Case, case
from tests.doors.rules import ANY_TEXT, ARRAY, COUNT, EMPTY, FLAG, LONG, NONE, PATH, SIZE, TEXTS, rule


# Values that are no numbers are handed to the function as they are, one compilation for each.
STATIC = LONG | TEXTS | SIZE | rule(
    "ragged, list of none, inf array, complex array, more axes", "values that are no numbers are static"
)  # fmt: skip
IN_STORE = NONE | PATH
INTEGER = rule("minus one, zero", "an integer")


def double(beta):
    return 2 * beta


@functools.cache
def folder() -> str:
    """A folder with a sweep in it, of an absolute name: the tests go from one folder to the next."""
    path = tempfile.mkdtemp() + "/sweep"
    sweep.run(double, {"beta": [1.0, 2.0]}, batch_size=2, store=path, progress=False)
    return path


def _of_runs() -> dict[str, Case]:
    return {
        "Axis": case(
            {"values": np.array([1.0, 2.0]), "unit": "s"}, values=ARRAY | STATIC, unit=ANY_TEXT, description=ANY_TEXT,
            static=FLAG,
        ),
        "Variable": case(
            {"dims": ("time",), "coords": {"time": [1.0]}, "unit": "s"}, dims=NONE | EMPTY | TEXTS,
            coords=rule("empty dict", "no values"), unit=ANY_TEXT, description=ANY_TEXT,
        ),
        "run": case(
            lambda: {
                "function": double, "axes": {"beta": [1.0, 2.0]}, "batch_size": 2, "progress": False,
                "devices": jax.local_devices()[:1], "variables": {"result": sweep.Variable()},
            },
            dear=True, store=IN_STORE, resume=FLAG, devices=NONE, progress=FLAG, seed=COUNT, finite=FLAG,
            cost=NONE | rule("class", "what makes a number of nothing"),
            variables=NONE | rule("empty dict", "no labels"),
            version=NONE | ANY_TEXT | INTEGER,
        ),
        "open": case(lambda: {"store": folder()}),
    }  # fmt: skip


CASES = {f"sweep.{name}": one for name, one in _of_runs().items()}
