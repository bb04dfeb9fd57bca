"""Fits the two numbers of the particle model, time per layer and beta, to the network's curves.

Least squares by Levenberg and Marquardt (Marquardt, *An algorithm for least-squares estimation of nonlinear
parameters*, Journal of SIAM, 1963) in the logarithms of both, so that they stay positive: step = -(H + damping I)^-1
g, with g the gradient of the mean squared difference and H the Gauss-Newton matrix. The damping falls by 10 where a
step lowers the loss and grows by 10 where it does not.

Invariants: the best step so far is never lost; a step whose curves overflow counts as one of infinite loss; with a
store a run that was killed repeats its steps from the file and goes on bit for bit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._summary import short, summary
from ..measures.tally import Tally


_CLOSE = 1e-3  # three digits

AS_IT_COMES = np.zeros(2)  # time 1 and beta 1
UNIFORM = np.array([0.0, -np.inf])  # beta 0


class Fit(NamedTuple):
    """What `fit_scales` returns: the best logarithms of time per layer and beta, (2,); the curves with them and those
    before the fit, (texts, levels); the loss of every step; and whether the fit converged."""

    log_scales: np.ndarray
    best: np.ndarray
    start: np.ndarray
    losses: np.ndarray
    converged: bool

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """Its numbers in a few lines: the mean and the range of each array."""
        return summary(self)


def fit_scales(
    particles: Any, target: np.ndarray, steps: int, first: float, log: Callable[[str], None],
    store: Path | None = None, asked: dict[str, Any] | None = None, begin: np.ndarray = AS_IT_COMES,
) -> Fit:  # fmt: skip
    """The logarithms of time per layer and beta with the least mean squared difference of `particles.curves` from
    `target`, (texts, levels); `first` bounds the length of the first step, and `begin` is where the fit begins: from
    `UNIFORM` beta stays 0, since no derivative leads away from it."""
    trial = log_scales = begin
    gradient = np.zeros(2)
    curvature, damping, losses, converged = np.zeros((2, 2)), 0.0, [], False
    # The losses and derivatives of all steps, the curves of the first, and those of each step that was the best so far:
    # with them the fit goes again, without the particles, where a run that was killed went.
    done = Tally()
    if store is not None and store.exists():
        # Curves that overflow are kept too: the fit goes back from there.
        done.restore(store, asked or {}, most=2**31, finite=False)
        _check_steps(done, store)
        log(f"resuming the fit after step {done.texts - 1}")
    known = done.texts
    start = best = done.arrays.get("start", np.empty(0))
    for step in range(steps + 1):
        # From the store: the decisions below are taken again from the recorded numbers, without running the particles.
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
            # Gauss and Newton: the second derivatives of the curves are left out, so that H is never indefinite.
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
            # At the start damping = |g| / first bounds the step: |(H + damping I)^-1 g| is at most first, H being
            # positive semidefinite.
            damping = damping / 10 if step else float(np.linalg.norm(gradient)) / first
        else:
            damping = 10 * damping
        losses.append(np.inf if overflows else value)
        # `curves` is None for a step that was read from the store.
        if store is not None and curves is not None:
            done.append("values", np.array([value]))
            done.append("slopes", trial_gradient[None])
            done.append("curvatures", trial_curvature[None])
            done.arrays |= {"start": start} | ({f"curves {step}": curves} if better else {})
            done.texts = step + 1
            done.save(store, asked or {})
        time, beta = np.exp(trial)
        log(f"step {step} of at most {steps}: loss {value:.4g}, time {time:.4g}, beta {beta:.4g}")
        # The Gauss-Newton step without damping: how far the minimum is, if the curves are linear up to there. `lstsq`
        # and not `solve`: where beta changes nothing H is singular, and the step of least norm is wanted.
        undamped_step = np.linalg.lstsq(curvature, -gradient)[0]
        converged = bool(np.all((np.abs(undamped_step) < _CLOSE) | (np.abs(gradient) < _CLOSE * min(losses))))
        if converged:
            break
        # From the best point, not from the last: a step that was taken back leaves no trace but its damping.
        trial = log_scales + np.linalg.solve(curvature + damping * np.eye(2), -gradient)
    return Fit(log_scales, best, start, np.array(losses if steps else []), converged and steps > 0)


def _check_steps(done: Tally, store: Path) -> None:
    """Raise a ValueError unless there is a row for each step, and all curves that the steps ask for."""
    rows = {"values": (), "slopes": (2,), "curvatures": (2, 2)}
    complete = all(name in done.arrays and done.arrays[name].shape == (done.texts, *rows[name]) for name in rows)
    best = np.inf
    for step, value in enumerate(done.arrays["values"] if complete else ()):
        # The same rule as in `fit_scales`: curves are kept for the first step and for each that lowered the loss.
        better = np.all(np.isfinite([value, *done.arrays["slopes"][step], *done.arrays["curvatures"][step].ravel()]))
        if (better and value < best) or step == 0:
            complete, best = complete and f"curves {step}" in done.arrays, value
    if not complete or "start" not in done.arrays:
        raise ValueError(f"store must be whole, but {store} lacks steps of the fit; remove it, or choose another file.")
