"""Velocities and layers as the papers write them: plain loops over tokens, in double precision."""

import math

import numpy as np
import scipy.linalg


def unit(vector):
    """A vector divided by its length."""
    return vector / math.sqrt(math.fsum(float(v) ** 2 for v in vector))


def tangent(point, vector):
    """P_x v = v - <x, v> x / |x|^2."""
    along = math.fsum(float(p) * float(v) for p, v in zip(point, vector, strict=True))
    size = math.fsum(float(p) ** 2 for p in point)
    return vector - along / size * point


def velocity(x, weights, value=None, sphere=True):
    """P_{x_i} sum_j w_ij V x_j at the points x_i / |x_i|; without `sphere`, sum_j w_ij V x_j at x_i itself.

    `weights` gives the matrix of attention of the points at which the field is evaluated.
    """
    n, d = x.shape
    points = np.array([unit(row) for row in x]) if sphere else np.array(x)
    w, v = weights(points), np.eye(d) if value is None else np.asarray(value)
    out = np.zeros((n, d))
    for i in range(n):
        for j in range(n):
            out[i] += w[i, j] * (v @ points[j])
        if sphere:
            out[i] = tangent(points[i], out[i])
    return out


def heads(x, weights, values, sphere=True):
    """The sum over heads, projected once: P_{x_i} sum_h sum_j w^h_ij V_h x_j."""
    n, d = x.shape
    points = np.array([unit(row) for row in x]) if sphere else np.array(x)
    total = np.zeros((n, d))
    for weigh, value in zip(weights, values, strict=True):
        total += velocity(points, weigh, value, sphere=False)
    return np.array([tangent(points[i], total[i]) for i in range(n)]) if sphere else total


def perceptron(x, w_in, w_out, activation, bias_in=None, bias_out=None, sphere=True):
    """P_{x_i}(W_out s(W_in x_i + b_in) + b_out), neuron by neuron."""
    m, d = w_in.shape
    out = np.zeros(x.shape)
    for i in range(x.shape[0]):
        point = unit(x[i]) if sphere else x[i]
        for neuron in range(m):
            before = float(w_in[neuron] @ point) + (0.0 if bias_in is None else float(bias_in[neuron]))
            out[i] += activation(before) * w_out[:, neuron]
        out[i] += 0.0 if bias_out is None else bias_out
        if sphere:
            out[i] = tangent(point, out[i])
    return out


def rescaled(t, z, weights, value):
    """sum_j P_ij V (z_j - z_i), with P the attention of the tokens e^{tV} z."""
    n, d = z.shape
    grown = np.array([scipy.linalg.expm(t * value) @ row for row in z])
    w = weights(grown)
    out = np.zeros((n, d))
    for i in range(n):
        for j in range(n):
            out[i] += w[i, j] * (value @ (z[j] - z[i]))
    return out


def rescaled_symmetric(t, z, value, beta):
    """The same for a symmetric V and softmax attention, at any t: scores are compared as logarithms.

    <e^{tV} z_i, e^{tV} z_j> = sum_k e^{2 t lambda_k} c_ik c_jk in the eigenbasis; all of it is divided by the largest
    e^{2 t lambda_k}, whose size is put back into the differences of scores, where it overflows to infinity.
    """
    n, d = z.shape
    lambdas, basis = np.linalg.eigh(value)
    c = z @ basis
    top = lambdas.max()
    size = math.exp(min(2 * t * top + math.log(beta), 700.0))
    out = np.zeros((n, d))
    for i in range(n):
        score = [sum(math.exp(2 * t * (lambdas[k] - top)) * c[i, k] * c[j, k] for k in range(d)) for j in range(n)]
        terms = [math.exp(size * (s - max(score))) for s in score]
        for j in range(n):
            out[i] += terms[j] / sum(terms) * (value @ (z[j] - z[i]))
    return out


def layers(x, field, step, depth, sphere=True):
    """The tokens after each of `depth` residual layers x + step field(k step, x), normalised if on the sphere."""
    saved = [np.array([unit(row) for row in x]) if sphere else np.array(x)]
    for k in range(depth):
        moved = saved[-1] + step * field(k * step, saved[-1])
        saved.append(np.array([unit(row) for row in moved]) if sphere else moved)
    return np.array(saved)
