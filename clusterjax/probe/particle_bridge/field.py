"""The heads of a trained network as a velocity field on the sphere: a `MultiHeadField` in factored form.

B_h = W_Q W_K^T and V_h = (W_V W_O)^T have rank k (Geshkovski et al., 2312.10794, Section 2). The field includes norms
and scales with which the network reads and writes, its position bias or rotation of queries and keys, and its mask.

Invariants: an Euler step of length 1 is a layer of the network on the sphere, without feed-forward and biases; a token
of mass zero moves but receives no attention.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._base.checks import check_integer, check_scalar, refusal
from ..._base.numerics import normalise
from ..._base.types import RealScalarLike
from ..._model.heads import MultiHeadField
from ..._model.mask import AbstractMask, CausalMask, FullMask, MatrixMask, WindowMask
from ..._model.schedule import PiecewiseConstant
from ..measures.survey import dtype_of
from ..networks.directions import head_matrices
from ..networks.load import Model
from ..networks.network import HeadMatrices
from ..networks.recorded import Recorded
from .ablations import check_radius


def particle_field(
    model: Model | Recorded, radius: float | Float[np.ndarray, " blocks"], *, beta: RealScalarLike = 1.0,
    n: int | None = None,
) -> MultiHeadField:  # fmt: skip
    """The heads of a network as a field on the sphere, with one layer in one unit of time.

    A hidden state of norm r is r times a unit vector x. In ALBERT the scores are $r²⟨W_Q^T x_i, W_K^T x_j⟩ / √k$, so
    that $B_h$ contains the factor r²/√k; attention adds $r ∑_j w_{ij} V x_j$ to the state, which moves x by
    $P_x ∑_j w_{ij} V x_j$. The attention of T5 reads the normalised state √d s ⊙ x with the learnt scale s, for any r:
    the scores are $d⟨W_Q^T (s ⊙ x_i), W_K^T (s ⊙ x_j)⟩$, and x moves by $P_x ∑_j w_{ij} √d V (s ⊙ x_j) / r$, which
    shrinks as the states grow.

    With `beta` = 1 the temperature is therefore that of the network. A Llama reads and writes like T5, and the queries
    and keys of its particles are rotated at their positions, so that their scores are those of the network. The field
    of a causal network has a `CausalMask`. The mask of a network with windows, or of `with_mask`, becomes the mask of
    the field if all layers share it; windows of only some layers (Qwen2) are left out. Biases of the maps, the centring
    of layer norms and vectors of distances have no counterpart and are left out too. Layers with their own weights
    follow each other as pieces that are constant in time.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`. Recorded arrays have a
        full or a causal mask, with a window if all layers share it, and neither rotations nor position biases.
    - `radius`: r, the norm of the hidden states; for T5 and Llama also (blocks,), the norm of the tokens that enter
        each block.

    **Other arguments:**

    - `beta`: The inverse temperature, relative to that of the network.
    - `n`: The number of tokens, needed for the position bias of T5, the rotation of Llama and windows; None leaves all
        three out. ALBERT has none of them.

    **Returns:**

    A `MultiHeadField` with `factors`.

    **Raises:**

    - `ValueError` if a radius is not positive, the number of radii is not the number of blocks, weights were not
        recorded, or the heads have parts that no particle model has: norms of queries and keys, caps of scores, norms
        of updates.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2.
    """
    matrices, dtype = particle_maps(model, check_radius(model, radius)), dtype_of(model)
    beta = check_scalar(beta, "beta", dtype)
    n = None if n is None else check_integer(n, "n")
    order = matrices.order

    def over_time(array: np.ndarray) -> Any:
        # Shared weights need no schedule, which spares the solver jumps to step onto.
        if len(array) == 1:
            return jnp.asarray(array[0], dtype)
        return PiecewiseConstant(jnp.arange(len(order), dtype=dtype), jnp.asarray(array[order], dtype))

    pairs, bias, rotation = np.arange(matrices.query.shape[3]), None, None
    if not isinstance(model, Recorded):
        pairs = _pairs(model)
        bias, rotation = (None, None) if n is None else (model.network.context(n).bias, _rotation_of(model, n))
    # The queries include the scale of the scores, so that beta = 1 is the temperature of the network.
    return MultiHeadField.factored(
        beta, over_time(matrices.query[..., pairs] * matrices.scale), over_time(matrices.key[..., pairs]),
        over_time(matrices.value), over_time(matrices.output),
        bias=None if bias is None else jnp.asarray(bias[0], dtype),
        rotation=rotation,
        mask=_mask_of(model, n),
    )  # fmt: skip


def particle_maps(model: Model | Recorded, radius: Float[np.ndarray, " blocks"]) -> HeadMatrices:
    """The maps of the heads for unit vectors, with the norms and the scales with which the network reads and writes
    tokens of norm `radius`: `scale` times query and key form B, value and output form V."""
    if not isinstance(model, Recorded):
        check_linear(model)
    matrices, r = head_matrices(model), radius[:, None, None, None]
    if matrices.norm is None:
        read_scale, write_scale = r, 1.0
    else:
        # T5 reads sqrt(d) s x for every norm r, so r divides only the output; x is the state over r.
        read_scale = np.sqrt(matrices.query.shape[2]) * matrices.norm[:, None, :, None]
        write_scale = read_scale / r
    return matrices._replace(
        query=matrices.query * read_scale, key=matrices.key * read_scale, value=matrices.value * write_scale
    )


def check_linear(model: Model) -> None:
    """Raise a ValueError if the heads of the network are not those of a particle model: linear in what they read."""
    sizes = model.network.sizes
    problems = {
        "norms of queries and keys": sizes.head_norm != "none", "caps of scores": sizes.score_cap is not None,
        "norms of updates": sizes.norm_place in ("update", "both"), "factors of updates": sizes.update_scale,
        "rotations that differ between layers": len(set(sizes.rotary_kinds or (0,))) > 1,
    }  # fmt: skip
    present = [name for name, is_there in problems.items() if is_there]
    if present:
        problem = f"{model.name!r} has {present[0]}"
        raise refusal("model", "have heads that a particle model has", problem, "measure the network itself")


def _rotation_of(model: Model, n: int) -> tuple[Any, Any] | None:
    """The cosines and sines of the rotation of all layers, (n, k / 2) both; None without rotation."""
    network = model.network
    rotation, k = network.context(n).rotation, network.sizes.width_of_head
    if rotation is None:
        return None
    cosines, sines = (part[(network.sizes.rotary_kinds or (0,))[0]] for part in rotation)
    # Entries that are not rotated have the angle zero.
    still = jnp.ones((n, k // 2 - cosines.shape[1]), cosines.dtype)
    return jnp.concatenate([cosines, still], axis=1), jnp.concatenate([sines, 0 * still], axis=1)


def _pairs(model: Model) -> np.ndarray:
    """The order of the entries of a head in which entries a and a + k/2 are a pair, also where some are not rotated."""
    sizes = model.network.sizes
    k, turned = sizes.width_of_head, sizes.rotary_size
    if turned is None:
        return np.arange(k)
    first, second, still = np.arange(turned // 2), np.arange(turned // 2, turned), np.arange(turned, k)
    return np.concatenate([first, still[: len(still) // 2], second, still[len(still) // 2 :]])


def _mask_of(model: Model | Recorded, n: int | None) -> AbstractMask:
    """The mask that all layers share; if the layers differ, a causal or a full mask."""
    if isinstance(model, Recorded):
        width = model.windows[0] if n is not None and len(set(model.windows)) == 1 else None
        if width is not None:
            return WindowMask(width, causal=model.causal)
        return CausalMask() if model.causal else FullMask()
    network = model.network
    if network.mask is not None:
        return network.mask
    context = network.context(1 if n is None else n)
    plain = CausalMask() if context.causal else FullMask()
    if n is None:
        return plain
    places = jnp.arange(n, dtype=jnp.int32)
    rules = [block.allowed(places, places, context) for block in network.blocks()]
    first = rules[0]
    if first is None or any(rule is None or not np.array_equal(rule, first) for rule in rules):
        return plain
    # A matrix expresses any mask but supports only the dense summation, so the usual masks stay as they are.
    return plain if np.array_equal(first, plain.matrix(n)) else MatrixMask(first)


def mean_cosine(x: Float[Array, "n d"], word: Any) -> Float[Array, ""]:
    """The mean cosine over all pairs of words, from the norm of the sum of their directions."""
    unit = jnp.where(word[:, None], normalise(jnp.where(word[:, None], x, jnp.ones_like(x))), jnp.zeros_like(x))
    count = jnp.sum(word).astype(x.dtype)
    # sum_{i != j} <u_i, u_j> = |sum_i u_i|^2 - count: O(n d) in place of all pairs.
    total = jnp.sum(unit, axis=0)
    return (jnp.sum(total * total) - count) / (count * (count - 1))
