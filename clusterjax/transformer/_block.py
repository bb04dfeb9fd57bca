"""One Transformer block: attention, feed-forward, residual connections, layer normalisation.

The two sub-layers add to a stream. The position of the norms is a separate object (`AbstractResidual` in `_norm`),
which computes the input of a sub-layer and the stream after it. Post-norm: Vaswani et al. (1706.03762); pre-norm: Xiong
et al., *On layer normalization in the transformer architecture* (2002.04745).

Invariants: all parts have the same dimension d; the block has one norm for each normalised sub-layer, and no other
norm.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.random as jr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._abstract import AbstractPart
from .._check import check_flag, check_instance, check_key, refusal, shown
from .._custom_types import DTypeLike
from .._mask import AbstractMask, FullMask
from ._attention import MultiHeadAttention, check_heads
from ._checks import check_optional, check_sizes
from ._feed_forward import FeedForward, check_activation
from ._norm import AbstractResidual, LayerNorm, PostNorm, check_epsilon, check_norm, check_residual
from ._positions import RelativePositions, RotaryPositions


class Block(AbstractPart):
    r"""The map $u = \mathrm{LN}_1(x + \mathrm{attention}(x))$, $z = \mathrm{LN}_2(u + \mathrm{ff}(u))$.

    This is the block with `PostNorm`; with `PreNorm` the inputs of the two sub-layers are normalised instead, and with
    `NoNorm` nothing is normalised.

    **Arguments:**

    - `attention`: `MultiHeadAttention`.
    - `feed_forward`: `FeedForward`; None omits the feed-forward layer.
    - `norms`: The norms of the two sub-layers; `(None, None)` with `NoNorm`.
    - `residual`: The position of the norms: `PostNorm()` as in A.1, `PreNorm()` or `NoNorm()`.

    **Raises:**

    - `ValueError` if the parts differ in dimension, or a norm is missing or superfluous.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; *Transformers, part 2*, slides 2 to 5.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward | None
    norms: tuple[LayerNorm | None, LayerNorm | None] = (None, None)
    residual: AbstractResidual = PostNorm()

    def __check_init__(self):
        check_heads(self.attention)
        check_optional(
            self.feed_forward, "feed_forward", FeedForward, "a FeedForward", "make one with FeedForward.random"
        )
        check_residual(self.residual)
        if not isinstance(self.norms, tuple | list) or len(self.norms) != 2:
            raise refusal("norms", "be two norms, or None in their places", f"it is {shown(self.norms)}", "pass a pair")
        for k, norm in enumerate(self.norms):
            if norm is not None:
                check_norm(norm, f"norms[{k}]")
        widths = {"attention": self.attention.d}
        if self.feed_forward is not None:
            widths["feed_forward"] = self.feed_forward.w_in.shape[0]
        widths |= {f"norms[{k}]": norm.gain.shape[0] for k, norm in enumerate(self.norms) if norm is not None}
        if len(set(widths.values())) != 1:
            raise ValueError(
                f"attention, feed_forward and norms must be of one dimension, but they are {widths}; make them agree."
            )
        layers = (self.attention, self.feed_forward)
        # An omitted sub-layer needs no norm.
        needed = [self.residual.needs_norm and layer is not None for layer in layers]
        given = [norm is not None for norm in self.norms]
        if needed != given:
            raise ValueError(
                f"norms of attention and feed_forward must be {needed.count(True)} with "
                f"{type(self.residual).__name__} and {sum(layer is not None for layer in layers)} layers, but "
                f"{given.count(True)} are there; pass one for each layer that is normalised, and None elsewhere."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        d: int,
        heads: int,
        hidden: int,
        *,
        residual: AbstractResidual = PostNorm(),  # noqa: B008
        activation: Callable[[Array], Array] = jax.nn.relu,
        mask: AbstractMask = FullMask(),  # noqa: B008
        relative: RelativePositions | RotaryPositions | None = None,
        bias: bool = False,
        epsilon: float = 1e-5,
        scale: float | None = None,
        dtype: DTypeLike | None = None,
    ) -> "Block":
        """A block with random weights and norms of gain one and bias zero; the options are those of its parts.

        **Raises:**

        - `ValueError` if `heads` does not divide `d`.
        """
        attention_key, feed_forward_key = jr.split(check_key(key))
        check_sizes(d=d, hidden=hidden)
        check_residual(residual)
        check_activation(activation)
        check_flag(bias, "bias")
        check_epsilon(epsilon)
        attention = MultiHeadAttention.random(
            attention_key, d, heads, scale=scale, mask=mask, relative=relative, dtype=dtype
        )
        feed_forward = FeedForward.random(
            feed_forward_key, d, hidden, activation=activation, bias=bias, scale=scale, dtype=dtype
        )
        # One object may stand for both norms: both start as the identity, and training updates each leaf separately.
        norm = LayerNorm.identity(d, epsilon=epsilon, dtype=dtype) if residual.needs_norm else None
        return cls(attention, feed_forward, (norm, norm), residual)

    def __call__(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n d"]:
        """The tokens after the block.

        **Arguments:**

        - `x`: The tokens before the block, (n, d).
        - `present`: The tokens that are present, (n,); no present token attends to padding. None is all of them.
        """
        # The tokens are checked once here, so the calls below skip the checks.
        x, present = self.attention.validated(x, present)
        first, second = self.norms
        # `read` applies the norm with PreNorm, and `write` applies the norm with PostNorm; otherwise both are
        # identities.
        x = self.residual.write(first, x + self.attention._added(self.residual.read(first, x), present))
        if self.feed_forward is None:
            return x
        return self.residual.write(second, x + self.feed_forward._added(self.residual.read(second, x)))


def check_block(block: Any, name: str = "block") -> Block:
    """Return `block` if it is a `Block`; raise a `ValueError` otherwise."""
    return check_instance(block, name, Block, "a Block", "make one with Block.random")
