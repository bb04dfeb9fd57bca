r"""The circle: $e^{\kappa\cos\theta} = I_0 + 2\sum_k I_k(\kappa)\cos k\theta$, moments $\sum_j m_j e^{ik\theta_j}$.

The index is split, k = a + P b, so that moments and sums are products of small matrices: cosine and sine of $a\theta$,
a < P (baby steps), times those of $P b\theta$, b < R (giant steps). Powers are built by doubling, which keeps their
rounding errors logarithmic in k.
"""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import i0e
from jaxtyping import Array, Float

from ..._custom_types import Masses, Scalar, Tokens
from ..._misc import matmul
from .bessel import held_scale, length_and_direction, scaled_bessel
from .derived import Derived, derived, split, with_derivatives
from .lengths import OneLength, make_one_length, one_length_sums
from .rounding import POWER, TokenRounding, at_one_length, bessel_units, length_of
from .series import AbstractSeries


class CircleSeries(AbstractSeries):
    """The circle, for queries of one length: matrix products, whose cost hardly grows with the degree.

    **Arguments:**

    - `degree`: The highest frequency that is kept.

    ??? cite "Source"

        The Jacobi-Anger expansion, DLMF 10.35.2; in baby and giant steps, this library.
    """

    degree: int
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return _chunk_size(dtype, causal)

    def empty(self, dtype: Any) -> Float[Array, "two frequencies"]:
        return _empty(self.degree, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Float[Array, "two frequencies"]:
        return _moments(self.degree, tokens, masses)

    def coefficients(self, moments: Float[Array, "two frequencies"], length: Scalar) -> OneLength:
        return make_one_length(self._mixture, moments, length)

    def evaluate(self, queries: Tokens, coefficients: OneLength) -> tuple[Float[Array, " n"], Float[Array, "n two"]]:
        return one_length_sums(self._mixture, self._mix, queries, coefficients)

    def token_rounding(self) -> TokenRounding:
        return _TOKEN_ROUNDING

    def noise(self, moments: Float[Array, "two frequencies"], length: Scalar, gradients: bool) -> Scalar:
        P, R = _split(self.degree)
        sizes = length_of(_fourier(_functions(moments, gradients), self.degree), 0)
        # Features and their products, the sums over baby and giant steps, twice for cosine and sine.
        units = 4 + math.sqrt(2) * (2 * P + 2 * R + 6) + POWER * np.arange(self.degree + 1)
        units = jnp.asarray(units + bessel_units(self.degree), moments.dtype)
        return at_one_length(sizes * units[None], length, 2)

    def rounding(self, noise: Scalar, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(noise, lengths.shape)

    def _mixture(self, moments: Float[Array, "two frequencies"], length: Scalar) -> Float[Array, "sums giants babies"]:
        """How much of each product of a giant and a baby step is in each sum."""
        P, R = _split(self.degree)
        first = _fourier(derived(moments, _times_coordinates).first, self.degree)
        weighted = first * scaled_bessel(length, self.degree, 2)[None, None]
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
        mixed = matmul(mixture.reshape(sums * rows, columns), babies).reshape(sums, rows, -1)
        found = jnp.sum(mixed * giants[None], axis=1)
        return found[0], found[1:].T


class GeneralCircleSeries(AbstractSeries):
    """The circle, for queries of any lengths: one downward pass through the ratios of the Bessel functions.

    **Arguments:**

    - `degree`: The highest frequency that is kept.

    ??? cite "Source"

        The Jacobi-Anger expansion, DLMF 10.35.2; in baby and giant steps, this library.
    """

    degree: int
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return _chunk_size(dtype, causal)

    def empty(self, dtype: Any) -> Float[Array, "two frequencies"]:
        return _empty(self.degree + 1, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Float[Array, "two frequencies"]:
        return _moments(self.degree + 1, tokens, masses)

    def coefficients(self, moments: Float[Array, "two frequencies"], length: Scalar) -> Derived:
        P, R = _split(self.degree)

        def by_steps(parts):
            padded = jnp.pad(_fourier(parts, self.degree), ((0, 0), (0, 0), (0, P * R - self.degree - 1)))
            return padded.transpose(2, 0, 1).reshape(R, P, 2, -1)

        return Derived(*map(by_steps, derived(moments, _times_coordinates)))

    def evaluate(self, queries: Tokens, coefficients: Derived) -> tuple[Float[Array, " n"], Float[Array, "n two"]]:
        return split(_sums_by_ratios(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return _TOKEN_ROUNDING

    def noise(self, moments: Float[Array, "two frequencies"], length: Scalar, gradients: bool) -> Scalar:
        return jnp.max(length_of(_functions(moments, gradients)[:, :, : self.degree + 1], 1))

    def rounding(self, noise: Scalar, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        # A term of frequency k goes through k steps of three roundings, after ratios that err by three each; the mean
        # frequency is at most the root of the length.
        return noise * (20 + (POWER + 3 + 3 + 2.7) * jnp.sqrt(lengths))


_TOKEN_ROUNDING = TokenRounding(4.0, POWER)


def _functions(moments: Float[Array, "two frequencies"], gradients: bool) -> Float[Array, "functions two frequencies"]:
    return derived(moments, _times_coordinates).first if gradients else moments[None]


def _by_ratios(
    degree: int, queries: Tokens, coefficients: Float[Array, "R P two functions"]
) -> Float[Array, "functions n"]:
    """The sums for queries of any length."""
    P, R = _split(degree)
    kappa, direction = length_and_direction(queries)
    babies, giants = _steps(direction, degree)
    top = P * R - 1
    start = kappa / (top + 0.5 + jnp.sqrt((top + 1.5) ** 2 + kappa * kappa))

    def giant_step(carry, step):
        ratio, *sums = carry
        first, cosine, sine, terms = step
        for a in reversed(range(P)):
            c, s = babies[a] * cosine - babies[P + a] * sine, babies[P + a] * cosine + babies[a] * sine
            ratio = kappa / (2 * (first + a) + kappa * ratio)
            # Of frequency zero the terms stand by themselves: I_0 is the factor of everything, at the end.
            factor = ratio if a > 0 else jnp.where(first == 0, jnp.ones_like(ratio), ratio)
            sums = [factor * (terms[a, 0, i] * c + terms[a, 1, i] * s + one) for i, one in enumerate(sums)]
        return (ratio, *sums), None

    firsts = P * jnp.arange(R).astype(queries.dtype)
    steps = (firsts, giants[:R], giants[R:], coefficients)
    zeros = [jnp.zeros_like(kappa)] * coefficients.shape[-1]
    (_, *sums), _ = lax.scan(giant_step, (start, *zeros), steps, reverse=True)
    return (i0e(kappa) * held_scale(kappa))[None] * jnp.stack(sums)


_sums_by_ratios = with_derivatives(
    lambda degree, queries, known: _by_ratios(degree, queries, known.first),
    lambda degree, queries, known: _by_ratios(degree, queries, known.second),
)


def _chunk_size(dtype: Any, causal: bool) -> int:
    return 128 if causal else 32768 // jnp.dtype(dtype).itemsize


def _split(degree: int) -> tuple[int, int]:
    """Baby and giant steps that reach the frequency `degree` + 1."""
    babies = math.ceil(math.sqrt(degree + 2))
    return babies, math.ceil((degree + 2) / babies)


def _steps(x: Tokens, degree: int) -> tuple[Float[Array, "babies n"], Float[Array, "giants n"]]:
    """Cosine, then sine, of the baby steps and of the giant steps of each token's angle."""
    P, R = _split(degree)
    one, zero = jnp.ones_like(x[:, 0]), jnp.zeros_like(x[:, 0])
    babies = _powers((one, zero), (x[:, 0], x[:, 1]), P + 1)
    giants = _powers((one, zero), babies[P], R)
    return _stacked(babies[:P]), _stacked(giants)


def _stacked(powers: list) -> Float[Array, "steps n"]:
    return jnp.stack([cosine for cosine, _ in powers] + [sine for _, sine in powers])


def _powers(one, base, count: int) -> list:
    """The powers 0, ..., `count` - 1 of a number e^{i theta}, each a product of two of about half the exponent."""
    powers = [one, base]
    for k in range(2, count):
        (c, s), (cosine, sine) = powers[k // 2], powers[k - k // 2]
        powers.append((c * cosine - s * sine, s * cosine + c * sine))
    return powers[:count]


def _empty(degree: int, dtype: Any) -> Float[Array, "two frequencies"]:
    return jnp.zeros((2, degree + 2), dtype)


def _moments(degree: int, tokens: Tokens, masses: Masses) -> Float[Array, "two frequencies"]:
    """The sums of m cos k theta and of m sin k theta, k = 0, ..., `degree` + 1."""
    P, R = _split(degree)
    babies, giants = _steps(tokens, degree)
    products = matmul(giants * masses[None], babies.T).reshape(2, R, 2, P)
    cosine, sine = products[0, :, 0] - products[1, :, 1], products[1, :, 0] + products[0, :, 1]
    return jnp.stack([cosine.ravel(), sine.ravel()])[:, : degree + 2]


def _times_coordinates(parts: Float[Array, "two frequencies"]) -> Float[Array, "coordinates two frequencies"]:
    """The moments of m x and of m y: a product shifts the frequency by one either way, and the highest is not whole."""
    cosine, sine = parts
    cosine_after, sine_after = jnp.pad(parts[:, 1:], ((0, 0), (0, 1)))
    cosine_before = jnp.concatenate([cosine[1:2], cosine[:-1]])
    sine_before = jnp.concatenate([-sine[1:2], sine[:-1]])
    x = jnp.stack([cosine_after + cosine_before, sine_after + sine_before])
    y = jnp.stack([sine_after - sine_before, cosine_before - cosine_after])
    return jnp.stack([x, y]) / 2


def _fourier(sets: Float[Array, "functions two frequencies"], degree: int) -> Float[Array, "two functions fewer"]:
    """The coefficients of cos k phi and sin k phi, k <= `degree`, before the Bessel functions, of sets of moments."""
    return sets.swapaxes(0, 1)[:, :, : degree + 1].at[:, :, 1:].multiply(2)
