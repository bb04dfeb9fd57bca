"""Cases of `clusterjax.sweep`: grids of points, and their stores."""

import functools
import tempfile

import jax
import numpy as np

from clusterjax import sweep
from tests.doors.cases import Case, case


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
        "Axis": case({"values": np.array([1.0, 2.0]), "unit": "s"}),
        "Variable": case({"dims": ("time",), "coords": {"time": [1.0]}, "unit": "s"}),
        "run": case(
            lambda: dict(
                function=double,
                axes={"beta": [1.0, 2.0]},
                batch_size=2,
                progress=False,
                devices=jax.local_devices()[:1],
                variables={"result": sweep.Variable()},
            )
        ),
        "open": case(lambda: {"store": folder()}),
    }


CASES = {f"sweep.{name}": one for name, one in _of_runs().items()}
