"""`restricted_mean`: the mean of times of a sweep over one axis, of which some are only known to be longer."""

import numpy as np
import xarray as xr

from .._base.checks import check_instance, check_number, check_text, refusal
from .._observables.lifetimes import survival


def restricted_mean(
    found: xr.Dataset, dim: str, horizon: float | int, *, time: str = "time", reached: str = "reached"
) -> xr.Dataset:
    """The mean of min(time, horizon) over one axis of a sweep, from times of which some were not reached.

    At each point of the other axes the Kaplan-Meier curve of `survival` is integrated up to the horizon. The result is
    the mean of min(time, horizon) if all times were reached. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, xarray as xr
        >>> times = xr.DataArray([[1.0, 2.0, 4.0, 4.0]], dims=("beta", "draw"), coords={"beta": [9.0]})
        >>> found = xr.Dataset({"time": times, "reached": times < 4.0})
        >>> mean = cjx.sweep.restricted_mean(found, "draw", 4.0).sel(beta=9.0)
        >>> [round(float(mean[name]), 2) for name in ("mean", "standard_error", "reached")]
        [2.75, 0.65, 0.5]
        ```

    **Arguments:**

    - `found`: The result of `run` for a function that returns `time_to_cluster(...)`, or any data set with times, and
        booleans that are True where a time was reached.
    - `dim`: The axis of the mean, such as that of the seeds.
    - `horizon`: The time up to which the curve is integrated, above zero, at most that to which runs were followed.

    **Other arguments:**

    - `time`, `reached`: The names of the times and of the booleans.

    **Returns:**

    An `xarray.Dataset` over the other axes: `mean`, its `standard_error` by Greenwood's formula, and the share
    `reached`. Mean and error are NaN where the curve is unknown at the horizon.

    **Raises:**

    - `ValueError` if a name is missing, a time is not finite, as that of a point that failed, or negative, or
      `reached` does not hold booleans.

    ??? cite "Source"

        Kaplan, Meier, *Nonparametric estimation from incomplete observations* (J. Amer. Statist. Assoc. 53, 1958).
    """
    check_instance(found, "found", xr.Dataset, "an xarray.Dataset", "pass the result of sweep.run")
    check_text(dim, "dim")
    for name, called in ((time, "time"), (reached, "reached")):
        if check_text(name, called) not in found:
            listed = ", ".join(map(str, found.data_vars)) or "none"
            raise refusal(called, "name a variable of found", f"it is {name!r}", f"choose from {listed}")
        if dim not in found[name].dims:
            rule, dims = f"be an axis of {name!r}", ", ".join(map(str, found[name].dims)) or "none"
            raise refusal("dim", rule, f"it is {dim!r}", f"choose from {dims}")
    horizon = check_number(horizon, "horizon", above=0, remedy="pass a duration")
    if lost := int(np.sum(~np.isfinite(found[time].values))):
        problem = f"{lost} of {found[time].size} are not"
        raise refusal("found", "have finite times", problem, "run with throw=False, so that a failed run is censored")

    def mean(times: np.ndarray, observed: np.ndarray) -> tuple[float, float, float]:
        curve = survival(times, observed)
        if np.isnan(curve.at(horizon)):
            return np.nan, np.nan, float(np.mean(observed))
        return curve.restricted_mean(horizon), curve.restricted_mean_error(horizon), float(np.mean(observed))

    means = xr.apply_ufunc(
        mean, found[time], found[reached], input_core_dims=[[dim]] * 2, output_core_dims=[[]] * 3, vectorize=True
    )
    return xr.Dataset(dict(zip(("mean", "standard_error", "reached"), means, strict=True)))
