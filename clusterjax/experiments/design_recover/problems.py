r"""Random inverse problems, and what they are solved by besides `design.recover`.

**Algorithm.** The true field has $\beta$ uniform in [1, 3], and V and B the identity plus normal entries of standard
deviation 1/2. *Random search* draws fields in the same way and keeps the one whose run is nearest to the observed
tokens. *Regression* is told B and beta: central differences of the observed tokens are velocities
$P_x V m(x)$, linear in V. **Invariants.** A problem is a function of its key; regression of exact velocities is exact.
"""

from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._mask import FullMask, WindowMask
from ..._random import draw_normal
from ..._simulate import simulate
from ..._space import Sphere


N, D, END, TIMES = 32, 3, 2.0, 9
SPREAD, LEAST, MOST = 0.5, 1.0, 3.0  # of V and B about the identity; of beta
TS = np.linspace(0, END, TIMES)
CHUNK, STEP = 100, 0.25  # runs of random search at once, and their step


class Truth(NamedTuple):
    """The parameters of a field."""

    beta: Float[Array, "*many"]
    form: Float[Array, "*many d d"]
    value: Float[Array, "*many d d"]


class Problem(NamedTuple):
    """A field and a run of it."""

    truth: Truth
    x0: Float[Array, "n d"]
    xs: Float[Array, "times n d"]
    errors: Float[Array, "times n d"]  # standard normal: times a noise they are what is added


def draw_truth(key: PRNGKeyArray) -> Truth:
    """Random parameters."""
    of_beta, of_both = jr.split(key)
    both = jnp.eye(D)[None] + SPREAD * draw_normal(of_both, (2 * D, D), jnp.float64).reshape(2, D, D)
    return Truth(jr.uniform(of_beta, minval=LEAST, maxval=MOST, dtype=jnp.float64), both[0], both[1])


def field_of(truth: Truth, mask: FullMask | WindowMask | None = None) -> AttentionField:
    """Softmax attention with these parameters."""
    mask = FullMask() if mask is None else mask
    return AttentionField(SoftmaxAttention(truth.beta, query_key=truth.form, mask=mask), truth.value)


def guess_of(mask: FullMask | WindowMask | None = None) -> AttentionField:
    """Where each fit begins: beta = 1, V and B the identity."""
    return field_of(Truth(jnp.asarray(1.0, jnp.float64), jnp.eye(D), jnp.eye(D)), mask)


def draw_problem(key: PRNGKeyArray, mask: FullMask | WindowMask | None = None) -> Problem:
    """A random one."""
    of_truth, of_start, of_errors = jr.split(key, 3)
    truth = draw_truth(of_truth)
    x0 = Sphere().sample(of_start, n=N, d=D)
    xs = _exact(field_of(truth, mask), x0)
    return Problem(truth, x0, xs, draw_normal(of_errors, (TIMES * N, D), x0.dtype).reshape(xs.shape))


@eqx.filter_jit
def _exact(field: AttentionField, x0: Array) -> Array:
    controller = dfx.PIDController(rtol=1e-10, atol=1e-12)
    return simulate(field, x0, jnp.asarray(TS), stepsize_controller=controller, adjoint=dfx.ForwardMode()).xs


def random_search(key: PRNGKeyArray, problem: Problem, seen: Float[Array, "times n d"], runs: int) -> Truth:
    """The best of at least so many random fields, in whole chunks."""
    best, least = None, np.inf
    for part in range(-(-runs // CHUNK)):
        candidates, misses = _tried(jr.split(jr.fold_in(key, part), CHUNK), problem.x0, seen)
        place = int(jnp.argmin(misses))
        if float(misses[place]) < least or best is None:
            best, least = jax.tree.map(lambda leaf, at=place: leaf[at], candidates), float(misses[place])
    assert best is not None  # there is at least one chunk
    return best


@eqx.filter_jit
def _tried(keys: Key[Array, " many"], x0: Array, seen: Array) -> tuple[Truth, Array]:
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP, "max_steps": 64}

    def one(key: PRNGKeyArray) -> tuple[Truth, Array]:
        truth = draw_truth(key)
        return truth, jnp.sum((simulate(field_of(truth), x0, jnp.asarray(TS), **steps).xs - seen) ** 2)

    return jax.vmap(one)(keys)


def regress(seen: np.ndarray, ts: np.ndarray, form: np.ndarray) -> np.ndarray:
    """V by least squares on central differences of observed tokens, given beta B, (d, d)."""
    velocities = (seen[2:] - seen[:-2]) / (ts[2:] - ts[:-2])[:, None, None]
    return regress_on(seen[1:-1], velocities, form)


def regress_on(x: np.ndarray, velocities: np.ndarray, form: np.ndarray) -> np.ndarray:
    """V by least squares on velocities, (times, n, d) as the tokens are."""
    d = x.shape[-1]
    y = x / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = np.einsum("tia,ab,tjb->tij", y, form, y)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    means = np.einsum("tij,tjb->tib", weights / weights.sum(-1, keepdims=True), y)
    tangent = np.eye(d) - y[..., :, None] * y[..., None, :]
    # The velocity of a token is P V m: row a of it has the coefficient P_ab m_c of V_bc.
    rows = np.einsum("tiab,tic->tiabc", tangent, means).reshape(-1, d * d)
    wanted = np.einsum("tiab,tib->tia", tangent, velocities).reshape(-1)
    return np.linalg.lstsq(rows, wanted, rcond=None)[0].reshape(d, d)
