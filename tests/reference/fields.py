"""Velocities and layers as the papers write them: plain loops over tokens, in double precision."""

import cmath
import math

import numpy as np
import scipy.linalg


def unit(vector):
    """A vector divided by its norm."""
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


def factored_heads(
    x, betas, query, key, value, output, allowed, masses=None, bias=None, angles=None, normalise=True, sphere=True
):
    """`heads` for heads in factors, token by token; `angles` (n, k/2) turn the pairs (a, a + k/2) of queries and keys.

    A token that may attend to no mass has no velocity.
    """
    n, d = x.shape
    points = np.array([unit(row) for row in x]) if sphere else np.array(x)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    total = np.zeros((n, d))
    for h, (q, k, v, o) in enumerate(zip(query, key, value, output, strict=True)):
        half = q.shape[1] // 2

        def turned(row, i, half=half):
            if angles is None:
                return row
            # Complex numbers turn pairs in another way than the package does.
            pairs = [complex(row[a], row[a + half]) * cmath.exp(1j * angles[i][a]) for a in range(half)]
            return np.array([pair.real for pair in pairs] + [pair.imag for pair in pairs])

        for i in range(n):
            seen = [j for j in range(n) if allowed(i, j) and mass[j] > 0]
            score = {
                j: betas[h] * (math.fsum(turned(points[i] @ q, i) * turned(points[j] @ k, j))
                               + (0.0 if bias is None else bias[h][i][j]))
                for j in seen
            }  # fmt: skip
            top = max(score.values(), default=0.0) if normalise else 0.0
            terms = {j: mass[j] * math.exp(score[j] - top) for j in seen}
            size = math.fsum(terms.values()) if normalise else math.fsum(mass[j] for j in range(n) if allowed(i, j))
            for j in seen:
                total[i] += terms[j] / size * ((points[j] @ v) @ o)
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
    """`rescaled` for a symmetric V and softmax attention, at any t: scores are scaled so that none overflows.

    <e^{tV} z_i, e^{tV} z_j> = sum_k e^{2 t lambda_k} c_ik c_jk in the eigenbasis; scores are divided by the largest
    e^{2 t lambda_k}, by which the differences of scores are multiplied again, capped at e^700.
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


def block_of_decoder(x, scale, query, key, value, output, heads, shared, allowed, radius, beta=1.0, turn=None):
    """P_x of the update by the attention of a pre-norm block without biases, of tokens of norm `radius`, over `radius`.

    Weights have the shape of PyTorch's, (out, in); the norm maps a token x to sqrt(d) `scale` x / |x|; each of the
    `shared` heads of keys and values serves consecutive heads of queries; `turn` rotates rows of queries and keys.
    """
    n, d = x.shape
    points = np.array([unit(row) for row in x])
    read = np.array([[math.sqrt(d) * float(s) * float(v) for s, v in zip(scale, row, strict=True)] for row in points])
    maps = [read @ np.asarray(weight, float).T for weight in (query, key, value)]
    maps[:2] = [rows if turn is None else turn(rows) for rows in maps[:2]]
    k = maps[0].shape[1] // heads
    attended = np.zeros((n, heads * k))
    for h in range(heads):
        mine = slice(h * k, h * k + k)
        theirs = slice(h // (heads // shared) * k, h // (heads // shared) * k + k)
        for i in range(n):
            seen = [j for j in range(n) if allowed(i, j)]
            score = [beta / math.sqrt(k) * float(maps[0][i, mine] @ maps[1][j, theirs]) for j in seen]
            terms = [math.exp(s - max(score)) for s in score]
            for j, term in zip(seen, terms, strict=True):
                attended[i, mine] += term / math.fsum(terms) * maps[2][j, theirs]
    moved = attended @ np.asarray(output, float).T / radius
    return np.array([tangent(point, row) for point, row in zip(points, moved, strict=True)])


def euler(x, velocity, times, step):
    """x at each of `times`, by Euler steps x + step velocity(t, x), each followed by x / |x|."""
    x, saved, count = np.array([unit(row) for row in x]), [], 0
    for time in times:
        while count * step < time - step / 2:
            x = x + step * velocity(count * step, x)
            x, count = np.array([unit(row) for row in x]), count + 1
        saved.append(x)
    return np.array(saved)


def bogacki_shampine(x, velocity, steps, per_unit):
    """x at 0, 1, ..., `steps` by the method of order three, `per_unit` steps in a unit of time, without retraction."""
    saved, h = [np.array(x, float)], 1 / per_unit
    for unit_of_time in range(steps):
        x = saved[-1]
        for part in range(per_unit):
            t = unit_of_time + part * h
            first = velocity(t, x)
            second = velocity(t + h / 2, x + h / 2 * first)
            third = velocity(t + 3 * h / 4, x + 3 * h / 4 * second)
            x = x + h * (2 * first + 3 * second + 4 * third) / 9
        saved.append(x)
    return np.array(saved)
