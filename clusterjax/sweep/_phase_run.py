"""A whole phase diagram as one sweep over beta."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike, Real

from ._axis import Axis
from ._outputs import Variable
from ._phase_diagram import PhaseDiagram
from ._phase_laws import AbstractLaw, Identity
from ._phase_starts import Given, Uniform, check_starts
from ._phase_statistics import AbstractStatistic, ClosePairs
from ._phase_steps import AbstractIntegrator, NormalisedEuler
from ._run import run


MOST_STEPS = 1e9


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
    starts: Any = None,
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),),
    integrator: AbstractIntegrator = NormalisedEuler(),
    dtype: Any = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
    batch_size: int = 1,
) -> xr.Dataset:
    r"""How clustered systems of n tokens are at each time, for each beta, by the published code's definition.

    Each system starts at its own tokens, uniform on the sphere unless they are given, the same for every beta. A beta
    is one point of the sweep, so that a run with a `store` that is killed loses the rows in flight and no more.

    **Arguments:**

    - `betas`: Inverse temperatures (betas,), not negative.
    - `times`: Save times (times,), not negative and increasing.

    **Other arguments:**

    - `n`, `d`, `samples`: How many tokens, of how many coordinates, in how many systems.
    - `unnormalised`: Whether attention is the unnormalised one.
    - `query_key`, `value`: The laws of Q^T K and V.
    - `starts`: Initial points (samples, n, d), which give the three sizes as well; see `read_starts`.
    - `statistics`: What is measured, over the systems.
    - `integrator`: The published `NormalisedEuler`, or `Adaptive`.
    - `dtype`: Of the simulation; None is the default of jax.
    - `seed`: Of starts and laws.
    - `store`, `resume`, `devices`, `progress`: As for `run`.
    - `batch_size`: How many betas a device works on together: 1 on a CPU, more where there is room.

    **Returns:**

    An `xarray.Dataset` over (beta, t) with mean and standard error of each statistic, `close_pairs` and
    `close_pairs_error` say; what was asked is in its attributes.

    **Raises:**

    - `ValueError` if an argument cannot be, or the steps are more than anyone waits for.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the phase diagrams of Section 6
        and their code; the state at time zero is the start here, where that code has the first step.
    """
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    _check_dtype(dtype)
    betas, times = _numbers(betas, "betas", dtype), _numbers(times, "times", dtype)
    rounded = times.astype(dtype)
    if np.any(rounded[1:] <= rounded[:-1]):
        raise ValueError(f"times must increase in {dtype.name}, but they are {times}; sort them, each once.")
    if starts is None:
        _check_sizes(samples=(samples, 2), n=(n, 2), d=(d, 1))
        start = Uniform(int(samples), int(n), int(d))
    else:
        given = check_starts(starts)
        if len(given) < 2:
            raise ValueError("starts must be of at least 2 systems, for the error, but there is 1; give more.")
        start = Given(jnp.asarray(given, dtype))
    if not statistics or len({statistic.name for statistic in statistics}) < len(statistics):
        raise ValueError(f"statistics must be at least one, each once, but they are {statistics!r}; mend the list.")
    diagram = PhaseDiagram(
        start, jnp.asarray(times, dtype), query_key, value, bool(unnormalised), tuple(statistics), integrator, int(seed)
    )
    steps = max(diagram.cost(beta) for beta in betas)
    if not steps <= MOST_STEPS:
        raise ValueError(
            f"betas must leave fewer than {MOST_STEPS:.0e} steps up to the last time, but beta = {betas.max():g} takes "
            f"{steps:.1e}; take smaller ones, or shorter times."
        )
    variables = {}
    for statistic in statistics:
        coords = {"t": times}
        variables[statistic.name] = Variable(("t",), coords, description=statistic.description)
        words = f"standard error of {statistic.name} over the systems"
        variables[f"{statistic.name}_error"] = Variable(("t",), coords, description=words)
    found = run(
        diagram, {"beta": Axis(betas, description="inverse temperature")}, batch_size=batch_size, store=store,
        resume=resume, devices=devices, progress=progress, seed=seed, cost=diagram.cost, variables=variables,
    )  # fmt: skip
    count, n, d = start.sizes
    asked = {"n": n, "d": d, "samples": count, "attention": "unnormalised" if unnormalised else "softmax"}
    return found.assign_attrs(
        asked | {"query_key": repr(query_key), "value": repr(value), "integrator": repr(integrator)}
    )


def _numbers(values: Any, name: str, dtype: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must be numbers in a row, but they are {values!r}; pass numpy.linspace(0, 9, 90), say."
        )
    array = array.astype(float)
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(dtype)).all()
    if not finite or array.min() < 0:
        raise ValueError(
            f"{name} must be finite in {dtype.name} and not negative, but they are {array}; drop those that are not."
        )
    return array


def _check_sizes(**sizes: tuple[Any, int]) -> None:
    for name, (size, least) in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < least:
            raise ValueError(f"{name} must be an integer, at least {least}, but it is {size!r}; choose another.")


def _check_dtype(dtype: Any) -> None:
    if dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64, but it is {dtype}; choose one of them.")
    if dtype == jnp.float64 and not jax.config.read("jax_enable_x64"):
        raise ValueError("dtype is float64, which jax has switched off; set jax_enable_x64 before, or pass float32.")
