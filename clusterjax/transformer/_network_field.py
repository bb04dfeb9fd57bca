r"""One block of a network, whatever it is made of, as a velocity of tokens.

A block adds what its attention and its feed-forward write: $\dot x = \sum_h A_h(N_1 x) + b + F(N_2 x)$, with norms in
front of the parts ($N = 1$ for a network whose norms act on the stream), projected onto the space of the tokens.
Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2.

Invariants: of a module of this package it is the velocity of `as_field` of its block; positions (rotations, biases by
distance), windows and knock-outs of the network count, with token i at place i.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._custom_types import RealScalarLike, Tokens
from .._field import AbstractField
from .._space import AbstractSpace, Euclidean
from ._view import AbstractView


class NetworkField(AbstractField):
    """The velocity of which one layer of a network is a step.

    **Attributes:**

    - `view`: The network.
    - `layer`: Which of its layers, from 0.
    - `normed`: Whether the parts read through the norms in front of them.
    - `space`: Where the tokens live.
    """

    view: AbstractView
    layer: int = eqx.field(static=True)
    normed: bool = eqx.field(static=True)
    space: AbstractSpace = Euclidean()

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        x = self.enter(x)
        block = self.view.block(self.layer, x.shape[0])
        read = (lambda part: block.read(part, x)) if self.normed else (lambda part: x)
        velocity, bias = jnp.sum(block.heads(read(0)).updates, axis=0), block.attention_bias()
        for more in (bias, block.added(read(1))):
            velocity = velocity if more is None else velocity + more
        return self.space.tangent(x, velocity)

    def check(self, n: int, d: int) -> None:
        self.view.check(n)
        if d != self.view.width:
            raise ValueError(
                f"x must be of the dimension of the network, {self.view.width}, but it is of {d}; start from a level "
                "of its residual stream, say."
            )
