"""Exact formulas from the theory of attention dynamics, in NumPy and SciPy, with which the tests compare the package.

Nothing here imports clusterjax. `gamma` is the common cosine of equiangular tokens, `c` the cosine of a pair, `beta`
the inverse temperature. SA and USA are softmax and unnormalised self-attention.
"""

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import exp1, expi, gamma as gamma_function, ive, lambertw


# Clouds of tokens.


def unit_tokens(seed, n, d):
    """n uniform unit vectors."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def equiangular_tokens(n, d, gamma):
    """n unit vectors of R^d, d >= n, with <x_i, x_j> = gamma for all i != j: the root of their Gram matrix."""
    values, vectors = np.linalg.eigh((1 - gamma) * np.eye(n) + gamma)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    return np.pad(root, ((0, 0), (0, d - n)))


def circle_tokens(angles):
    """Unit vectors of the plane at the given angles."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


# Equiangular data: 2312.10794, Section 6, and oracle 1.2.


def equiangular_rate(gamma, n, beta, *, softmax=True):
    """gamma' for SA or USA."""
    common = 2 * (1 - gamma) * ((n - 1) * gamma + 1)
    return common / (np.exp(beta * (1 - gamma)) + n - 1) if softmax else common * np.exp(beta * gamma) / n


def equiangular_time(gamma, n, beta, gamma0=0.0, *, softmax=True):
    """The time at which the cosine is gamma: the exact inverse, by exponential integrals."""
    a = 1 / (n - 1)
    logs = np.log(((n - 1) * gamma + 1) * (1 - gamma0) / ((1 - gamma) * ((n - 1) * gamma0 + 1)))
    if beta == 0:
        return logs / 2
    repelled = expi(beta * (1 - gamma0)) - expi(beta * (1 - gamma))
    attracted = exp1(beta * (gamma0 + a)) - exp1(beta * (gamma + a))
    if softmax:
        return ((n - 1) * logs + repelled + np.exp(beta * (1 + a)) * attracted) / (2 * n)
    return (np.exp(-beta) * repelled + np.exp(beta * a) * attracted) / 2


def equiangular_cosine(t, n, beta, gamma0=0.0, *, softmax=True):
    """gamma(t), by solving `equiangular_time` for it."""
    gap = lambda s: equiangular_time(-np.expm1(-s), n, beta, gamma0, softmax=softmax) - t
    start = -np.log1p(-gamma0)
    return -np.expm1(-brentq(gap, start, start + 34, xtol=1e-15, rtol=1e-14))


def equiangular_sensitivity(t, n, beta, gamma0=0.0):
    """The derivative of gamma(t) with respect to beta, for SA."""
    gamma = equiangular_cosine(t, n, beta, gamma0)
    integrand = lambda s: np.exp(beta * (1 - s)) / (2 * ((n - 1) * s + 1))
    integral = quad(integrand, gamma0, gamma, epsabs=0, epsrel=1e-13, limit=400)[0]
    return -integral * equiangular_rate(gamma, n, beta)


# Two clusters: oracle 1.3.


def pair_rate(c, beta, mass):
    """c' for SA with two clusters of masses `mass` and 1 - `mass`, the exponents shifted by beta."""
    kernel = np.exp(beta * (c - 1))
    other = 1 - mass
    return (1 - c * c) * (other * kernel / (mass + other * kernel) + mass * kernel / (other + mass * kernel))


