"""Reads what a sweep has stored, finished or not."""

import os

import xarray as xr

from ._store import Store


def open(store: str | os.PathLike[str]) -> xr.Dataset:
    """The result of a sweep from its folder, also while it runs and after it was killed.

    A finished store is plain zarr, which `xarray.open_zarr` reads as well, piece by piece if it is large. Here all of
    it is read into memory, whole as it was at one moment, also while a run with `resume=False` replaces it, and every
    file is held against its checksum (a store of clusterjax 0.1.0 has none). Points that are not finished are nan, with
    the `status` 3; those of a batch whose file is damaged as well, with a `reason`.

    **Arguments:**

    - `store`: The folder that was given to `run`.

    **Returns:**

    A data set as `run` returns it.

    **Raises:**

    - `ValueError` if there is no sweep in that folder, or a file of the finished store is damaged.
    """
    result_store = Store(store)
    result_store.check()
    if result_store.identity() is None:
        folder = str(result_store.path)
        raise ValueError(f"store must be the folder of a sweep, but there is none in {folder!r}; run it first.")
    return result_store.dataset()
