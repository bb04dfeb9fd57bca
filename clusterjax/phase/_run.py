"""`phase_diagram`: a sweep of `PhaseDiagram` over beta, with a store that can be resumed.

Every argument is checked before compilation. Each beta is one point of the sweep; `PhaseDiagram.cost` tells the sweep
which points take about equally long. Invariant: the store of a sweep identifies its arguments, so that a resumed run
has equal arguments.
"""

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike, Real

from .._check import check_flag, check_float_dtype, check_host_array, refusal
from .._custom_types import DTypeLike, Numbers
from .._mask import AbstractMask, FullMask, check_mask
from ..sweep._axis import Axis
from ..sweep._outputs import Variable
from ..sweep._plan import check_seed
from ..sweep._run import check_place, run
from ._diagram import PhaseDiagram, check_integrator, check_law, check_statistics, check_times
from ._integrators import MOST_EVALUATIONS, AbstractIntegrator, NormalisedEuler
from ._laws import AbstractLaw, Identity
from ._starts import Given, Uniform, check_sizes, check_starts
from ._statistics import AbstractStatistic, ClosePairs


def phase_diagram(
    betas: Real[ArrayLike, " betas"],
    times: Real[ArrayLike, " times"],
    *,
    n: int = 32,
    d: int = 2,
    samples: int = 2048,
    unnormalised: bool = False,
    query_key: AbstractLaw = Identity(),
    value: AbstractLaw = Identity(),
    starts: Numbers | None = None,
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),),
    integrator: AbstractIntegrator = NormalisedEuler(),
    mask: AbstractMask = FullMask(),
    dtype: DTypeLike | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
    batch_size: int = 1,
) -> xr.Dataset:
    r"""The clustering of systems of n tokens at each time, for each beta, as defined by the published code.

    Each system has its own initial tokens, uniform on the sphere unless given, and shared by all betas. Each beta is
    one point of the sweep, so that a run with a `store` loses only the rows in progress when it is killed.

    !!! example

        ```python
        >>> from clusterjax import phase
        >>> found = phase.phase_diagram([1.0, 5.0], [0.0, 2.0, 20.0], n=4, d=8, samples=4, progress=False)
        >>> dict(found.sizes)
        {'beta': 2, 't': 3}
        >>> share = found.close_pairs.sel(beta=1.0)  # of the pairs whose inner product exceeds 0.999
        >>> bool(share[0] < 0.1), bool(share[-1] > 0.9)
        (True, True)
        ```

    **Arguments:**

    - `betas`: Inverse temperatures (betas,), not negative.
    - `times`: Save times (times,), not negative and increasing.

    **Other arguments:**

    - `n`, `d`, `samples`: The number of tokens per system, their dimension, and the number of systems.
    - `unnormalised`: True for unnormalised attention.
    - `query_key`, `value`: The laws of Q^T K and V.
    - `starts`: Initial points (samples, n, d), which also determine the three sizes; see `read_starts`.
    - `statistics`: The statistics that are measured over the systems.
    - `integrator`: The published `NormalisedEuler`, or `Adaptive`.
    - `mask`: The mask; `CausalMask()` gives causal attention.
    - `dtype`: The dtype of the simulation; None is the default of jax.
    - `seed`: The seed of the starts and laws.
    - `store`, `resume`, `devices`, `progress`: As for `run`; without `devices` a CPU processes one beta per core at a
        time.
    - `batch_size`: The number of betas that a device processes together: 1 on a CPU, more if memory permits.

    **Returns:**

    An `xarray.Dataset` over (beta, t) with mean and standard error of each statistic, for example `close_pairs` and
    `close_pairs_error`; the arguments are in its attributes.

    **Raises:**

    - `ValueError` if an argument is invalid, or one system would take more than 1e9 evaluations of the field.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the phase diagrams of Section 6
        and their code; at time zero the state is the start here, where that code has the state after one step.
    """
    dtype = _dtype(dtype)
    betas, times = _numbers(betas, "betas", dtype), _numbers(times, "times", dtype)
    # Times are compared in the dtype of the run, where times that differ in float64 may be equal.
    check_times(times.astype(dtype), "times")
    # Betas must differ, because a beta identifies its point in the store.
    if len(np.unique(betas)) < len(betas):
        raise refusal("betas", "be there once each", "two of them are equal", "pass numpy.unique of them")
    samples, n, d = check_sizes(samples, n, d, least=2)
    check_flag(unnormalised, "unnormalised")
    check_law(query_key, "query_key")
    check_law(value, "value")
    check_statistics(statistics)
    check_integrator(integrator, dtype)
    check_mask(mask).check(n)
    seed = check_seed(seed)
    check_place(store, devices, batch_size, resume, progress)
    if starts is None:
        start = Uniform(samples, n, d)
    else:
        given = check_starts(starts)
        if len(given) < 2:
            raise ValueError("starts must be of at least 2 systems, for the error, but there is 1; give more.")
        start = Given(jnp.asarray(given, dtype))
    diagram = PhaseDiagram(
        start,
        jnp.asarray(times, dtype),
        query_key,
        value,
        unnormalised,
        tuple(statistics),
        integrator,
        seed,
        mask=mask,
    )
    # The largest beta takes the most evaluations of the field, for either attention.
    evaluations = diagram.cost(betas.max())
    if not evaluations <= MOST_EVALUATIONS:
        raise ValueError(
            f"betas must leave fewer than {MOST_EVALUATIONS:.0e} evaluations of the field for each system, but "
            f"beta = {betas.max():g} takes {evaluations:.1e}; take smaller ones, or shorter times."
        )
    # Two variables over time for each statistic: the mean over the systems and its standard error.
    variables = {}
    for statistic in statistics:
        coords = {"t": times}
        variables[statistic.name] = Variable(("t",), coords, description=statistic.description)
        words = f"standard error of {statistic.name} over the systems"
        variables[f"{statistic.name}_error"] = Variable(("t",), coords, description=words)
    places = _each_core() if devices is None else devices
    dataset = run(
        diagram, {"beta": Axis(betas, description="inverse temperature")}, batch_size=batch_size, store=store,
        resume=resume, devices=places, progress=progress, seed=seed, cost=diagram.cost, variables=variables,
    )  # fmt: skip
    count, n, d = start.sizes
    asked = {"n": n, "d": d, "samples": count, "attention": "unnormalised" if unnormalised else "softmax"}
    if mask != FullMask():
        asked["mask"] = repr(mask)
    return dataset.assign_attrs(
        asked | {"query_key": repr(query_key), "value": repr(value), "integrator": repr(integrator)}
    )


