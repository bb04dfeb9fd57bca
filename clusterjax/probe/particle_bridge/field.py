"""The heads of a trained network as a velocity of particles on the sphere, in their factors.

The field of multi-head attention (Geshkovski et al., 2312.10794, Section 2) with B_h = W_Q W_K^T and V_h = (W_V W_O)^T
of rank k: tokens are mapped to the k dimensions of each head first, (h, n, k), and the sums over tokens are those of
`softmax_average`, with the engine's masks and summations. A head of size k costs k/d of one with (d, d) matrices.

Invariants: equal to `MultiHeadField` with the products of the factors; a bias changes the scores only, and needs the
(n, n) matrix of weights; a token of mass zero moves and is not attended to.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..._attention.base import check_masses, check_parts
from ..._attention.softmax import softmax_average, softmax_weights
from ..._check import check_integer, check_scalar, refusal
from ..._custom_types import RealScalarLike, Tokens
from ..._field import AbstractField
from ..._field.heads import map_heads
from ..._mask import AbstractMask, CausalMask, FullMask
from ..._misc import matmul, normalise
from ..._schedule import (
    PiecewiseConstant,
    StoredParameter,
    at_time,
    check_real,
    check_time,
    example,
    optional_array,
    optional_parameter,
    parameter,
)
from ..._space import AbstractSpace, Sphere, check_space
from ..._summation import AbstractExponentialSum, Auto, Dense, check_supported
from ..measures.survey import dtype_of
from ..networks.head_matrices import head_matrices
from ..networks.load import Model
from .ablations import check_radius


class FactoredHeadsField(AbstractField):
    r"""$\dot x_i = P_{x_i}\sum_h\sum_j w^h_{ij}\, W_O^{h\top} W_V^{h\top} x_j$, $w^h$ the softmax of $\beta(\langle W_Q^{h\top}x_i, W_K^{h\top}x_j\rangle + b^h_{ij})$.

    The same velocity as `MultiHeadField` with $B_h = W_Q^h W_K^{h\top}$ and $V_h = (W_V^h W_O^h)^\top$, without the
    (d, d) matrices: for heads of size k its cost is k/d of that.

    **Arguments:**

    - `beta`: Inverse temperature, a number, an array of shape (), or a schedule.
    - `query`, `key`, `value`: (h, d, k), or schedules of such.
    - `output`: (h, k, d), or a schedule.
    - `space`: `Sphere()` or `Euclidean()`.
    - `masses`: (n,), not negative: how much each token counts for others; None is one each, and padding has 0.
    - `bias`: (h, n, n): what positions add to the scores, as in T5; None is nothing.
    - `mask`: Which tokens may attend to which.
    - `summation`: How the sums over tokens of dimension k are computed; with a bias they are dense.

    **Raises:**

    - `ValueError` if the factors do not fit together or hold a number that is not finite and real.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: multi-head attention.
    """  # noqa: E501

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query: StoredParameter = eqx.field(converter=parameter("query"))
    key: StoredParameter = eqx.field(converter=parameter("key"))
    value: StoredParameter = eqx.field(converter=parameter("value"))
    output: StoredParameter = eqx.field(converter=parameter("output"))
    space: AbstractSpace = eqx.field(default=Sphere(), kw_only=True)
    masses: Array | None = eqx.field(default=None, converter=optional_array("masses"), kw_only=True)
    bias: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractExponentialSum = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        check_space(self.space)
        check_parts(self.mask, self.summation, AbstractExponentialSum)
        check_masses(self.masses)
        check_real(self.bias, "bias", "pass the real bias of each head")
        names = ("query", "key", "value", "output")
        for name in ("beta", *names):
            if getattr(self, name) is None:
                raise refusal(name, "be given", "it is None", "pass those of a particle_field, say")
            check_real(getattr(self, name), name, "pass what is real, such as the factors of each head")
        if jnp.shape(example(self.beta)) != ():
            raise refusal(
                "beta", "be a number", f"its shape is {jnp.shape(example(self.beta))}", "pass one for all heads"
            )
        shapes = {name: jnp.shape(example(getattr(self, name))) for name in names}
        heads, d, k = shapes["query"] if len(shapes["query"]) == 3 else (0, 0, 0)
        value = shapes["value"]
        fits = shapes["key"] == (heads, d, k) and value[:2] == (heads, d) and len(value) == 3
        if not heads or not fits or shapes["output"] != (heads, value[2], d):
            raise ValueError(
                f"query, key, value and output must be (h, d, k), three times, and (h, k, d), but they are {shapes}; "
                "pass those of head_matrices, one block."
            )
        bias = None if self.bias is None else jnp.shape(example(self.bias))
        if bias is not None and (len(bias) != 3 or bias[0] != heads or bias[1] != bias[2] or not bias[1]):
            raise refusal("bias", f"be of shape ({heads}, n, n)", f"its shape is {bias}", "pass that of as many heads")
        if bias is not None and not isinstance(self.summation, Auto | Dense):
            name = type(self.summation).__name__
            raise refusal("summation", "be Auto or Dense where there is a bias", f"it is {name}", "leave it out")

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        beta, query, attention_keys, value, output, masses = (
            at_time(p, t, y.dtype) for p in (self.beta, self.query, self.key, self.value, self.output, self.masses)
        )
        bias = at_time(self.bias, t, y.dtype)

        # The tokens are mapped to the k dimensions of each head first, so that no (d, d) matrix is ever formed.
        def factor(maps: Float[Array, "h d k"]) -> Float[Array, "h n k"]:
            return jnp.einsum("nd,hdk->hnk", y, maps, precision=lax.Precision.HIGHEST)

        def head(queries: Array, keys_of_head: Array, values: Array, bias: Array | None) -> Float[Array, "n v"]:
            if bias is None:
                return softmax_average(beta * queries, keys_of_head, values, masses, self.mask, self.summation)
            # With a bias the scores are no inner products of rank k, so the matrix of weights is formed.
            scores = beta * (matmul(queries, keys_of_head.T) + bias)
            return matmul(softmax_weights(scores, masses, self.mask), values)

        averages = map_heads(head, query.shape[0], factor(query), factor(attention_keys), factor(value), bias)
        # One contraction over heads and their dimensions: the heads' outputs (h, n, d) are never held one by one.
        velocity = jnp.einsum("hnv,hvd->nd", averages, output, precision=lax.Precision.HIGHEST)
        return self.space.tangent(y, velocity)

    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the field fits `n` tokens of dimension `d`."""
        if jnp.shape(example(self.query))[1] != d:
            raise ValueError(
                f"query must be (h, {d}, k) for tokens of {d} dimensions, but it is {jnp.shape(example(self.query))}; "
                "pass tokens of the hidden size of the network, or other factors."
            )
        if self.masses is not None and jnp.shape(example(self.masses)) != (n,):
            raise ValueError(
                f"masses must hold one mass for each of the {n} tokens, but they are "
                f"{jnp.shape(example(self.masses))}; pass a vector of length n."
            )
        self.mask.check(n)
        heads, _, k = jnp.shape(example(self.query))
        check_supported(self.summation, None, k)
        if self.bias is not None and jnp.shape(example(self.bias)) != (heads, n, n):
            raise ValueError(
                f"bias must be ({heads}, {n}, {n}) for {heads} heads and {n} tokens, but it is "
                f"{jnp.shape(example(self.bias))}; pass that of as many positions."
            )


