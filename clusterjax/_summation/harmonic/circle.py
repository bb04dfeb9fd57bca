"""The circle: $exp(κ cos θ) = I_0 + 2 ∑_k I_k(κ) cos kθ$, moments $∑_j m_j exp(ikθ_j)$.

**Algorithm.** Baby and giant steps: the index is split, k = a + P b, so that moments and sums are products of small
matrices: cosine and sine of aθ, a < P (baby steps), times those of P bθ, b < R (giant steps). A token needs about 2
sqrt(K) powers instead of K.

**Reference.** Jacobi and Anger, DLMF 10.35.2; Paterson and Stockmeyer (1973) for the split, there of polynomials.

**Invariants.** Powers are built by repeated squaring, a power of k from those of about k / 2, so that their rounding
errors grow with k by `POWER`. Moments hold one frequency more than the series, and two more if the coefficients include
the Hessian.
"""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import i0e
from jaxtyping import Array, Float

from ..._base.numerics import matmul
from ..._base.types import Masses, Scalar, Tokens
from .series import (
    POWER,
    AbstractSeries,
    Derived,
    OneLength,
    TokenRounding,
    at_one_length,
    bessel_units,
    derived,
    held_scale,
    length_and_direction,
    make_one_length,
    norm,
    one_length_sums,
    scaled_bessel,
    split,
    with_any_lengths,
)


def _functions(moments: Float[Array, "two frequencies"], gradients: bool) -> Float[Array, "functions two frequencies"]:
    """The moments for the sums of mass and of mass times coordinates, or of mass alone."""
    return derived(moments, _times_coordinates).first if gradients else moments[None]


def _by_ratios(
    degree: int, queries: Tokens, coefficients: Float[Array, "R P two functions"]
) -> Float[Array, "functions n"]:
    """The sums for queries of any length, by Horner's rule in the ratios $r_k = I_k / I_{k-1}$.

    $∑_k I_k t_k = I_0 (t_0 + r_1 (t_1 + r_2 (t_2 + ...)))$ with the ratios from the backward recurrence, which runs in
    the direction of Horner's rule: one pass needs no table of Bessel functions for each query.
    """
    P, R = _step_counts(degree)
    kappa, direction = length_and_direction(queries)
    babies, giants = _steps(direction, degree)
    top = P * R - 1
    # The start lies between bounds of the highest ratio, as in `bessel_ratios`; its error decays on the way down.
    start = kappa / (top + 0.5 + jnp.sqrt((top + 1.5) ** 2 + kappa * kappa))

    def giant_step(carry, step):
        ratio, *sums = carry
        first, cosine, sine, terms = step
        for a in reversed(range(P)):
            # The cosine and sine of frequency first + a.
            c, s = babies[a] * cosine - babies[P + a] * sine, babies[P + a] * cosine + babies[a] * sine
            ratio = kappa / (2 * (first + a) + kappa * ratio)
            # At frequency zero, the factor is one, since I_0 multiplies the whole sum at the end.
            factor = ratio if a > 0 else jnp.where(first == 0, jnp.ones_like(ratio), ratio)
            sums = [factor * (terms[a, 0, i] * c + terms[a, 1, i] * s + inner) for i, inner in enumerate(sums)]
        return (ratio, *sums), None

    firsts = P * jnp.arange(R).astype(queries.dtype)
    steps = (firsts, giants[:R], giants[R:], coefficients)
    zeros = [jnp.zeros_like(kappa)] * coefficients.shape[-1]
    (_, *sums), _ = lax.scan(giant_step, (start, *zeros), steps, reverse=True)
    return (i0e(kappa) * held_scale(kappa))[None] * jnp.stack(sums)


_sums_by_ratios = with_any_lengths(_by_ratios)


def _step_counts(degree: int) -> tuple[int, int]:
    """The numbers of baby steps, P, and giant steps, R, with P R > `degree` + 1; both near the square root."""
    babies = math.ceil(math.sqrt(degree + 2))
    return babies, math.ceil((degree + 2) / babies)


