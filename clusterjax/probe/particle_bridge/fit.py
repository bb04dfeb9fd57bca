"""Fit of the two numbers of the particle model, time per layer and beta, to the curves of a network.

Least squares by Levenberg and Marquardt (Marquardt, *An algorithm for least-squares estimation of nonlinear
parameters*, Journal of SIAM, 1963) in the logarithms of both, which keeps them positive: step = -(H + damping I)^-1 g,
with g the gradient of the mean squared difference and H the Gauss-Newton matrix. The damping is divided by 10 after a
step that lowers the loss and multiplied by 10 otherwise.

Invariants: the best point so far is never lost; a step whose curves overflow counts as infinite loss; with a store, an
interrupted run replays its steps from the file and continues bit for bit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._summary import short, summary
from ..measures.tally import Tally


_CLOSE = 1e-3  # three significant digits

AS_IT_COMES = np.zeros(2)  # time 1 and beta 1
UNIFORM = np.array([0.0, -np.inf])  # beta 0


class Fit(NamedTuple):
    """The result of `fit_scales`: the best logarithms of time per layer and beta, (2,); the curves at these and at the
    starting point, (texts, levels); the loss of every step; and `converged`, True if the fit converged."""

    log_scales: np.ndarray
    best: np.ndarray
    start: np.ndarray
    losses: np.ndarray
    converged: bool

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: the mean and the range of each array."""
        return summary(self)


def fit_scales(
    particles: Any, target: np.ndarray, steps: int, first: float, log: Callable[[str], None],
    store: Path | None = None, asked: dict[str, Any] | None = None, begin: np.ndarray = AS_IT_COMES,
) -> Fit:  # fmt: skip
    """Minimise the mean squared difference of `particles.curves` from `target`, (texts, levels), over the logarithms of
    time per layer and beta. `first` bounds the norm of the first step. `begin` is the starting point: from `UNIFORM`
    beta stays 0, since the derivative with respect to its logarithm is 0."""
    trial = log_scales = begin
    gradient = np.zeros(2)
    curvature, damping, losses, converged = np.zeros((2, 2)), 0.0, [], False
    # The store holds the losses and derivatives of all steps, and the curves of the first step and of each step that
    # was the best so far. An interrupted fit replays its decisions from these without running the particles.
    done = Tally()
    if store is not None and store.exists():
        # Curves that overflow are stored too: the fit rejects the step again on replay.
        done.restore(store, asked or {}, most=2**31, finite=False)
        _check_steps(done, store)
        log(f"resuming the fit after step {done.texts - 1}")
    known = done.texts
    start = best = done.arrays.get("start", np.empty(0))
    for step in range(steps + 1):
        # A stored step: the decisions below are repeated from the recorded numbers, without running the particles.
        if step < known:
            value, curves = float(done.arrays["values"][step]), None
            trial_gradient, trial_curvature = done.arrays["slopes"][step], done.arrays["curvatures"][step]
        else:
            curves, derivatives = particles.curves(trial)
            residuals = curves - target
            value, trial_gradient = (
                float(np.mean(residuals**2)),
                2 * np.mean(residuals[..., None] * derivatives, axis=(0, 1)),
            )
            # Gauss-Newton: H omits the second derivatives of the curves, so it is never indefinite.
            trial_curvature = 2 * np.einsum("tlk,tlm->km", derivatives, derivatives) / residuals.size
            start = curves if step == 0 else start
        overflows = not all(np.all(np.isfinite(term)) for term in (value, trial_gradient, trial_curvature))
        if overflows and step == 0:
            raise ValueError(
                "particles must stay finite, but as they come, with time 1 and beta 1, they overflow; pass a larger "
                f"steps_per_layer than {particles.steps_per_layer}, or load the model with dtype=float64."
            )
        better = not overflows and (step == 0 or value < min(losses))
        if better:
            log_scales, gradient, curvature = trial, trial_gradient, trial_curvature
            best = done.arrays[f"curves {step}"] if curves is None else curves
            # At the start damping = |g| / first bounds the step: |(H + damping I)^-1 g| <= first, since H is positive
            # semidefinite.
            damping = damping / 10 if step else float(np.linalg.norm(gradient)) / first
        else:
            damping = 10 * damping
        losses.append(np.inf if overflows else value)
        # `curves` is None for a step read from the store.
        if store is not None and curves is not None:
            done.append("values", np.array([value]))
            done.append("slopes", trial_gradient[None])
            done.append("curvatures", trial_curvature[None])
            done.arrays |= {"start": start} | ({f"curves {step}": curves} if better else {})
            done.texts = step + 1
            done.save(store, asked or {})
        time, beta = np.exp(trial)
        log(f"step {step} of at most {steps}: loss {value:.4g}, time {time:.4g}, beta {beta:.4g}")
        # The Gauss-Newton step without damping estimates the distance to the minimum if the curves are linear. `lstsq`
        # rather than `solve`: where the curves do not depend on beta, H is singular and the least-norm step is needed.
        undamped_step = np.linalg.lstsq(curvature, -gradient)[0]
        converged = bool(np.all((np.abs(undamped_step) < _CLOSE) | (np.abs(gradient) < _CLOSE * min(losses))))
        if converged:
            break
        # The next step starts from the best point and not from the last: a rejected step changes only the damping.
        trial = log_scales + np.linalg.solve(curvature + damping * np.eye(2), -gradient)
    return Fit(log_scales, best, start, np.array(losses if steps else []), converged and steps > 0)


def _check_steps(done: Tally, store: Path) -> None:
    """Raise a ValueError unless the tally has a row for each step and all curves that the steps require."""
    rows = {"values": (), "slopes": (2,), "curvatures": (2, 2)}
    complete = all(name in done.arrays and done.arrays[name].shape == (done.texts, *rows[name]) for name in rows)
    best = np.inf
    for step, value in enumerate(done.arrays["values"] if complete else ()):
        # The rule of `fit_scales`: curves are stored for the first step and for each step that lowered the loss.
        better = np.all(np.isfinite([value, *done.arrays["slopes"][step], *done.arrays["curvatures"][step].ravel()]))
        if (better and value < best) or step == 0:
            complete, best = complete and f"curves {step}" in done.arrays, value
    if not complete or "start" not in done.arrays:
        raise ValueError(f"store must be whole, but {store} lacks steps of the fit; remove it, or choose another file.")