def _numbers(values: Any, name: str, dtype: Any) -> np.ndarray:
    array = check_host_array(values, name, shape=(name,), least=0, remedy="pass numpy.linspace(0, 9, 90), say")
    array = array.astype(float)
    # A number beyond the range of the dtype becomes infinite, which is refused below.
    with np.errstate(over="ignore"):
        beyond = array[~np.isfinite(array.astype(dtype))]
    if beyond.size:
        raise refusal(name, f"be finite in {dtype.name}", f"one is {beyond[0]:g}", "drop those that are not")
    return array


def _dtype(dtype: Any) -> Any:
    """The dtype of the simulation."""
    checked = jnp.dtype(jnp.result_type(float)) if dtype is None else check_float_dtype(dtype)
    if checked not in (jnp.float32, jnp.float64):
        raise refusal("dtype", "be float32 or float64", f"it is {checked}", "choose one of them")
    if checked == jnp.float64 and not jax.config.read("jax_enable_x64"):
        remedy = "set jax_enable_x64 before, or pass float32"
        raise refusal("dtype", "be switched on", "float64 is not", remedy)
    return checked


def _each_core() -> list[Any]:
    """The devices of this process; a CPU is listed once per core, because a row of a diagram, a loop of small
    operations, keeps only one core busy."""
    devices = jax.local_devices()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return devices * (max(1, cores // len(devices)) if devices[0].platform == "cpu" else 1)
