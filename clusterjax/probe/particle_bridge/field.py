"""The heads of a trained network as a velocity of particles on the sphere: `MultiHeadField` with its factors.

B_h = W_Q W_K^T and V_h = (W_V W_O)^T of rank k (Geshkovski et al., 2312.10794, Section 2), with the lengths and scales
by which the network reads and writes, its bias of positions or its rotation of queries and keys, and its mask.

Invariants: a step of length 1 of the field is a layer of the network on the sphere, without feed-forward and biases; a
token of mass zero moves and is not attended to.
"""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._check import check_integer, check_scalar
from ..._custom_types import Numbers, RealScalarLike
from ..._field import MultiHeadField
from ..._mask import AbstractMask, CausalMask, FullMask, MatrixMask
from ..._misc import normalise
from ..._schedule import Parameter, PiecewiseConstant
from ..._space import AbstractSpace, Sphere
from ..._summation import AbstractSummation, Auto
from ..measures.survey import dtype_of
from ..networks.head_matrices import head_matrices
from ..networks.load import Model
from .ablations import check_radius


def FactoredHeadsField(  # noqa: N802 - it was a class
    beta: Parameter,
    query: Parameter,
    key: Parameter,
    value: Parameter,
    output: Parameter,
    *,
    space: AbstractSpace = Sphere(),
    masses: Numbers | None = None,
    bias: Parameter | None = None,
    mask: AbstractMask = FullMask(),
    summation: AbstractSummation = Auto(),
) -> MultiHeadField:
    r"""The former name of `clusterjax.MultiHeadField.factored`, which takes the same arguments.

    **Arguments:**

    - `beta`, `query`, `key`, `value`, `output`, `space`, `masses`, `bias`, `mask`, `summation`: As there.

    **Returns:**

    A `MultiHeadField`.

    **Raises:**

    - `ValueError` as there.

    **Warns:** that the name is deprecated, with the new one.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: multi-head attention.
    """
    warnings.warn(
        "probe.FactoredHeadsField is deprecated; call clusterjax.MultiHeadField.factored with the same arguments.",
        DeprecationWarning,
        stacklevel=2,
    )
    return MultiHeadField.factored(
        beta, query, key, value, output, space=space, masses=masses, bias=bias, mask=mask, summation=summation
    )


def particle_field(
    model: Model, radius: float | Float[np.ndarray, " blocks"], *, beta: RealScalarLike = 1.0, n: int | None = None
) -> MultiHeadField:
    r"""The heads of a network as a field on the sphere, with one layer in one unit of time.

    A hidden state of length r is r times a unit vector x. In ALBERT its scores are $r^2\langle W_Q^\top x_i, W_K^\top
    x_j\rangle / \sqrt k$, so that $r^2/\sqrt k$ belongs to $B_h$; attention adds $r\sum_j w_{ij} V x_j$ to it, which
    turns x by $P_x\sum_j w_{ij}V x_j$. T5 attends from what its norm makes of the state, $\sqrt d\, s \odot x$, with s
    the scale learnt, whatever r is: the scores are $d\langle W_Q^\top (s \odot x_i), W_K^\top (s \odot x_j)\rangle$,
    and x is turned by $P_x\sum_j w_{ij}\sqrt d\, V (s \odot x_j) / r$, less and less as the states grow.

    With `beta` = 1 the temperature is thus the network's own. A Llama reads and writes as T5, and the queries and keys
    of its particles are rotated at their places, so that their scores are the network's. The field of a causal network
    has a `CausalMask`, and that of a network with windows, or with the mask of `with_mask`, the same mask, if it is
    that of all layers: windows of some layers alone (Qwen2) are left out. So are the biases of the maps, the centre of
    layer norms and vectors of distances, which have no counterpart. Layers with weights of their own follow each other
    as pieces that are constant in time.

    **Arguments:**

    - `model`: What `load` returned.
    - `radius`: r, the length of the hidden states; for T5 and Llama also (blocks,), the length of what enters each
        block.

    **Other arguments:**

    - `beta`: The inverse temperature, relative to the network's own.
    - `n`: The number of tokens, for the bias by which T5 knows positions, the rotation by which a Llama does, and
        windows; None leaves all of them out. ALBERT has none.

    **Returns:**

    A `MultiHeadField` with `factors`.

    **Raises:**

    - `ValueError` if a radius is not positive, or there are not as many as blocks.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2.
    """
    matrices, dtype = head_matrices(model), dtype_of(model)
    beta = check_scalar(beta, "beta", dtype)
    n = None if n is None else check_integer(n, "n")
    order = np.asarray(model.network.order())
    r = check_radius(model, radius)[:, None, None, None]
    scales = model.network.norm_scales()
    if scales is None:
        read_scale, write_scale = r, 1.0
    else:
        # T5 reads sqrt(d) s x whatever the length r is; r only divides what is written, x being the state over r.
        read_scale = np.sqrt(matrices.query.shape[2]) * np.stack(scales)[:, None, :, None]
        write_scale = read_scale / r

    def over_time(array: np.ndarray) -> Any:
        # Shared weights: no schedule, so that the solver has no jumps to step onto.
        if len(array) == 1:
            return jnp.asarray(array[0], dtype)
        return PiecewiseConstant(jnp.arange(len(order), dtype=dtype), jnp.asarray(array[order], dtype))

    context = model.network.context(1 if n is None else n)
    bias, rotation = (None, None) if n is None else (context.bias, context.rotation)
    # The scale of the scores is put into the queries, so that beta = 1 is the network's own temperature.
    return MultiHeadField.factored(
        beta, over_time(matrices.query * (matrices.scale * read_scale)),
        over_time(matrices.key * read_scale), over_time(matrices.value * write_scale), over_time(matrices.output),
        bias=None if bias is None else jnp.asarray(bias[0], dtype),
        rotation=rotation,
        mask=_mask_of(model, n),
    )  # fmt: skip


def _mask_of(model: Model, n: int | None) -> AbstractMask:
    """The mask of all layers; where they differ, whether they are causal."""
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
    # A matrix serves any rule, but no other summation than the dense one: the usual rules stay what they are.
    return plain if np.array_equal(first, plain.matrix(n)) else MatrixMask(first)


def mean_cosine(x: Float[Array, "n d"], word: Any) -> Float[Array, ""]:
    """The mean cosine of the pairs of words, from the length of the sum of their directions."""
    unit = jnp.where(word[:, None], normalise(jnp.where(word[:, None], x, jnp.ones_like(x))), jnp.zeros_like(x))
    count = jnp.sum(word).astype(x.dtype)
    # sum_{i != j} <u_i, u_j> = |sum_i u_i|^2 - count: O(n d) in place of all pairs.
    total = jnp.sum(unit, axis=0)
    return (jnp.sum(total * total) - count) / (count * (count - 1))
