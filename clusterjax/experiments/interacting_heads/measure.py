"""What is measured of several heads: random heads alone, together, and the average head.

The heads have V = B = B^T, so that unnormalised attention is the gradient flow of an interaction energy (2312.10794,
with B in place of the identity), and so is a sum of heads, of the sum of their energies: the identity that ties the
runs to theory. A sum of H heads is divided by the root of H, as random velocities grow, and each number of heads runs
in a program compiled for 8 or 16, filled up with zero heads. Starts, and the heads of a start, are those of the seed:
more heads or starts repeat the first ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..._attention import UnnormalisedAttention
from ..._custom_types import RealScalarLike
from ..._field import MultiHeadField
from ..._observables import cluster_labels, energy_dissipation, interaction_energy
from ..._simulate import simulate
from ...probe.measures.head_clusters import adjusted_rand
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter


D = 3  # that of a picture
TS = np.linspace(0.0, 10.0, 41)
ON_THE_WAY = 1.0  # when predictions are compared
COMPANY = 4  # heads that are followed alone as well
CAPACITIES = (8, 16)  # numbers of heads that programs are compiled for
COUNTS, QUICK_COUNTS = (2, 4, 8, 16), (2, 4, 8)
STARTS = 48  # at most: runs of many heads are dear


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(24, "the number of tokens", least=2, most=512)
    beta: float = parameter(3.0, "the inverse temperature", above=0, most=20)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows of heads, alone and together. Each start has heads and tokens of its own.

    **Attributes:**

    - `counts`: Numbers of heads, from 2.
    - `axes`: (starts, heads, d) of the heads that are followed alone: the eigenvector of B with the eigenvalue of
        largest modulus.
    - `company`: (starts, times, n, d) of each number; at 1 the first head alone.
    - `alone`: (starts, heads, times, n, d) of the heads that are followed alone.
    - `clusters`: (starts, times) of each number; at 1 the means over the heads alone.
    - `aligned`: (starts,) of each number: the mean of $|\\langle x_i, v\\rangle|$ at the end, v the axis of the average
        head; at 1 of the heads alone.
    - `moved`, `off`: (starts, counts): the root mean square distance of the tokens, at a time on the way, from where
        they started, and from where the average head brings them.
    - `agreement`: (starts, pairs): the adjusted Rand index of the clusters of two heads alone.
    - `force_cosine`: (starts, pairs): the mean cosine of the forces of the same two on the tokens that end in company.
    - `kept`: (starts, heads): the adjusted Rand index of the clusters of a head alone and those of the company.
    - `energies`: (starts, times), of the company of all heads that are followed.
    - `defect`: The largest difference of the rate of these from the mean squared speed, relative to the largest.
    """

    p: Parameters
    counts: tuple[int, ...]
    axes: np.ndarray
    company: dict[int, np.ndarray]
    alone: np.ndarray
    clusters: dict[int, np.ndarray]
    aligned: dict[int, np.ndarray]
    moved: np.ndarray
    off: np.ndarray
    agreement: np.ndarray
    force_cosine: np.ndarray
    kept: np.ndarray
    energies: np.ndarray
    defect: float

    @property
    def shared(self) -> np.ndarray:
        """How far the others agree with each head alone, (starts, heads): the mean of `agreement`."""
        many = self.kept.shape[1]
        # `agreement` has each pair of heads once; the full matrix has it twice.
        pairs = np.zeros((len(self.kept), many, many))
        pairs[:, *np.triu_indices(many, 1)] = self.agreement
        return (pairs + pairs.swapaxes(1, 2)).sum(-1) / (many - 1)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run each head alone, each number of heads together, and the average of as many."""
    seed, starts = settings.seed, min(settings.starts, STARTS)
    counts = QUICK_COUNTS if settings.quick else COUNTS
    # (starts, n, d) and (starts, heads, d, d).
    x0, heads = draw_starts(seed, starts, p.n, D), draw_heads(seed, starts, counts[-1])
    followed = heads[:, :COMPANY]
    say(f"{COMPANY} heads alone, {starts} times")
    # One head in a stack of length 1, at its own speed.
    each = [run_heads(p, x0, followed[:, head : head + 1], 1.0) for head in range(COMPANY)]
    alone, labels = (np.stack([np.asarray(one) for one in part], axis=1) for part in zip(*each, strict=True))
    axes = _axis(followed)
    # |<x, v>| of the tokens at the end, v the axis of the head that is alone.
    on = np.abs(np.einsum("shnd,shd->shn", alone[:, :, -1], axes)).mean(axis=(1, 2))
    company, clusters, aligned = {1: alone[:, 0]}, {1: _count(labels).mean(axis=1)}, {1: on}
    way, ended, moved, off = int(np.argmin(np.abs(TS - ON_THE_WAY))), {}, [], []
    apart = lambda one, other: np.sqrt(np.mean(np.sum((one - other) ** 2, axis=-1), axis=-1))
    for count in counts:
        say(f"{count} heads together")
        # The average head: mean V and mean B at once, as V = B.
        mean = heads[:, :count].mean(axis=1, keepdims=True)
        xs, joint = (np.asarray(part) for part in run_heads(p, x0, heads[:, :count], count**-0.5))
        # H heads over the root of H are H^(1/2) times their mean.
        average = np.asarray(run_heads(p, x0, mean, count**0.5)[0])
        moved.append(apart(xs[:, way], xs[:, 0]))
        off.append(apart(xs[:, way], average[:, way]))
        company[count], clusters[count], ended[count] = xs, _count(joint), joint[:, -1]
        aligned[count] = np.abs(np.einsum("snd,sd->sn", xs[:, -1], _axis(mean)[:, 0])).mean(axis=1)
    say("measuring agreement and energy")
    energies, defect = _along(p, jnp.asarray(company[COMPANY]), followed)
    forces = _forces(p, company[COMPANY][:, -1], np.asarray(followed))
    kept = np.array(
        [[adjusted_rand(one, both) for one in own] for own, both in zip(labels[:, :, -1], ended[COMPANY], strict=True)]
    )
    return Results(
        p, counts, axes, company, alone, clusters, aligned, np.stack(moved, axis=1), np.stack(off, axis=1),
        _agreement(labels[:, :, -1]), _force_cosine(forces), kept, energies, defect,
    )  # fmt: skip


def draw_heads(seed: int, starts: int, count: int) -> Float[Array, "starts heads d d"]:
    """Symmetric Gaussian matrices, divided by the modulus of the eigenvalue that is largest by it; the first of many
    are the same as fewer."""

    def draw(start: Array, head: Array) -> Array:
        # The middle number keeps these keys from those of the starts.
        key = jr.fold_in(jr.fold_in(jr.fold_in(jr.key(seed), 4_000_007), start), head)
        matrix = jr.normal(key, (D, D))
        matrix = matrix + matrix.T
        return matrix / jnp.max(jnp.abs(jnp.linalg.eigvalsh(matrix)))

    return jax.vmap(lambda start: jax.vmap(lambda head: draw(start, head))(jnp.arange(count)))(jnp.arange(starts))


def run_heads(p: Parameters, x0: Array, heads: Float[Array, "starts heads d d"], scale: float) -> tuple[Array, Array]:
    """Tokens and clusters under the sum of heads, times `scale`.

    Fewer heads are filled up with zeros, which add nothing, so that a few programs serve all numbers.
    """
    starts, count = heads.shape[:2]
    capacity = min(size for size in CAPACITIES if size >= count)
    # A head of zeros has V = 0: whatever its weights, it adds nothing.
    stack = jnp.concatenate([heads, jnp.zeros((starts, capacity - count, D, D))], axis=1)
    return _run_all(x0, stack, jnp.asarray(scale), jnp.asarray(p.beta), jnp.asarray(p.radius))


def _heads_field(heads: Float[Array, "heads d d"], beta: RealScalarLike) -> MultiHeadField:
    return MultiHeadField(beta, heads, heads, attention=UnnormalisedAttention)


@eqx.filter_jit
def _run_all(x0: Array, heads: Array, scale: Array, beta: Array, radius: Array) -> tuple[Array, Array]:
    def run_start(x: Array, heads: Array) -> tuple[Array, Array]:
        xs = simulate(scale * _heads_field(heads, beta), x, jnp.asarray(TS), adjoint=dfx.ForwardMode()).xs
        return xs, jax.vmap(partial(cluster_labels, radius=radius))(xs)

    return jax.vmap(run_start)(x0, heads)


def _axis(heads: Array) -> np.ndarray:
    """The eigenvector of the eigenvalue of largest modulus of each."""
    values, vectors = np.linalg.eigh(np.asarray(heads))
    # eigh gives eigenvalues in rising order, of either sign.
    best = np.abs(values).argmax(axis=-1)
    return np.take_along_axis(vectors, best[..., None, None], axis=-1)[..., 0]


def _count(labels: np.ndarray) -> np.ndarray:
    """How many clusters: a cluster is named by its first member, which has its own number for a label."""
    return (labels == np.arange(labels.shape[-1])).sum(-1).astype(float)


@jax.jit
def _rates(xs: Array, heads: Array, beta: Array) -> tuple[Array, Array, Array]:
    """The energy of the company, its rate, and the mean squared speed, (starts, times) each."""

    def rates_at(x: Array, heads: Array) -> tuple[Array, Array, Array]:
        # As in the runs, so that energy and field belong together.
        scale = heads.shape[0] ** -0.5
        velocity = scale * _heads_field(heads, beta)(0.0, x)
        energy = lambda x: scale * jnp.sum(jax.vmap(lambda form: interaction_energy(x, beta, form))(heads))
        value, rise = jax.jvp(energy, (x,), (velocity,))
        return value, rise, energy_dissipation(x, velocity)

    return jax.vmap(lambda xs, heads: jax.vmap(lambda x: rates_at(x, heads))(xs))(xs, heads)


def _along(p: Parameters, xs: Array, heads: Array) -> tuple[np.ndarray, float]:
    """The energies along the runs, and how far their rates are from the mean squared speed of the tokens."""
    values, rises, speeds = (np.asarray(part) for part in _rates(xs, heads, jnp.asarray(p.beta)))
    return values, float(np.abs(rises - speeds).max() / speeds.max())


def _forces(
    p: Parameters, x: Float[np.ndarray, "starts n d"], heads: Float[np.ndarray, "starts heads d d"]
) -> np.ndarray:
    """The velocity that each head alone would give, (starts, heads, n, d)."""
    values = np.einsum("sjd,shed->shje", x, heads)
    # V = B = B^T: the same products serve as what is attended to and, by <x_i, B x_j>, as the scores.
    weights = np.exp(p.beta * np.einsum("sie,shje->shij", x, values)) / x.shape[1]
    total = np.einsum("shij,shje->shie", weights, values)
    # The tangent part: what is left of the sum after its component along the token is taken off.
    return total - np.sum(total * x[:, None], axis=-1, keepdims=True) * x[:, None]


def _agreement(labels: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of each pair of heads, (starts, pairs)."""
    first, second = np.triu_indices(labels.shape[1], 1)
    return np.array([[adjusted_rand(row[a], row[b]) for a, b in zip(first, second, strict=True)] for row in labels])


def _force_cosine(forces: np.ndarray) -> np.ndarray:
    """The mean cosine over tokens of the forces of each pair of heads, (starts, pairs)."""
    # (starts, heads, n, d), directions only.
    unit = forces / np.linalg.norm(forces, axis=-1, keepdims=True)
    first, second = np.triu_indices(forces.shape[1], 1)
    return np.einsum("spnd,spnd->spn", unit[:, first], unit[:, second]).mean(-1)
