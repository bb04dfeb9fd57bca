"""Two tokens under random heads: the mean cosine of the chain and of its limit, without samples.

The cosine c of two tokens on the sphere is a diffusion in one dimension. With the weights p of a token for itself and q
= 1 - p for the other, u = |a_1|^2 = p^2 + q^2 + 2 p q c and w = <a_1, a_2> = 2 p q + (p^2 + q^2) c, its drift is 2 v q
(1 - c^2) - s^2 (d - 1) u c + s^2 w (d - 2 + c^2), and its squared noise 2 s^2 (1 - c^2) (u - c w). The mean is the
exponential of the generator, at Chebyshev points; the mean of the chain is a power of the operator of one layer, whose
mean over the four entries of a matrix (d = 2) is a Gauss-Hermite sum. Where each layer draws its beta from
`noise_betas`, the noise has other weights p: u and w, and the operator of one layer, are means over these.
"""

import numpy as np
import scipy.linalg


POINTS, NODES = 32, 10


def own_weight(c, beta):
    return 1 / (1 + np.exp(-beta * (1 - c)))


def places():
    """Chebyshev points of [-1, 1], and the matrix of derivatives at these."""
    k = np.arange(POINTS + 1)
    x = np.cos(np.pi * k / POINTS)
    sign = np.where((k == 0) | (k == POINTS), 2.0, 1.0) * (-1.0) ** k
    matrix = np.outer(sign, 1 / sign) / (x[:, None] - x[None, :] + np.eye(POINTS + 1))
    return x, matrix - np.diag(matrix.sum(axis=1))


def values_at(c, coefficients):
    return np.polynomial.chebyshev.chebval(c, coefficients)


def limit(c0, t, beta, v, s, d=2, noise_betas=None):
    """The mean cosine at time t of the limit."""
    c, slope = places()
    q = 1 - own_weight(c, beta)
    p = np.array([own_weight(c, b) for b in noise_betas or (beta,)])
    u = np.mean(p * p + (1 - p) ** 2 + 2 * p * (1 - p) * c, axis=0)
    w = np.mean(2 * p * (1 - p) + (p * p + (1 - p) ** 2) * c, axis=0)
    drift = 2 * v * q * (1 - c * c) - s * s * (d - 1) * u * c + s * s * w * (d - 2 + c * c)
    square = 2 * s * s * (1 - c * c) * (u - c * w)
    mean = scipy.linalg.expm(t * (drift[:, None] * slope + square[:, None] / 2 * (slope @ slope))) @ c
    return float(values_at(c0, np.polynomial.chebyshev.chebfit(c, mean, POINTS)))


def layer(x, step, beta, v, s, matrix, noise_beta=None):
    """One layer of two tokens, (2, d), with the matrix of its random head; the mean head is v times the identity."""
    p = own_weight(float(x[0] @ x[1]), beta)
    average = np.array([[p, 1 - p], [1 - p, p]]) @ x
    p = own_weight(float(x[0] @ x[1]), beta if noise_beta is None else noise_beta)
    pushed = np.array([[p, 1 - p], [1 - p, p]]) @ x
    moved = []
    for i in range(2):
        pull = v * average[i]
        pull = pull - (pull @ x[i]) * x[i]
        y = x[i] + step * pull + np.sqrt(step) * s * matrix @ pushed[i]
        moved.append(y / np.sqrt(y @ y))
    return np.array(moved)


def chain(c0, layers, step, beta, v, s, noise_betas=None):
    """The mean cosine after some layers, for d = 2."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    matrices = np.stack(np.meshgrid(nodes, nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2, 2)
    shares = np.einsum("a,b,c,d->abcd", weights, weights, weights, weights).ravel()
    c, _ = places()
    degrees = np.arange(POINTS + 1)
    operator = np.zeros((POINTS + 1, POINTS + 1))  # from Chebyshev coefficients to values after one layer
    for row, cosine in enumerate(c):
        x = np.array([[1.0, 0.0], [cosine, np.sqrt(max(1 - cosine * cosine, 0.0))]])
        p = own_weight(cosine, beta)
        average = np.array([[p, 1 - p], [1 - p, p]]) @ x
        pull = v * average
        pull = pull - np.sum(pull * x, axis=1, keepdims=True) * x
        for b in noise_betas or (beta,):
            p = own_weight(cosine, b)
            pushed = np.array([[p, 1 - p], [1 - p, p]]) @ x
            y = x + step * pull + np.sqrt(step) * s * np.einsum("gab,ib->gia", matrices, pushed)
            y = y / np.linalg.norm(y, axis=2, keepdims=True)
            angle = np.arccos(np.clip(np.sum(y[:, 0] * y[:, 1], axis=1), -1, 1))
            operator[row] += shares @ np.cos(angle[:, None] * degrees) / len(noise_betas or (beta,))
    coefficients = np.polynomial.chebyshev.chebfit(c, c, POINTS)
    for _ in range(layers):
        coefficients = np.polynomial.chebyshev.chebfit(c, operator @ coefficients, POINTS)
    return float(values_at(c0, coefficients))