def particle_field(
    model: Model, radius: float | Float[np.ndarray, " blocks"], *, beta: RealScalarLike = 1.0, n: int | None = None
) -> FactoredHeadsField:
    r"""The heads of a network as a field on the sphere, with one layer in one unit of time.

    A hidden state of length r is r times a unit vector x. In ALBERT its scores are $r^2\langle W_Q^\top x_i, W_K^\top
    x_j\rangle / \sqrt k$, so that $r^2/\sqrt k$ belongs to $B_h$; attention adds $r\sum_j w_{ij} V x_j$ to it, which
    turns x by $P_x\sum_j w_{ij}V x_j$. T5 attends from what its norm makes of the state, $\sqrt d\, s \odot x$, with s
    the scale learnt, whatever r is: the scores are $d\langle W_Q^\top (s \odot x_i), W_K^\top (s \odot x_j)\rangle$,
    and x is turned by $P_x\sum_j w_{ij}\sqrt d\, V (s \odot x_j) / r$, less and less as the states grow.

    With `beta` = 1 the temperature is thus the network's own. The biases of the maps, the centre and scale of ALBERT's
    norms, and the rotation of queries and keys by which a Llama knows positions, have no counterpart and are left out,
    and so are its windows: the field of a causal network has a `CausalMask`. A Llama reads and writes as T5. Layers
    with weights of their own follow each other as pieces that are constant in time.

    **Arguments:**

    - `model`: What `load` returned.
    - `radius`: r, the length of the hidden states; for T5 and Llama also (blocks,), the length of what enters each
        block.

    **Other arguments:**

    - `beta`: The inverse temperature, relative to the network's own.
    - `n`: The number of tokens, for the bias by which T5 knows positions; None leaves it out. ALBERT has none.

    **Returns:**

    A `FactoredHeadsField`.

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
    bias = None if n is None else context.bias
    # The scale of the scores is put into the queries, so that beta = 1 is the network's own temperature.
    return FactoredHeadsField(
        beta, over_time(matrices.query * (matrices.scale * read_scale)),
        over_time(matrices.key * read_scale), over_time(matrices.value * write_scale), over_time(matrices.output),
        bias=None if bias is None else jnp.asarray(bias[0], dtype),
        mask=CausalMask() if context.causal else FullMask(),
    )  # fmt: skip


def mean_cosine(x: Float[Array, "n d"], word: Any) -> Float[Array, ""]:
    """The mean cosine of the pairs of words, from the length of the sum of their directions."""
    unit = jnp.where(word[:, None], normalise(jnp.where(word[:, None], x, jnp.ones_like(x))), jnp.zeros_like(x))
    count = jnp.sum(word).astype(x.dtype)
    # sum_{i != j} <u_i, u_j> = |sum_i u_i|^2 - count: O(n d) in place of all pairs.
    total = jnp.sum(unit, axis=0)
    return (jnp.sum(total * total) - count) / (count * (count - 1))
