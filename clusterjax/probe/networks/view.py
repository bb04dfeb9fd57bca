"""A view of a loaded network for the tools of `transformer`: residual stream, memories and the logit lens.

The parts are those of `block.Block`, for one text instead of a batch.

Invariants: the last stream of a view, after `finish`, is the last hidden state of `trace`; tokens that are not present
are zero in the stream and in every part of it; gains of knock-outs act on outputs and not on the weights.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ..._base.checks import check_integer, refusal
from ...transformer._attention import Passed
from ...transformer._residual_stream import AbstractBlockView, AbstractView, HeadParts
from .block import Block, Context, Gains, blank
from .network import Network, gains_of, scan_layers


class _BlockView(AbstractBlockView):
    block: Block
    gains: Gains
    present: Bool[Array, " n"]
    context: Context

    def enter(self, x: Float[Array, "n d"], share: Float[Array, "*shares n d"]) -> Float[Array, "*shares n d"]:
        # The embedding of padding is not zero, hence `_blank`.
        share, length = self._blank(share), self.block.length
        return share if length is None else length.carry(x[None], share[..., None, :, :])[..., 0, :, :]

    def read(self, part: int, x: Float[Array, "n d"], entered: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.block.read(part, x[None], entered[None])[0]

    def write(self, part: int, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self._blank(self.block.write(part, total[None])[0])

    def carry(
        self, part: int, total: Float[Array, "n d"], share: Float[Array, "*shares n d"]
    ) -> Float[Array, "*shares n d"]:
        return self._blank(self.block.carry(part, total[None], share[..., None, :, :])[..., 0, :, :])

    def _blank(self, share: Float[Array, "*shares n d"]) -> Float[Array, "*shares n d"]:
        """Replaces padding by zeros, like the scan over layers between the blocks."""
        present = jnp.expand_dims(self.present[:, None], tuple(range(share.ndim - 2)))
        return jnp.where(present, share, jnp.zeros_like(share))

    def heads(self, read: Float[Array, "n d"]) -> HeadParts:
        attended, weights = self.block.attend(read[None], self.present[None], self.context)
        kernel, bias = self.block.head_outputs()
        outputs = jnp.einsum("nhk,hkd->hnd", attended[0], kernel, precision="highest")
        gain = self.gains.heads
        outputs = outputs if gain is None else outputs * gain[:, :, None]
        # The norm of the update divides the outputs of all heads and the bias by one number for each token.
        shares = jnp.zeros_like(outputs[0]) if bias is None else jnp.broadcast_to(bias[None], outputs[0].shape)
        whole = jnp.sum(outputs, axis=0) + shares
        carried = self.block.carry_update(0, whole[None], jnp.concatenate([outputs, shares[None]])[:, None])[:, 0]
        # The rest of the update is the bias of its norm.
        rest = self.block.update(0, whole[None])[0] - self.block.carry_update(0, whole[None], whole[None])[0]
        updates, of_bias, scale = carried[:-1], carried[-1] + rest, gain
        norm, heads = self.block.attention_norms.update, self.block.num_heads
        if norm is not None:
            factor = norm.factor(whole[None])[0, :, 0][None]
            scale = jnp.broadcast_to(factor, (heads, factor.shape[1])) if scale is None else scale * factor
        if self.gains.attention is not None:
            attention = self.gains.attention[None]
            updates, of_bias = updates * attention[:, :, None], of_bias * attention[0, :, None]
            scale = jnp.broadcast_to(attention, (heads, attention.shape[1])) if scale is None else scale * attention
        unbiased = bias is None and (norm is None or norm.offset() is None)
        return HeadParts(weights[0], updates, None if unbiased else of_bias, scale)

    def passed(self, read: Float[Array, "n d"]) -> Passed:
        parts, output = self.block.project(read[None]), self._shaped(self.block.head_outputs().kernel)
        # (n, h, k): a value that heads share is copied for each of them.
        values = jnp.repeat(parts.value[0], output.shape[0] // parts.value.shape[2], axis=1)
        by_token = jnp.einsum("nhk,hkd->hnd", values, output, precision="highest")
        if parts.distances is None or parts.distances.values is None:
            return Passed(by_token, None, None)
        by_distance = jnp.einsum("rk,hkd->hrd", parts.distances.values, output, precision="highest")
        return Passed(by_token, by_distance, parts.distances.rows)

    def _shaped(self, kernel: Float[Array, "h k d"]) -> Float[Array, "h k d"]:
        """The map of each head, with the part of the norm of the update that does not depend on the token."""
        norms = self.block.attention_norms
        kernel = kernel if norms.update is None else norms.update.linear(kernel)
        return kernel if norms.scale is None else kernel * norms.scale[...][None, None]

    def activations(self, read: Float[Array, "n d"]) -> Float[Array, "n m"] | None:
        return None if self.block.feed_forward is None else self.block.activations(read[None])[0]

    def added(self, read: Float[Array, "n d"]) -> Float[Array, "n d"] | None:
        return None if self.block.feed_forward is None else self.block.added(read[None], self.gains)[0]


class NetworkView(AbstractView):
    """A network of `probe`, with its arrays separate from its structure, so that they can be traced."""

    form: Any = eqx.field(static=True)
    state: Any

    @classmethod
    def of(cls, network: Network) -> "NetworkView":
        """The view of a network."""
        return cls(*nnx.split(network))

    @property
    def network(self) -> Network:
        """The network, rebuilt with the arrays that the view holds."""
        return nnx.merge(self.form, self.state)

    @property
    def num_layers(self) -> int:
        return self.network.num_layers

    @property
    def num_heads(self) -> int:
        return self.network.num_heads

    @property
    def num_words(self) -> int:
        return self.network.sizes.vocab_size

    @property
    def width(self) -> int:
        return self.network.sizes.hidden_size

    @property
    def post_norm(self) -> bool:
        return self.network.blocks()[0].post_norm

    def block(self, layer: int, n: int) -> AbstractBlockView:
        network = self.network
        layer = check_integer(layer, "layer", least=-network.num_layers, most=network.num_layers - 1)
        gains = jtu.tree_map(lambda gain: gain[layer], gains_of(network, n))
        block = network.blocks()[network.order()[layer]]
        return _BlockView(block, gains, jnp.ones(n, bool), network.shared_context(n))

    def check(self, n: int) -> None:
        most, network = self.network.max_positions, self.network
        if most is not None and n > most:
            raise refusal("ids", f"be at most {most}, the positions", f"there are {n}", "cut the text")
        if network.mask is not None:
            network.mask.check(n)

    def embed(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None) -> Float[Array, "n d"]:
        x = self.network.embed(ids[None])
        return x[0] if present is None else blank(x, present[None])[0]

    def scan(
        self,
        step: Callable[[AbstractBlockView, Any, Any], tuple[Any, Any]],
        carry: Any,
        present: Bool[Array, " n"] | None,
        each: Any = None,
        *,
        n: int,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        network = self.network
        present = jnp.ones(n, bool) if present is None else present
        context = network.shared_context(n)

        def step_of_block(block: Block, carry: Any, given: tuple[Gains, Any]) -> tuple[Any, Any]:
            return step(_BlockView(block, given[0], present, context), carry, given[1])

        return scan_layers(network, step_of_block, carry, n, each, reverse=reverse)

    def logits(self, x: Float[Array, "n d"]) -> Float[Array, "n words"]:
        network = self.network
        return network.logits(network.finish(x[None]))[0]

    def values(self, layer: int) -> Float[Array, "m d"]:
        network = self.network
        layer = check_integer(layer, "layer", least=-network.num_layers, most=network.num_layers - 1)
        return network.blocks()[network.order()[layer]].neuron_values().kernel

    def unembedding(self) -> Float[Array, "words d"]:
        return self.network.unembedding()
