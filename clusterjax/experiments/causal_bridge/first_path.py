r"""The path of the first token: in a causal network it moves by itself, and the particles say x' = P(Vx).

Under a causal mask the first token attends to itself alone, whatever the scores are. As a particle it follows x' =
P_x(V x), V the sum over heads (Karagodin et al., *Clustering in causal attention masking*, 2411.04990, Section 3); in
the network without its feed-forward it is x + A(N(x)) with A linear. Real and modelled paths are compared by the cosine
of their directions at each level before the last norm.

Invariants: no path depends on the tokens behind the first, and that of the network is checked not to; all paths begin
at the embedded token.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ... import probe
from ...probe.measures.survey import dtype_of


SUBSTEPS = 16  # of Runge and Kutta's fourth order in a layer
PATHS = ("particle", "fitted", "own length", "attention alone", "embedding")


@dataclass(frozen=True, eq=False)
class FirstPath:
    """The first token of each text.

    **Attributes:**

    - `cosines`: By name of a path the cosine to the network's, (texts, levels): "particle" (time 1), "fitted" (the time
        of the bridge), "own length" (time 1, divided by the length that the token has in place of that of the others),
        "attention alone" (the network without its feed-forward), "embedding" (it stays where it began).
    - `turned`: The cosine of the directions before and after each layer in the network, (texts, levels - 1).
    - `alone`: By how much its stream differs from that of the same token with none behind it, of its length, at most.
    - `linear`: By how much the network without feed-forward differs from x + A(N(x)), of the length, at most.
    """

    cosines: dict[str, np.ndarray]
    turned: np.ndarray
    alone: float
    linear: float


def first_path(model: probe.Model, texts: probe.Encoded, radius: np.ndarray | float, time: float) -> FirstPath:
    """All paths of the first tokens; `radius` and `time` are those of the bridge."""
    assert texts.mask[:, 0].all()
    first = lambda model, n: stream_of_first(model, probe.Encoded(texts.token_ids[:, :n], texts.mask[:, :n]))
    real, alone = first(model, texts.mask.shape[1]), first(model, 1)
    without = first(probe.without_feed_forward(model), 1)
    lengths = np.linalg.norm(real, axis=-1)
    # What the last norm makes of the last level is no state of the stream.
    states, size = real[:, :-1], lengths[:, :-1]
    values, layers = values_of(model), model.num_layers
    start, order = states[:, 0] / size[:, :1], model.network.order()
    of_block = np.broadcast_to(np.asarray(radius, float), (len(values),))
    shared = np.array([of_block[order[layer]] for layer in range(layers)])
    run = lambda factor: particle_path(start, values, order[: layers - 1], factor)
    paths = {
        "particle": run(1 / shared[None, :]), "fitted": run(time / shared[None, :]), "own length": run(1 / size),
        "attention alone": without[:, :-1], "embedding": np.repeat(start[:, None], layers, axis=1),
    }  # fmt: skip
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    along = lambda a, b: np.sum(unit(a) * unit(b), axis=-1)
    return FirstPath(
        {name: along(path, states) for name, path in paths.items()},
        along(states[:, 1:], states[:, :-1]),
        float(np.max(np.linalg.norm(real - alone, axis=-1) / lengths)),
        _off_linear(model, without[:, :-1]),
    )


class _First:
    """The first token's state at a level, a row for each text."""

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return {"first": hidden[:, 0]}


_MEASURE = probe.Measure(level=_First())


def stream_of_first(model: probe.Model, texts: probe.Encoded) -> np.ndarray:
    """The first token at each level, (texts, levels, d), in double precision."""
    streamed = probe.stream(model, *texts, _MEASURE)
    assert streamed.levels is not None
    return np.moveaxis(np.asarray(streamed.levels["first"], np.float64), 0, 1)


def values_of(model: probe.Model) -> np.ndarray:
    """What each block makes of a direction in its attention alone, before it is divided by a length: x @ V, (blocks, d,
    d), without biases."""
    matrices, scales = probe.head_matrices(model), model.network.norm_scales()
    values = np.einsum("bhdk,bhke->bde", matrices.value, matrices.output, optimize=True)
    if scales is None:  # norms act on the stream, and hold the length that is divided by
        return values
    return np.sqrt(values.shape[1]) * np.stack(scales)[:, :, None] * values


def particle_path(start: np.ndarray, values: np.ndarray, order: list[int], factor: np.ndarray) -> np.ndarray:
    """x' = factor P_x(x V) from `start`, (texts, d), one layer in a unit of time: (texts, layers + 1, d); `factor` is
    (1 or texts, layers or more)."""
    path = [start]
    for layer, block in enumerate(order):
        x, scale = path[-1], factor[:, layer, None] / SUBSTEPS

        def velocity(x: np.ndarray, value: np.ndarray = values[block], scale: np.ndarray = scale) -> np.ndarray:
            y = x / np.linalg.norm(x, axis=1, keepdims=True)
            moved = y @ value
            return scale * (moved - np.sum(moved * y, axis=1, keepdims=True) * y)

        for _ in range(SUBSTEPS):
            one = velocity(x)
            two = velocity(x + one / 2)
            three = velocity(x + two / 2)
            x = x + (one + 2 * two + 2 * three + velocity(x + three)) / 6
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        path.append(x)
    return np.stack(path, axis=1)


def _off_linear(model: probe.Model, stream: np.ndarray) -> float:
    """The largest difference of a layer without feed-forward from x + A(N(x)), A a linear map with its bias, of the
    length; `stream` is that of the first token, (texts, layers, d)."""
    network, worst = model.network, 0.0
    blocks = network.blocks()
    for layer, block in enumerate(network.order()[: stream.shape[1] - 1]):
        of = blocks[block]
        x = jnp.asarray(stream[:, layer, None], dtype_of(model))
        # One token: all its weight is on itself, so that each head hands on its own value.
        value = of.project(of.read(0, x)).value
        value = jnp.repeat(value, network.num_heads // value.shape[2], axis=2)
        kernel, bias = of.head_outputs()
        update = jnp.einsum("bnhk,hkd->bnd", value, kernel)
        after = of.write(0, x + (update if bias is None else update + bias[None, None]))
        # A feed-forward of zero still has its norm, where norms act on the stream.
        after = np.asarray(of.write(1, after) if of.post_norm else after)[:, 0]
        off = np.linalg.norm(after - stream[:, layer + 1], axis=1) / np.linalg.norm(stream[:, layer + 1], axis=1)
        worst = max(worst, float(off.max()))
    return worst
