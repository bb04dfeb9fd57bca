"""A small sweep that the tests of stores share, in one process or several; and the files of a folder as bytes."""

import contextlib
import os
import shutil
import threading
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


@pytest.fixture(autouse=True, scope="module")
def fixed_date():
    """Fixes the date in every test of a module that imports this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "86400")
        yield


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


@contextlib.contextmanager
def moments_of(folder):
    """Copies of `folder` before each change that is made to it, which are what a kill would leave there."""
    moments, one = [], threading.RLock()  # zarr writes from threads of its own: none may take away what is being copied
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((os, "replace"), (os, "rename"), (os, "unlink"), (shutil, "rmtree")):

            def before(*arguments, call=getattr(module, name), **options):
                with one:
                    if folder.exists() and all(str(folder) in str(argument) for argument in arguments[:1]):
                        moments.append(folder.parent / str(len(moments)))
                        shutil.copytree(folder, moments[-1])
                    return call(*arguments, **options)

            patch.setattr(module, name, before)
        yield moments


@contextlib.contextmanager
def full_disk(path, fits):
    """The disk has room for `fits` more files of the store, from when it is there on, or for none at all."""
    left = [fits]

    def full(*arguments, replace=os.replace):
        left[0] -= path.exists() or fits == 0
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return replace(*arguments)

    words = "No space left on device.*make room"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match=words):
        patch.setattr(os, "replace", full)
        yield
