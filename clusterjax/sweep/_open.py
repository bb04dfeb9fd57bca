"""Reads the stored result of a sweep, finished or not."""

import os

import xarray as xr

from ._store import Store


def open(store: str | os.PathLike[str]) -> xr.Dataset:
    """The result of a sweep from its folder, even while the sweep runs and after it was killed.

    A finished store is plain zarr, which `xarray.open_zarr` also reads, in pieces if it is large. This function reads
    the whole store into memory, in the state of a single moment even while a run with `resume=False` replaces it, and
    compares every file with its checksum (a store of clusterjax 0.1.0 has none). Points that are not finished are nan,
    with the `status` 3; so are the points of a batch with a damaged file, with a `reason`.

    **Arguments:**

    - `store`: The folder that was passed to `run`.

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
