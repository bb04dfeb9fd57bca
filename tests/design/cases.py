"""A small inverse problem, whose compiled fit all tests of `recover` share."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np

from clusterjax import AttentionField, SoftmaxAttention, Sphere, simulate
from tests.helpers import normal


TS = np.array([0.0, 0.5, 1.0, 1.5])
BETA = 1.5
# Heun's method has steps of 0.25, as in the reference.
SCHEME = {"solver": dfx.Heun(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.25, "max_steps": 64}
PICK = lambda field: (field.attention.beta, field.attention.query_key, field.value)


def start(n=5, d=2):
    return Sphere().retract(normal(3, n, d))


def field_of(beta, form, value):
    return AttentionField(SoftmaxAttention(beta, query_key=form), value)


def truth(d=2):
    form, value = np.asarray(normal(4, 2, d, d))
    return field_of(BETA, np.eye(d) + form / 2, np.eye(d) + value / 2)


def guess(d=2):
    return field_of(1.0, np.eye(d), np.eye(d))


def observed(field, x0):
    return simulate(field, x0, jnp.asarray(TS), **SCHEME).xs
