"""Cases of `clusterjax.design`: which parameters made a run, lead tokens, keep clusters or delay their merging."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

import clusterjax as cjx
from clusterjax import design
from tests.doors.cases import Case, case


TS = jnp.asarray([0.0, 0.5, 1.0])
field = functools.cache(lambda: cjx.AttentionField(cjx.SoftmaxAttention(1.0)))
tokens = functools.cache(lambda: cjx.Sphere().sample(jax.random.key(0), n=3, d=2))


def beta(field: Any) -> Any:
    return field.attention.beta


observed = functools.cache(lambda: cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(2.0)), tokens(), TS).xs)
recovery = functools.cache(lambda: design.recover(field(), observed(), TS, which=beta))


def _cases() -> dict[str, Case]:
    return {
        "recover": case(lambda: {"field": field(), "observed": observed(), "ts": TS, "which": beta}, seconds=60),
        "Recovery.bound_of": case({"function": lambda beta: beta**2}, recovery, seconds=60),
        "steer": case(
            lambda: dict(
                field=field(),
                x0=tokens(),
                targets=tokens(),
                key=jax.random.key(0),
                pieces=1,
                attempts=1,
                most=2,
                which=beta,
            ),
            seconds=60,
        ),
        "hold": case(
            lambda: dict(
                field=field(),
                x0=tokens(),
                clusters=2,
                until=1.0,
                radius=0.3,
                attempts=1,
                key=jax.random.key(0),
                most=2,
                which=beta,
            ),
            seconds=60,
        ),
        "delay": case(
            lambda: dict(
                field=field(), x0=tokens(), until=1.0, norm=0.1, key=jax.random.key(0), attempts=1, most=2, which=beta
            ),
            seconds=60,
        ),
        "sensitivity": case(
            lambda: {"field": field(), "x0": tokens(), "radius": 0.1, "until": 5.0, "which": beta},
            finite=False,
            seconds=60,
        ),
    }


CASES = {f"design.{name}": found for name, found in _cases().items()}
