r"""One block of any network with a view, as a velocity of tokens.

A block adds the outputs of its attention and its feed-forward layer, so $\dot x = \sum_h A_h(N_1 x) + b + F(N_2 x)$,
projected onto the tangent space of the tokens, where $N_1$ and $N_2$ are the norms in front of the parts ($N = 1$ for a
network whose norms act on the stream). See Geshkovski et al., *A mathematical perspective on transformers*
(2312.10794), Section 2.

Invariants: for a module of this package the velocity equals `as_field` of its block; positions (rotations, biases by
distance), windows and knock-outs of the network are included, with token i at position i.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._custom_types import RealScalarLike, Tokens
from .._field import AbstractField
from .._space import AbstractSpace, Euclidean
from ._view import AbstractView


class NetworkField(AbstractField):
    """The velocity whose Euler step is one layer of a network.

    **Attributes:**

    - `view`: The network.
    - `layer`: The number of the layer, from 0.
    - `normed`: True if the parts read the tokens through the norms in front of them.
    - `space`: The space of the tokens.
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
