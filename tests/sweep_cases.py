"""A small sweep that the tests of stores share, in one process or several; and the files of a folder as bytes."""

import os
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import sweep
from clusterjax.sweep._store import Store


AXES = {
    "beta": sweep.Axis([1.0, 2.0, 3.0], "1"),
    "model": ["tanh", "sin"],
    "V": np.stack([np.eye(3), np.ones((3, 3))]),
}
DATE = {"SOURCE_DATE_EPOCH": "86400"}


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch):
    """Fixes the date in every test of a module that imports this fixture."""
    monkeypatch.setenv(*next(iter(DATE.items())))


def point(beta, model, V, key):
    """For both V the second model fails at beta = 1 and 2, where log(beta - 2) is not finite."""
    start = jnp.concatenate([jr.key_data(key) % 7, jnp.ones(1, jnp.uint32)])
    y = getattr(jnp, model)(beta * V @ start.astype(V.dtype))
    return {"y": y, "edge": jnp.log(beta - 2) if model == "sin" else beta}


def run(store, function=point, axes=AXES, **options):
    """A run of the sweep in six batches, three for each model."""
    options = {"batch_size": 2, "progress": False, "seed": 3} | options
    return sweep.run(function, axes, store=store, **options)


def run_unfinished(store, batches=5, **options):
    """A run of the same sweep that is interrupted after some batches."""
    write = Store.write

    def stop(store, state, number):
        if number == batches:
            raise KeyboardInterrupt
        write(store, state, number)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write", stop)
        run(store, **options)


def content(folder: Path) -> dict[str, bytes]:
    """The content of every file in `folder`, by name."""
    files = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
