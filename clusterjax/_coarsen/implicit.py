r"""Implicit steps in time, where clusters contract onto a curve much faster than they move along it.

**Algorithm.** Rodas5P, a linearly implicit Rosenbrock method of order 5, L-stable, with its interpolant of order 4.
A step lasts no longer than the time scale of the fastest growing perturbation, since L-stability damps growth too.

**Reference.** Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P* (BIT 63, 2023). Hairer, Wanner, *Solving
Ordinary Differential Equations II*, section IV.7 (this form of the stages).
"""

from typing import NamedTuple

import numpy as np

from .._solver import rodas5p
from .derivatives import jacobian
from .law import AttendedMasses, Law, Moves, moves
from .steps import Step


class Linear(NamedTuple):
    """The derivative at the beginning of a step, its fastest growth rate, and its largest eigenvalue in modulus."""

    change: np.ndarray
    growth: float
    fastest: float

    @staticmethod
    def at(law: Law, y: np.ndarray, attended: AttendedMasses) -> "Linear":
        change, _ = jacobian(law, y, attended)
        rates = np.linalg.eigvals(change)
        return Linear(change, max(float(rates.real.max()), 0.0), float(np.abs(rates).max()))


def implicit_step(
    law: Law, attended: AttendedMasses, y0: np.ndarray, t: float, span: float, now: Moves, linear: Linear
) -> Step:
    """A step of duration `span`; its slopes are derivatives by time at the two ends."""
    from scipy.linalg import lu_factor, lu_solve

    gamma, size = rodas5p._GAMMA, y0.size
    factors = lu_factor(np.eye(size) - span * gamma * linear.change)
    k = np.zeros((8, size))
    for i, (stages, coupling) in enumerate(zip(rodas5p._STAGES, rodas5p._COUPLING, strict=True)):
        velocity = now.velocity
        if i > 0:
            velocity = moves(law, y0 + (stages @ k[:i]).reshape(y0.shape), attended).velocity
        right = span * velocity.ravel() + (np.array(coupling) @ k[:i] if i > 0 else 0)
        k[i] = lu_solve(factors, gamma * right)
    change = (np.array((*rodas5p._LAST, 1.0, 1.0, 1.0)) @ k).reshape(y0.shape)
    y1 = y0 + change
    y1 = y1 / np.sqrt(np.sum(y1 * y1, axis=1, keepdims=True))
    last = moves(law, y1, attended)
    slopes = np.stack([np.append(one.velocity.ravel(), 1.0) for one in (now, last)])
    a, b, c = np.array(rodas5p._DENSE) @ k
    inner = np.zeros((4, size + 1))
    inner[:3, :-1] = a, b + c, -c
    return Step(y0, y1, t, span, span, slopes, np.append(k[7], 0.0), last, inner)
