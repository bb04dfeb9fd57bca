"""Cases of `clusterjax.design`: which parameters made a run, lead tokens, keep clusters or delay their merging."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

import clusterjax as cjx
from clusterjax import design
from tests.doors.cases import Case, case
from tests.doors.rules import ARRAY, COUNT, LIST, NONE, POSITIVE


TS = jnp.asarray([0.0, 0.5, 1.0])


@functools.cache
def field() -> cjx.AttentionField:
    return cjx.AttentionField(cjx.SoftmaxAttention(1.0))


@functools.cache
def tokens() -> jax.Array:
    return cjx.Sphere().sample(jax.random.key(0), n=3, d=2)


def beta(field: Any) -> Any:
    return field.attention.beta


@functools.cache
def observed() -> jax.Array:
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(2.0)), tokens(), TS).xs


@functools.cache
def recovery() -> design.Recovery:
    return design.recover(field(), observed(), TS, which=beta)


def _cases() -> dict[str, Case]:
    return {
        "recover": case(
            lambda: {"field": field(), "observed": observed(), "ts": TS, "which": beta}, dear=True, observed=ARRAY,
            ts=ARRAY, noise=NONE | POSITIVE, x0=NONE | ARRAY, dt0=NONE | POSITIVE, which=NONE, seconds=60,
        ),
        "Recovery.bound_of": case({"function": lambda beta: beta**2}, recovery, seconds=60),
        "steer": case(
            lambda: {"field": field(), "x0": tokens(), "targets": tokens(), "key": jax.random.key(0), "pieces": 1,
                     "attempts": 1, "most": 2, "which": beta}, dear=True, targets=ARRAY, t_end=NONE | POSITIVE,
            labels=NONE | LIST, spread=LIST | POSITIVE | COUNT, which=NONE, seconds=60,
        ),
        "hold": case(
            lambda: {"field": field(), "x0": tokens(), "clusters": 2, "until": 1.0, "radius": 0.3, "attempts": 1,
                     "key": jax.random.key(0), "most": 2, "which": beta}, dear=True, since=NONE | COUNT,
            spread=POSITIVE | COUNT, labels=NONE | LIST, which=NONE, seconds=60,
        ),
        "delay": case(
            lambda: {"field": field(), "x0": tokens(), "until": 1.0, "norm": 0.1, "key": jax.random.key(0),
                     "attempts": 1, "most": 2, "which": beta}, dear=True, which=NONE, seconds=60,
        ),
        "sensitivity": case(
            lambda: {"field": field(), "x0": tokens(), "radius": 0.1, "until": 5.0, "which": beta}, dear=True,
            tolerance=NONE | POSITIVE, which=NONE, finite=False, seconds=60,
        ),
    }  # fmt: skip


CASES = {f"design.{name}": found for name, found in _cases().items()}
