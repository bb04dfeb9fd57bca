"""Reads what a sweep has stored, finished or not."""

import os

import xarray as xr

from ._store import Store


def open(store: str | os.PathLike[str]) -> xr.Dataset:
    """The result of a sweep from its folder, also while it runs and after it was killed.

    A finished store is plain zarr, which `xarray.open_zarr` reads as well, piece by piece if it is large. Here all of
    it is read into memory. Points that are not finished are nan, with the `status` 3.

    **Arguments:**

    - `store`: The folder that was given to `run`.

    **Returns:**

    A data set as `run` returns it.

    **Raises:**

    - `ValueError` if there is no sweep in that folder.

    Source: this library.
    """
    kept = Store(store)
    kept.check()
    if kept.identity() is None:
        raise ValueError(f"store must be the folder of a sweep, but there is none in {str(kept.path)!r}; run it first.")
    return kept.dataset()