def _steps(x: Tokens, degree: int) -> tuple[Float[Array, "babies n"], Float[Array, "giants n"]]:
    """The cosines, then the sines, of the baby steps and of the giant steps of each token's angle."""
    P, R = _step_counts(degree)
    unit = jnp.ones_like(x[:, 0]), jnp.zeros_like(x[:, 0])
    # Power P of the baby steps is the base of the giant steps.
    babies = _powers(unit, (x[:, 0], x[:, 1]), P + 1)
    giants = _powers(unit, babies[P], R)
    return _stacked(babies[:P]), _stacked(giants)


def _stacked(powers: list) -> Float[Array, "steps n"]:
    return jnp.stack([cosine for cosine, _ in powers] + [sine for _, sine in powers])


def _powers(unit, base, count: int) -> list:
    """The powers 0, ..., `count` - 1 of a number e^{i theta}, each a product of two of about half the exponent."""
    powers = [unit, base]
    for k in range(2, count):
        (c, s), (cosine, sine) = powers[k // 2], powers[k - k // 2]
        # The product e^{i a} e^{i b} in real arithmetic.
        powers.append((c * cosine - s * sine, s * cosine + c * sine))
    return powers[:count]


def _moments(degree: int, tokens: Tokens, masses: Masses) -> Float[Array, "two frequencies"]:
    """The sums of m cos k theta and of m sin k theta, k = 0, ..., `degree` + 1."""
    P, R = _step_counts(degree)
    babies, giants = _steps(tokens, degree)
    # (2R, n) times (n, 2P) gives all products of cosines and sines; the addition theorem combines them to frequency k.
    products = matmul(giants * masses[None], babies.T).reshape(2, R, 2, P)
    cosine, sine = products[0, :, 0] - products[1, :, 1], products[1, :, 0] + products[0, :, 1]
    return jnp.stack([cosine.ravel(), sine.ravel()])[:, : degree + 2]


def _times_coordinates(parts: Float[Array, "two frequencies"]) -> Float[Array, "coordinates two frequencies"]:
    """The moments of m x and of m y; the highest frequency is incomplete.

    A product shifts the frequency by one in both directions, as in 2 cos t cos kt = cos (k + 1)t + cos (k - 1)t.
    """
    cosine, sine = parts
    cosine_after, sine_after = jnp.pad(parts[:, 1:], ((0, 0), (0, 1)))
    # Frequency -1 is the conjugate of frequency 1.
    cosine_before = jnp.concatenate([cosine[1:2], cosine[:-1]])
    sine_before = jnp.concatenate([-sine[1:2], sine[:-1]])
    x = jnp.stack([cosine_after + cosine_before, sine_after + sine_before])
    y = jnp.stack([sine_after - sine_before, cosine_before - cosine_after])
    return jnp.stack([x, y]) / 2


def _fourier(sets: Float[Array, "functions two frequencies"], degree: int) -> Float[Array, "two functions fewer"]:
    """The coefficients of cos k phi and sin k phi, k <= `degree`, before the Bessel functions, of sets of moments."""
    # Frequency zero occurs once, the others twice, as e^{ik} and e^{-ik}.
    return sets.swapaxes(0, 1)[:, :, : degree + 1].at[:, :, 1:].multiply(2)


class CircleSeries(AbstractSeries):
    """Cosines and sines for tokens in the plane.

    For queries of one length, matrix products have a cost almost independent of the degree; for queries of any lengths,
    there is one downward pass over the ratios of Bessel functions.
    """

    dimension: ClassVar[int] = 2
    token_rounding: ClassVar[TokenRounding] = TokenRounding(4.0, POWER)

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        # Causal sums compute all pairs within a chunk; full sums compute only waves, which should fit the cache.
        return 128 if causal else 32768 // jnp.dtype(dtype).itemsize

    def empty(self, dtype: Any) -> Float[Array, "two frequencies"]:
        return jnp.zeros((2, self.degree + (2 if self.one_length else 3)), dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Float[Array, "two frequencies"]:
        return _moments(self.degree if self.one_length else self.degree + 1, tokens, masses)

    def coefficients(self, moments: Float[Array, "two frequencies"], length: Scalar) -> OneLength | Derived:
        if self.one_length:
            return make_one_length(self._mixture, moments, length)
        P, R = _step_counts(self.degree)

        def by_steps(parts):
            # The transpose from (2, sums, R P) to (R, P, 2, sums) lets the scan over giant steps use the first axis.
            padded = jnp.pad(_fourier(parts, self.degree), ((0, 0), (0, 0), (0, P * R - self.degree - 1)))
            return padded.transpose(2, 0, 1).reshape(R, P, 2, -1)

        return Derived(*map(by_steps, derived(moments, _times_coordinates)))

    def evaluate(self, queries: Tokens, coefficients: Any) -> tuple[Float[Array, " n"], Float[Array, "n two"]]:
        if self.one_length:
            return one_length_sums(self._mixture, self._mix, queries, coefficients)
        return split(_sums_by_ratios(self.degree, queries, coefficients))

    def error_terms(self, moments: Float[Array, "two frequencies"], length: Scalar, gradients: bool) -> Scalar:
        if not self.one_length:
            # The largest moment of any frequency is used, since `rounding` has no sum over frequencies for each query.
            return jnp.max(norm(_functions(moments, gradients)[:, :, : self.degree + 1], 1))
        P, R = _step_counts(self.degree)
        sizes = norm(_fourier(_functions(moments, gradients), self.degree), 0)
        # The features and their products, then the sums over baby and giant steps, twice for cosine and sine.
        units = 4 + math.sqrt(2) * (2 * P + 2 * R + 6) + POWER * np.arange(self.degree + 1)
        # The error of a frequency is proportional to its moment; `at_one_length` multiplies by the Bessel functions.
        units = jnp.asarray(units + bessel_units(self.degree), moments.dtype)
        return at_one_length(sizes * units[None], length, 2)

    def rounding(self, error_terms: Scalar, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        if self.one_length:
            return jnp.broadcast_to(error_terms, lengths.shape)
        # A term of frequency k passes through k steps of three roundings, after ratios with errors of three roundings
        # each; the mean frequency is at most the root of the length.
        return error_terms * (20 + (POWER + 3 + 3 + 2.7) * jnp.sqrt(lengths))

    def _mixture(self, moments: Float[Array, "two frequencies"], length: Scalar) -> Float[Array, "sums giants babies"]:
        """The coefficient of each product of a giant and a baby step, cosines first, then sines, in each sum."""
        P, R = _step_counts(self.degree)
        first = _fourier(derived(moments, _times_coordinates).first, self.degree)
        weighted = first * scaled_bessel(length, self.degree, 2)[None, None]
        # Zeros pad the coefficients of frequencies 0 to degree to R P. For each of the sums of 1, x and y, they form a
        # table, (giant steps, baby steps), of the frequencies a + P b.
        cosine, sine = jnp.pad(weighted, ((0, 0), (0, 0), (0, P * R - self.degree - 1))).reshape(2, 3, R, P)
        # cos(a + Pb) = cos a cos Pb - sin a sin Pb, sin(a + Pb) = sin a cos Pb + cos a sin Pb.
        of_cosine = jnp.concatenate([cosine, sine], axis=2)
        of_sine = jnp.concatenate([sine, -cosine], axis=2)
        return jnp.concatenate([of_cosine, of_sine], axis=1)

    def _mix(
        self, directions: Tokens, mixture: Float[Array, "sums giants babies"]
    ) -> tuple[Float[Array, " n"], Float[Array, "n two"]]:
        babies, giants = _steps(directions, self.degree)
        sums, rows, columns = mixture.shape
        # One matrix product over the baby steps, (sums * 2R, 2P) times (2P, n), precedes a weighted sum over the giant
        # steps.
        mixed = matmul(mixture.reshape(sums * rows, columns), babies).reshape(sums, rows, -1)
        totals = jnp.sum(mixed * giants[None], axis=1)
        return totals[0], totals[1:].T
