"""The theorem that applies to a field: its hypotheses are tested on the matrices of the field.

The theorems in R^d concern z = e^{-tV} x (2305.05465). If V = I and $Q^T K$ is symmetric positive definite, the limit
is a polytope (Theorem 3.1). If the leading eigenvalue is real, positive and simple and $⟨Qφ_1, Kφ_1⟩ > 0$, the limit is
at most three hyperplanes (Theorem 4.2). If V is paranormal and $Q^T K$ symmetric positive definite, the limit combines
both (Section 5). In one dimension with V > 0 and QK > 0 attention is Boolean (Theorem 2.1). On the sphere with V = I
the limit is one point: causally for any Q, K (2411.04990, Theorem 4.1), else for Q = K = I, or from an open hemisphere
(2312.10794, Theorem 6.1, Lemma 6.4). **Invariants.** The theorems require softmax attention, constant matrices and
equal masses, and nothing beyond their statements is claimed. V = c I with c > 0 is V = I in another unit of time. An
equality must hold to rounding, and an inequality by more than the rounding error; otherwise the hypothesis does not
hold.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._model.attention import HardmaxAttention, SoftmaxAttention, UnnormalisedAttention
from .._model.field import AttentionField, RescaledField
from .._model.further_attention import CosineAttention, DistanceAttention, SigmoidAttention, SinkhornAttention
from .._model.mask import CausalMask, FullMask
from .._model.position import has_schedules, position_of
from .._model.schedule import AbstractSchedule, at_time
from .._observables import hemisphere
from ..hardmax._certificate import APART, EQUAL, rounding_of
from .result import BOOLEAN, HYPERPLANES, MIXED, ONE, POLYTOPE, LimitHypothesis


# The leading eigenvalue of V, and the splitting of R^d in the theorems on limits.
#
# **Algorithm.** If the eigenvalue λ of largest real part is real and positive, one singular value decomposition of
# V - λI yields the splitting: F is the kernel, G the range, and the left kernel gives the coordinates of F. The norm of
# a power bounds the spectral radius on G, $ρ ≤ |V_G^m|^{1/m}$, with m by repeated squaring. **Reference.** Geshkovski
# et al. (2305.05465), Sections 4 and 5: V is *paranormal* if $ℝ^d = F ⊕ G$ with both invariant, V = λI on F, λ > 0, and
# a spectral radius below λ on G. **Invariants.** A Jordan block is never taken for a multiple of the identity, and a
# Jordan block perturbed by rounding never for a simple eigenvalue: the gap must exceed the effect of rounding of V on
# an eigenvalue of that condition. If eigenvalues are neither equal to rounding nor separated by more than rounding, F
# and G are unknown.


# Both thresholds are relative to the norm of V. Eigenvalues within _NEAR of the leading one may be equal in exact
# arithmetic, scattered by a Jordan block of size two; singular values of V - lambda I below _ZERO count as zero.
_NEAR, _ZERO = 1e-6, 1e-9
# With this many squarings the radius of a Jordan block of size two is bounded to 1e-5, including rounding error.
_SQUARINGS = 30


class Splitting(NamedTuple):
    """The splitting R^d = F + G for a matrix V; F is empty if the leading eigenvalue is not real and positive."""

    eigenvalue: complex  # the eigenvalue of largest real part, which grows fastest in e^{tV}
    frame: Float[np.ndarray, "d r"]  # an orthonormal basis of F
    dual: Float[np.ndarray, "r d"]  # maps a vector to the coordinates of its part in F in `frame`: `dual @ frame` is I
    rest: Float[np.ndarray, "d g"]  # an orthonormal basis of G
    radius: float  # an upper bound of the spectral radius of V on G
    error: float  # a bound on the error of the eigenvalue; infinite if F meets G, or V is not a multiple of I on F
    off: float  # the largest |V f - lambda f| over unit vectors f of F
    apart: float  # the least singular value of V - lambda I on G, which measures the separation of F from G

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


class Matrices(NamedTuple):
    """The quantities that determine the limit of an attention field, in double precision, at one time."""

    value: np.ndarray
    form: np.ndarray  # beta Q^T K
    present: np.ndarray  # (n,), the tokens that have mass
    plain: tuple[LimitHypothesis, ...]  # the hypotheses on attention, masses and parameters common to all theorems


def matrices_of(
    field: AttentionField | RescaledField, t: float, x: Any, masks: type = FullMask, positions: bool = False
) -> Matrices:
    """The matrices of a field for tokens `x`, and the hypotheses that all theorems share.

    `positions` is True for a theorem whose proof needs only that weights are positive and smooth in the tokens. Factors
    $e^{b(i - j)}$ and turned queries and keys keep both properties. In the causal theorem the first token attends to
    itself alone. Where all tokens before k are at x_1, the velocity of token k is a positive number times the
    projection of x_1: x_1 attracts the token and -x_1 repels it, whatever the number. In an open hemisphere, the
    smallest cap that contains the tokens shrinks, since weights of a row are bounded below by a positive number.
    """
    n, d = x.shape
    attention, masses = field.attention, field.masses
    beta, key = (getattr(attention, name, None) for name in ("beta", "query_key"))
    number = lambda value, default: np.asarray(default if value is None else at_time(value, t, x.dtype), np.float64)
    value = number(field.value, np.eye(d))
    form = float(number(beta, 1.0)) * number(key, np.eye(d))
    weight = number(masses, np.ones(n))
    fixed = not any(isinstance(part, AbstractSchedule) for part in (beta, key, field.value, masses))
    fixed = fixed and not has_schedules(position_of(attention))
    mask = getattr(attention, "mask", None)
    placed, kind = position_of(attention), type(attention).__name__
    plain = (
        LimitHypothesis(
            "Attention is a softmax.", isinstance(attention, SoftmaxAttention) and (positions or placed is None),
            f"it is {kind}" if placed is None else f"it is {kind} with {type(placed).__name__}"
        ),
        LimitHypothesis("beta, Q, K, V and the masses are constant.", fixed, "so they are" if fixed else "not all are"),
        LimitHypothesis(
            f"Every token attends to {'all' if masks is FullMask else 'all before it'}.", isinstance(mask, masks),
            f"the mask is {type(mask).__name__}"
        ),
        LimitHypothesis(
            "All masses are equal.", bool((weight == weight[0]).all() and weight[0] > 0),
            f"they are from {weight.min():g} to {weight.max():g}"
        ),
    )  # fmt: skip
    return Matrices(value, form, weight > 0, plain)


class Theorem(NamedTuple):
    """A theorem: the shape of its limits, its name, and its hypotheses tested on a field."""

    kind: str
    name: str
    hypotheses: tuple[LimitHypothesis, ...]

    @property
    def applies(self) -> bool:
        """True if all hypotheses hold."""
        return all(hypothesis.held for hypothesis in self.hypotheses)


def theorem_in_space(m: Matrices, parts: Splitting) -> Theorem:
    """The theorem of 2305.05465 for a V whose leading eigenvalue is real and positive."""
    d, r = len(m.value), parts.frame.shape[1]
    number = parts.eigenvalue.real
    positive = LimitHypothesis("V's leading eigenvalue is real and positive.", parts.is_real, f"it is {number:.6g}")
    if d == 1:
        form = float(m.form[0, 0])
        product = LimitHypothesis("beta QK > 0.", form > 0, f"it is {form:.6g}")
        return Theorem(BOOLEAN, "2305.05465, Theorem 2.1", (*m.plain, positive, product))
    if r == d:
        whole = LimitHypothesis(
            "V is a positive multiple of the identity.", parts.is_paranormal, f"{number:.6g} I to {parts.off:.1e}"
        )
        return Theorem(POLYTOPE, "2305.05465, Theorem 3.1", (*m.plain, whole, _definite(m.form)))
    beside = f"it is {number:.6g} of multiplicity {r}, the others at most {parts.radius:.6g}"
    if r == 1:
        simple = LimitHypothesis(
            "It is simple, and larger than the modulus of every other.", parts.is_paranormal, beside
        )
        leading = parts.frame[:, 0]
        along = float(leading @ m.form @ leading)
        above = along > APART * rounding_of(m.form)
        aligned = LimitHypothesis("<Q phi_1, K phi_1> > 0.", above, f"with beta it is {along:.6g}")
        return Theorem(HYPERPLANES, "2305.05465, Theorem 4.2", (*m.plain, positive, simple, aligned))
    paranormal = LimitHypothesis(
        "V is paranormal: lambda I on F, of spectral radius below lambda on an invariant G, F + G = R^d.",
        parts.is_paranormal, f"{beside}; |V - lambda| on F is {parts.off:.1e}"
    )  # fmt: skip
    return Theorem(MIXED, "2305.05465, Section 5", (*m.plain, positive, paranormal, _definite(m.form)))


def _definite(form: np.ndarray) -> LimitHypothesis:
    rounding = rounding_of(form)
    skew = float(np.abs(form - form.T).max())
    least = float(np.linalg.eigvalsh((form + form.T) / 2)[0])
    # Equality holds only to rounding, because Q^T K is often computed as a product.
    held = skew <= EQUAL * rounding and least > APART * rounding
    measured = f"beta Q^T K has the least eigenvalue {least:.3g}" + (f" and is skew by {skew:.1e}" if skew else "")
    return LimitHypothesis("Q^T K is symmetric positive definite.", held, measured)


def theorem_on_sphere(field: AttentionField, t: float, x: Any, start: Any) -> Theorem:
    """A theorem that all tokens converge to one point, by the mask of the field or by the hemisphere of `start`."""
    causal = isinstance(getattr(field.attention, "mask", None), CausalMask)
    m = matrices_of(field, t, x, CausalMask if causal else FullMask, positions=True)
    d = len(m.value)
    number, off, held = _multiple(m.value)
    same = LimitHypothesis("V is a positive multiple of the identity.", held, f"{number:.6g} I to {off:.1e}")
    if causal:
        plane = LimitHypothesis("d is at least 2.", d >= 2, f"d = {d}")
        name = "2411.04990, Theorem 4.1 (almost every start: the first token's)"
        return Theorem(ONE, name, (*m.plain, same, plane))
    closed = hemisphere(start) if start.any(axis=1).all() else None
    if closed is not None and closed.is_open_hemisphere:
        around = LimitHypothesis("The tokens are in an open hemisphere.", True, f"the margin is {closed.margin:.3g}")
        return Theorem(ONE, "2312.10794, Lemma 6.4", (*m.plain, same, around))
    # Both kinds of attention have the same stationary points, with the same stability.
    kinds = isinstance(field.attention, SoftmaxAttention | UnnormalisedAttention)
    kinds = kinds and position_of(field.attention) is None
    plain = (LimitHypothesis("Attention is a softmax, normalised or not.", kinds, m.plain[0].measured), *m.plain[1:])
    beta, skew, held = _multiple(m.form)
    alike = LimitHypothesis(
        "Q^T K is a multiple of the identity, and beta >= 0.", held or not m.form.any(),
        f"beta Q^T K is {beta:.6g} I to {skew:.1e}"
    )  # fmt: skip
    plane = LimitHypothesis("d is at least 2.", d >= 2, f"d = {d}")
    name = "2312.10794, Theorem 6.1, and 2507.22857 on the circle (almost every start)"
    return Theorem(ONE, name, (*plain, same, alike, plane))


def _multiple(matrix: np.ndarray) -> tuple[float, float, bool]:
    """The c for which c I is nearest to the matrix, the largest deviation of an entry, and True if the matrix is c I
    with c > 0, to rounding."""
    number = float(np.trace(matrix)) / len(matrix)
    off = float(np.abs(matrix - number * np.eye(len(matrix))).max())
    return number, off, number > 0 and off <= EQUAL * rounding_of(matrix)


# The attentions without negative weights. A user's kernel may be negative.
_POSITIVE = (
    SoftmaxAttention,
    UnnormalisedAttention,
    HardmaxAttention,
    DistanceAttention,
    CosineAttention,
    SigmoidAttention,
    SinkhornAttention,
)


def never_leaves_a_cap(field: AttentionField, t: float, x: Any) -> bool:
    """True if tokens within a cap stay there for ever: V = c I to rounding, c > 0, and no weight is negative.

    A velocity is then the tangential part of a sum of tokens with non-negative weights, which points into the smallest
    convex cone that contains the tokens. Weights may depend on time, masses may differ, and any mask is allowed.
    """
    constant = not isinstance(field.value, AbstractSchedule)
    positive = isinstance(field.attention, _POSITIVE)
    return constant and positive and _multiple(matrices_of(field, t, x).value)[2]


def is_at_rest_exactly(field: AttentionField, x: np.ndarray) -> bool:
    """True if no token moves in exact arithmetic: all rows are one row or its negative, bit by bit, and V = c I.

    V y_j is then parallel to each token, whatever the weights, so that its tangential part is zero.
    """
    value = field.value
    if isinstance(value, AbstractSchedule) or not np.all((x == x[0]).all(axis=1) | (x == -x[0]).all(axis=1)):
        return False
    matrix = np.eye(1) if value is None else np.asarray(value)
    return np.array_equal(matrix, matrix[0, 0] * np.eye(len(matrix), dtype=matrix.dtype))
