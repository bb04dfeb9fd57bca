"""The linearised flow by the product rule: plain loops over pairs of tokens, in double precision."""

import math

import numpy as np


def jacobian(x, weights, beta, form=None, value=None, *, normalised=True, sphere=True):
    """The derivative of each velocity by each token, (n, d, n, d), on the sphere between tangent spaces.

    `weights` are the attention of the points at which the field is linearised. On the sphere the derivative of P_x a by
    x, made tangent, is P_x da - <x, a> dx.
    """
    n, d = x.shape
    points = np.array([row / math.sqrt(math.fsum(row**2)) for row in x]) if sphere else np.array(x)
    form, value = (np.eye(d) if matrix is None else np.asarray(matrix, float) for matrix in (form, value))
    out = np.zeros((n, d, n, d))
    for i in range(n):
        average = np.zeros(d)
        for j in range(n):
            average += weights[i, j] * points[j]
        for j in range(n):
            centred = points[j] - average if normalised else points[j]
            # The derivatives by token j as a value, by token j as a key, and by token i as a query.
            out[i, :, j, :] += weights[i, j] * np.eye(d)
            out[i, :, j, :] += beta * weights[i, j] * np.outer(centred, form.T @ points[i])
            out[i, :, i, :] += beta * weights[i, j] * np.outer(centred, form @ points[j])
        for j in range(n):
            out[i, :, j, :] = value @ out[i, :, j, :]
        if sphere:
            here = np.eye(d) - np.outer(points[i], points[i])
            out[i, :, i, :] -= float(points[i] @ value @ average) * np.eye(d)
            for j in range(n):
                out[i, :, j, :] = here @ out[i, :, j, :] @ (np.eye(d) - np.outer(points[j], points[j]))
    return out
