r"""The leading eigenvalue of V, and the splitting of R^d in the theorems on limits.

**Algorithm.** If the eigenvalue $\lambda$ of largest real part is real and positive, one singular value decomposition
of $V - \lambda I$ yields the splitting: F is the kernel, G the range, and the left kernel gives the coordinates of F.
The norm of a power bounds the spectral radius on G, $\rho \le |V_G^m|^{1/m}$, with m by repeated squaring.
**Reference.** Geshkovski et al. (2305.05465), Sections 4 and 5: V is *paranormal* if $R^d = F \oplus G$ with both
invariant, $V = \lambda I$ on F, $\lambda > 0$, and a spectral radius below $\lambda$ on G.
**Invariants.** A Jordan block is never taken for a multiple of the identity, and a Jordan block perturbed by rounding
never for a simple eigenvalue: the gap must exceed the effect of rounding of V on an eigenvalue of that condition. If
eigenvalues are neither equal to rounding nor separated by more than rounding, F and G are unknown.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..hardmax._certificate import APART, EQUAL, rounding_of


# Both thresholds are relative to the norm of V. Eigenvalues within _NEAR of the leading one may be equal in exact
# arithmetic, scattered by a Jordan block of size two; singular values of V - lambda I below _ZERO count as zero.
_NEAR, _ZERO = 1e-6, 1e-9
# With this many squarings the radius of a Jordan block of size two is bounded to 1e-5, including rounding error.
_SQUARINGS = 30


class Splitting(NamedTuple):
    """The splitting R^d = F + G for a matrix V; F is empty if the leading eigenvalue is not real and positive.

    **Attributes:**

    - `eigenvalue`: The eigenvalue of largest real part, which grows fastest in $e^{tV}$.
    - `frame`: (d, r), an orthonormal basis of F.
    - `dual`: (r, d), maps a token to the coordinates in `frame` of its part in F, along G: `dual @ frame` is I.
    - `rest`: (d, d - r), an orthonormal basis of G.
    - `radius`: An upper bound of the spectral radius of V on G.
    - `error`: A bound on the change of the eigenvalue by rounding of V; infinite if F and G intersect, or if V is no
        multiple of the identity on F to rounding.
    - `off`: The largest |V f - lambda f| over unit vectors f of F.
    - `apart`: The least singular value of V - lambda I on G, which measures the separation of F from G.
    """

    eigenvalue: complex
    frame: Float[np.ndarray, "d r"]
    dual: Float[np.ndarray, "r d"]
    rest: Float[np.ndarray, "d g"]
    radius: float
    error: float
    off: float
    apart: float

    @property
    def is_real(self) -> bool:
        """True if the leading eigenvalue is real and positive."""
        return self.frame.shape[1] > 0

    @property
    def gap(self) -> float:
        """A lower bound of the eigenvalue minus the spectral radius on G; minus infinity if F and G intersect."""
        return float(self.eigenvalue.real) - self.radius - APART * self.error

    @property
    def is_paranormal(self) -> bool:
        """True if V is paranormal, to rounding."""
        return self.is_real and self.gap > 0

    @property
    def rounding(self) -> float:
        """A bound on the change, by rounding of V, of the coordinates in F of a unit token."""
        if self.rest.shape[1] == 0:
            return 0.0
        return self.error / self.apart * float(np.linalg.norm(self.dual, 2)) if self.apart > 0 else np.inf


def split(value: Float[np.ndarray, "d d"]) -> Splitting:
    """The splitting of R^d by the leading eigenvalue of V."""
    d = len(value)
    eigenvalues: Any = np.linalg.eigvals(value).astype(complex)
    size = float(np.linalg.norm(value, 2))
    # Among eigenvalues of equal real part a complex one leads, because no direction of F is then fixed.
    ties = eigenvalues[eigenvalues.real >= eigenvalues.real.max() - _ZERO * size]
    lead = ties[np.argmax(np.abs(ties.imag))]
    none = np.zeros((d, 0))
    nowhere = Splitting(lead, none, none.T, np.eye(d), float(np.abs(eigenvalues).max()), 0.0, 0.0, 0.0)
    if lead.real <= 0 or abs(lead.imag) > _NEAR * size:
        return nowhere
    near = eigenvalues[np.abs(eigenvalues - lead) <= _NEAR * size]
    # The mean of a scattered cluster of eigenvalues is more accurate than each of them. If V minus the mean has no
    # kernel, the leading eigenvalue alone is tried, if it is real.
    for number in (float(near.real.mean()), float(lead.real)):
        left, sizes, right = np.linalg.svd(value - number * np.eye(d))
        count = int(np.sum(sizes <= _ZERO * size))
        if count:
            return _parts(value, number, left, right.T, count)
        if lead.imag != 0:
            return nowhere
    return nowhere


def _parts(value: np.ndarray, number: float, left: np.ndarray, right: np.ndarray, count: int) -> Splitting:
    d = len(value)
    frame, kernel, rest = right[:, d - count :], left[:, d - count :], left[:, : d - count]
    between = kernel.T @ frame
    least = float(np.linalg.svd(between, compute_uv=False)[-1])
    off = float(np.linalg.norm((value - number * np.eye(d)) @ frame, 2))
    # An eigenvalue of condition number 1 / least moves by at most the error of the matrix divided by least.
    error = rounding_of(value) / least if least > 0 else np.inf
    meets = least <= _ZERO
    unknown = meets or off > EQUAL * error
    dual = np.zeros((count, d)) if meets else np.linalg.solve(between, kernel.T)
    within = rest.T @ value @ rest
    apart = np.linalg.svd(within - number * np.eye(d - count), compute_uv=False)[-1] if count < d else np.inf
    return Splitting(
        complex(number), frame, dual, rest, _radius(within), np.inf if unknown else max(error, off), off, float(apart)
    )


def _radius(matrix: Float[np.ndarray, "g g"]) -> float:
    """An upper bound of the spectral radius: |M^m|^(1/m) for a large m."""
    log_size, power = 0.0, np.array(matrix)
    for k in range(_SQUARINGS + 1):
        # The Frobenius norm is at least the spectral norm, so that the bound holds.
        norm = float(np.linalg.norm(power))
        if norm == 0:
            return 0.0
        log_size += np.log(norm) / 2.0**k
        power = power / norm
        power = power @ power
    return float(np.exp(log_size))
