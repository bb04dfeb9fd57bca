"""Do the tokens lie in an open hemisphere? If so, every attention with V = I brings them together."""

from typing import NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import Float

from .._custom_types import Tokens
from .._misc import check_tokens, is_concrete
from ._pairs import check_nonzero_rows


# What rounding alone may make of a margin of zero, with room to spare.
_SMALLEST_MARGIN = 1e-9


class Hemisphere(NamedTuple):
    """The answer of `hemisphere`: unpacks into three.

    Source: this library.
    """

    is_open_hemisphere: bool
    """Whether some w has <x_i, w> > 0 for every token."""
    w: Float[np.ndarray, " d"]
    """A unit vector that attains the margin."""
    margin: float
    """The least cosine of a token with w."""


def hemisphere(x: Tokens) -> Hemisphere:
    r"""Whether some $w$ has $\langle x_i, w\rangle > 0$ for all $i$, and such a $w$.

    A linear programme maximises $\min_i \langle x_i, w\rangle$ over $|w|_\infty \le 1$, tokens normalised. The answer
    certifies itself: if it is yes, `w` is a witness, and `margin` is its least cosine, computed from `w`. Fewer tokens
    than dimensions, or as many, lie in an open hemisphere almost surely; for n independent uniform tokens the
    probability is $2^{-(n-1)}\sum_{k<d}\binom{n-1}{k}$. A margin below 1e-7, the tolerance of the linear programme, may
    count as none. A host function.

    **Arguments:**

    - `x`: Tokens, one a row, none of them zero; only their directions count; not traced.

    **Returns:**

    A `Hemisphere`, the tuple `(is_open_hemisphere, w, margin)`. The margin is that of `w`, which is the best vector of
    the cube, not of the ball. If the answer is no, the margin is not positive and `w` is only a unit vector.

    **Raises:**

    - `ValueError` if `x` has a zero row, is not finite, or is traced.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Lemma 6.4 (tokens of an open
        hemisphere converge to one point) and Theorem 6.3; Wendel, *A problem in geometric probability* (1962), for the
        probability.
    """
    if not is_concrete(x):
        raise ValueError(f"x must not be traced, but it is {x}; call this host function outside jax.jit.")
    tokens = np.asarray(check_nonzero_rows(check_tokens(x)), dtype=np.float64)
    tokens = tokens / np.abs(tokens).max(axis=1, keepdims=True)
    tokens = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    n, d = tokens.shape
    # Unknowns (w, s): maximise s subject to s - <x_i, w> <= 0.
    solution = scipy.optimize.linprog(
        c=np.append(np.zeros(d), -1.0),
        A_ub=np.hstack([-tokens, np.ones((n, 1))]),
        b_ub=np.zeros(n),
        bounds=[(-1, 1)] * d + [(0, None)],
        method="highs",
    )
    w = solution.x[:d] if solution.x is not None else np.zeros(d)
    length = np.linalg.norm(w)
    w = w / length if length > 0 else tokens[0]
    margin = float((tokens @ w).min())
    return Hemisphere(margin > _SMALLEST_MARGIN, w, margin if margin > _SMALLEST_MARGIN else min(margin, 0.0))
