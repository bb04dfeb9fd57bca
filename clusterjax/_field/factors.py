"""`HeadFactors`: the matrices of several heads as factors of rank k, so that no (d, d) matrix is formed.

B_h = W_Q W_K^T and V_h = (W_V W_O)^T (Geshkovski et al., 2312.10794, Section 2): tokens are first mapped to the k
dimensions of each head, (h, n, k). There the scores may depend on the positions of the tokens, by a bias (Raffel et
al., *T5*, 1910.10683) or by a rotation of queries and keys by angles of their positions (Su et al., *RoFormer*,
2104.09864).

Invariants: without bias and rotation the result equals that of heads with the products of the factors; equal angles at
all positions change nothing, and scores under rotation depend on the differences of angles only.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._check import check_array, refusal, shown
from .._custom_types import RealScalarLike, Tokens
from .._misc import as_float, einsum, rotate_pairs
from .._schedule import StoredParameter, at_time, check_real, example, optional_parameter, parameter


_MATRICES = ("query", "key", "value", "output")


class Mapped(NamedTuple):
    """The tokens in the dimensions of each head, (h, n, k), and the bias of the scores, (h, n, n), or None."""

    queries: Float[Array, "h n k"]
    tokens: Float[Array, "h n k"]
    values: Float[Array, "h n v"]
    bias: Float[Array, "h n n"] | None


def _turn(rotation: Any) -> tuple[Array, Array] | None:
    if rotation is None:
        return None
    if not isinstance(rotation, tuple | list) or len(rotation) != 2:
        raise refusal("rotation", "be two arrays", f"it is {shown(rotation)}", "pass (cosines, sines), both (n, k/2)")
    parts = []
    for part in rotation:
        array = as_float(check_array(part, "rotation", shape=("n", "half"), remedy="pass (cosines, sines), (n, k/2)"))
        parts.append(array)
    if parts[0].shape != parts[1].shape:
        problem = f"their shapes are {parts[0].shape} and {parts[1].shape}"
        raise refusal("rotation", "be cosines and sines of one shape", problem, "pass both of the same angles")
    return parts[0], parts[1]


class HeadFactors(AbstractPart):
    r"""The factors of several heads: $B_h = W_Q^h W_K^{h\top}$, $V_h = (W_V^h W_O^h)^\top$, tokens as rows.

    **Arguments:**

    - `query`, `key`: (h, d, k), or schedules of these shapes.
    - `value`: (h, d, v), or a schedule.
    - `output`: (h, v, d), or a schedule.
    - `bias`: (h, n, n), or a schedule: a term for each pair of positions, added to the scores before the multiplication
        by beta; None adds nothing.
    - `rotation`: Cosines and sines, both (n, k/2), of the angles by which entries a and a + k/2 of the queries and keys
        of each token are rotated as a pair; None rotates nothing.

    **Raises:**

    - `ValueError` if the factors do not fit together or hold a number that is not finite and real.

    Source: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; rotation: Su et
    al., *RoFormer* (2104.09864), Section 3.2.
    """

    query: StoredParameter = eqx.field(converter=parameter("query"))
    key: StoredParameter = eqx.field(converter=parameter("key"))
    value: StoredParameter = eqx.field(converter=parameter("value"))
    output: StoredParameter = eqx.field(converter=parameter("output"))
    bias: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias"), kw_only=True)
    rotation: tuple[Array, Array] | None = eqx.field(default=None, converter=_turn, kw_only=True)

    def __check_init__(self):
        check_real(self.bias, "bias", "pass the real bias of each head")
        for name in _MATRICES:
            if getattr(self, name) is None:
                raise refusal(name, "be given", "it is None", "pass the factors of each head, (h, d, k)")
            check_real(getattr(self, name), name, "pass the real factors of each head", of_tokens=True)
        shapes = {name: self._shape(name) for name in _MATRICES}
        heads, d, k = shapes["query"] if len(shapes["query"]) == 3 else (0, 0, 0)
        value = shapes["value"]
        fits = shapes["key"] == (heads, d, k) and value[:2] == (heads, d) and len(value) == 3
        if not heads * d * k or not fits or not value[-1] or shapes["output"] != (heads, value[2], d):
            raise ValueError(
                f"query, key, value and output must be (h, d, k), three times, and (h, k, d), but they are {shapes}; "
                "pass the four factors of each head, stacked along the first axis."
            )
        bias = None if self.bias is None else self._shape("bias")
        if bias is not None and (len(bias) != 3 or bias[0] != heads or bias[1] != bias[2] or not bias[1]):
            raise refusal("bias", f"be of shape ({heads}, n, n)", f"its shape is {bias}", "pass that of as many heads")
        if self.rotation is not None and 2 * self.rotation[0].shape[1] != k:
            raise refusal(
                "rotation", f"be of shape (n, {k / 2:g}) for queries of {k} entries",
                f"its shape is {self.rotation[0].shape}", "pass half as many angles as a query has entries",
            )  # fmt: skip

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return self._shape("query")[0]

    @property
    def size(self) -> int:
        """The dimension k of queries and keys."""
        return self._shape("query")[2]

    def map(self, y: Tokens, t: RealScalarLike) -> Mapped:
        """The queries, keys and values of the tokens, rotated by their positions, and the bias, at time `t`."""
        query, tokens, value = (
            # The map leads from (n, d) directly to (h, n, k): no (d, d) matrix is formed.
            einsum("nd,hdk->hnk", y, at_time(maps, t, y.dtype))
            for maps in (self.query, self.key, self.value)
        )
        if self.rotation is not None:
            cosines, sines = (jnp.asarray(part, y.dtype)[None] for part in self.rotation)
            query, tokens = rotate_pairs(query, cosines, sines), rotate_pairs(tokens, cosines, sines)
        return Mapped(query, tokens, value, at_time(self.bias, t, y.dtype))

    def write(self, averages: Float[Array, "h n v"], t: RealScalarLike) -> Tokens:
        """The sum over heads of the averages times the output matrices, (n, d)."""
        output = at_time(self.output, t, averages.dtype)
        # One contraction over heads and their dimensions never stores the outputs (h, n, d) of the single heads.
        return einsum("hnv,hvd->nd", averages, output)

    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the factors fit `n` tokens of dimension `d`."""
        heads, of_tokens, k = self._shape("query")
        if of_tokens != d:
            raise ValueError(
                f"query must be (h, {d}, k) for tokens of {d} dimensions, but it is {(heads, of_tokens, k)}; "
                "pass tokens of the hidden size of the network, or other factors."
            )
        if self.bias is not None and self._shape("bias") != (heads, n, n):
            raise ValueError(
                f"bias must be ({heads}, {n}, {n}) for {heads} heads and {n} tokens, but it is {self._shape('bias')}; "
                "pass that of as many positions."
            )
        if self.rotation is not None and len(self.rotation[0]) != n:
            raise ValueError(
                f"rotation must be ({n}, {k // 2}) for {n} tokens, but it is {self.rotation[0].shape}; "
                "pass the angles of as many places."
            )

    def _shape(self, name: str) -> tuple[int, ...]:
        return jnp.shape(example(getattr(self, name)))