def pair_time(c0, c, beta, mass=0.5):
    """The time from cosine c0 to cosine c."""
    # The integrand falls like e^{-beta c}; on pieces of a few scales each the quadrature is accurate.
    edges = np.unique(np.clip(np.append(c0 + np.arange(0, 60, 2) / max(beta, 1), c), c0, c))
    integrand = lambda s: 1 / pair_rate(s, beta, mass)
    pieces = [quad(integrand, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in zip(edges, edges[1:], strict=False)]
    return float(np.sum(pieces))


# Energies: oracles E7 and E8.


def scaled_coefficient(degree, beta, d):
    """a_l = Gamma(d/2) (2/beta)^{d/2-1} I_{l+d/2-1}(beta), times e^{-beta}."""
    order = d / 2 - 1
    return gamma_function(d / 2) * (2 / beta) ** order * ive(degree + order, beta)


def coefficient(degree, beta, d):
    """a_l, the Funk-Hecke coefficient of e^{beta t} at degree l."""
    return np.exp(beta) * scaled_coefficient(degree, beta, d)


def polygon_energy(n, beta):
    """The energy of the regular n-gon."""
    orders = n * np.arange(1, 200)
    return np.exp(beta) * (ive(0, beta) + 2 * np.sum(ive(orders, beta))) / (2 * beta)


# Linear phase: oracle 1.5.


def harmonic_rate(degree, beta, d, *, softmax=True):
    """The growth rate of a harmonic perturbation of the uniform measure."""
    factor = degree * (degree + d - 2) / beta
    if softmax:
        return factor * scaled_coefficient(degree, beta, d) / scaled_coefficient(0, beta, d)
    return factor * coefficient(degree, beta, d)


def polygon_eigenvalue(k, n, beta, *, softmax=True):
    """The eigenvalue at wave number k of the regular n-gon: the finite sum over its angles."""
    angles = 2 * np.pi * np.arange(n) / n
    slope = np.exp(beta * np.cos(angles)) * (np.cos(angles) - beta * np.sin(angles) ** 2)
    value = -np.mean(slope * (1 - np.cos(k * angles)))
    return value / np.mean(np.exp(beta * np.cos(angles))) if softmax else value


def polygon_eigenvalue_by_bessel(k, n, beta, *, softmax=True):
    """The eigenvalue of `polygon_eigenvalue` as a sum over the aliases of k."""
    m = np.arange(-60, 61)
    bessel = lambda order: np.exp(beta) * ive(np.abs(order), beta)
    value = np.sum((k + m * n) ** 2 * bessel(k + m * n) - (m * n) ** 2 * bessel(m * n)) / beta
    return value / np.sum(bessel(m * n)) if softmax else value


# Causal attention: oracle 2.


def causal_pair_time(theta0, c, beta):
    """V = I: the time at which token 2, at the angle theta0 from token 1, is at cosine c."""
    c0, theta = np.cos(theta0), np.arccos(c)
    logs = np.log(np.tan(theta0 / 2) / np.tan(theta / 2))
    if beta == 0:
        return 2 * logs
    repelled = expi(beta * (1 - c0)) - expi(beta * (1 - c))
    attracted = np.exp(2 * beta) * (exp1(beta * (1 + c0)) - exp1(beta * (1 + c)))
    return logs + (repelled + attracted) / 2


def interaction_peak(beta):
    """The angle at which e^{beta (cos x - 1)} sin x is largest."""
    return np.arccos((-1 + np.sqrt(4 * beta**2 + 1)) / (2 * beta))


RENYI_PARKING = 0.7475979202534114


# Rescaled dynamics: oracle 3.


def boolean_scale(n):
    """A with A^2 = n^2 e^{-A^2}."""
    return float(np.sqrt(lambertw(n**2).real))


def exceptional_middle_rate(u):
    """u' for the tokens (-u, 0, u) with V = B = 1 in one dimension, rescaled or not."""
    return 2 * u * np.sinh(u * u) / (1 + 2 * np.cosh(u * u))


def pair_time_asymptotic(c0, beta, mass=0.5):
    """The leading term of the merging time for large beta."""
    other = 1 - mass
    return np.exp(beta * (1 - c0)) / (beta * (1 - c0**2) * (mass / other + other / mass))


def fastest_degree(beta, d, *, softmax=True, largest=60):
    """The degree that grows fastest."""
    degrees = np.arange(1, largest)
    return int(degrees[np.argmax(harmonic_rate(degrees, beta, d, softmax=softmax))])
