r"""`StoredStages`: Tsit5 whose backward pass stores the values of all stages of a step.

**Algorithm.** The stages of an explicit Runge-Kutta step are one `lax.scan`. diffrax loops over them with checkpoints:
in reverse mode it computes a step again from its start, and then each of its stages again from the start of the stage.
This solver omits the second recomputation, at the cost of the memory of one step: gradients of some dozens of tokens
take three quarters of the time.

**Reference.** Tsitouras, *Runge-Kutta pairs of order 5(4)* (2011); the coefficients are those of `diffrax.Tsit5`.

**Invariants.** Steps, error estimates and interpolants are those of `diffrax.Tsit5` except for rounding. The field is
traced once, and evaluated as often: the last stage of a step is the first of the next step, unless the state jumped.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._misc import tensordot
from .retract import Time


# Six stages of all pairs of this many tokens take 0.2 MB in float64, less than the 1 MB of the checkpoints of a run.
_MOST_TOKENS = 64


def stored_stages(solver: dfx.AbstractSolver, terms: Any, y0: Any, adjoint: dfx.AbstractAdjoint) -> dfx.AbstractSolver:
    """`solver`, or `StoredStages` in its place where the two are equivalent and the stages need little memory."""
    plain = type(solver) is dfx.Tsit5 and solver.scan_kind is None and type(terms) is dfx.ODETerm
    reverse = type(adjoint) is dfx.RecursiveCheckpointAdjoint
    return StoredStages() if plain and reverse and y0.shape[0] <= _MOST_TOKENS else solver


class StoredStages(dfx.Tsit5):
    """`diffrax.Tsit5` for a state that is one array, which stores all stages of a step for the backward pass."""

    def step(self, terms: Any, t0: Time, t1: Time, y0: Any, args: Any, solver_state: Any, made_jump: Any):
        first, last = solver_state
        control, weights = terms.contr(t0, t1), self._weights(y0.dtype)
        # The field is traced once here, since it is used twice below.
        vf = eqx.filter_closure_convert(terms.vf, t0, y0, args)
        # All runs of a batch evaluate the first stage if one of them must, as in diffrax: under `vmap` a condition that
        # differs between runs would evaluate it in every step.
        anew = eqxi.unvmap_any(first | made_jump)
        last = lax.cond(anew, lambda: vf(t0, y0, args), lambda: last)

        def stage(carry, of_stage):
            ks, _, _ = carry
            number, weights, c = of_stage
            y = y0 + tensordot(weights, ks, 1)
            f = vf(jnp.where(c == 1, t1, t0 + c * (t1 - t0)), y, args)
            return (lax.dynamic_update_index_in_dim(ks, terms.prod(f, control), number, 0), y, f), None

        # Entries that are not known yet are zero, since they are multiplied by weights that are zero.
        ks = jnp.zeros((len(weights) + 1, *y0.shape), y0.dtype).at[0].set(terms.prod(last, control))
        of_stages = (jnp.arange(1, len(ks)), weights, jnp.asarray(self.tableau.c, jnp.result_type(t0, t1)))
        (ks, y1, f1), _ = lax.scan(stage, (ks, y0, last), of_stages)
        error = tensordot(jnp.asarray(self.tableau.b_error, y0.dtype), ks, 1)
        return y1, error, {"y0": y0, "y1": y1, "k": ks}, (False, f1), dfx.RESULTS.successful

    def _weights(self, dtype: Any) -> Array:
        """The weights of all stages in each stage except the first, (stages - 1, stages)."""
        weights = np.zeros((self.tableau.num_stages - 1, self.tableau.num_stages))
        for row, of_stage in zip(weights, self.tableau.a_lower, strict=True):
            row[: len(of_stage)] = of_stage
        return jnp.asarray(weights, dtype)
