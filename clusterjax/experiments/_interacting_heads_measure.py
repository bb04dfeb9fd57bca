"""Random heads alone, together, and their average."""

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

from .._attention import UnnormalisedAttention
from .._field import MultiHeadField
from .._observables import cluster_labels, energy_dissipation, interaction_energy
from .._simulate import simulate
from ..probe._head_clusters import adjusted_rand
from ._ensemble import draw_starts


N, D, BETA, RADIUS = 24, 3, 3.0, 0.1
TS = np.linspace(0.0, 10.0, 41)
ON_THE_WAY = 1.0  # when predictions are compared
COMPANY = 4  # heads that are followed alone as well
ROOMS = (8, 16)  # numbers of heads that programs are compiled for


@dataclass(frozen=True, eq=False)
class Heads:
    """What is measured of heads, alone and together. Each start has heads and tokens of its own.

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
    - `together`: (starts, pairs): the mean cosine of the forces of the same two on the tokens that end in company.
    - `kept`: (starts, heads): the adjusted Rand index of the clusters of a head alone and those of the company.
    - `energies`: (starts, times), of the company of all heads that are followed.
    - `defect`: The largest difference of the rate of these from the mean squared speed, relative to the largest.

    Source: this library.
    """

    counts: tuple[int, ...]
    axes: np.ndarray
    company: dict[int, np.ndarray]
    alone: np.ndarray
    clusters: dict[int, np.ndarray]
    aligned: dict[int, np.ndarray]
    moved: np.ndarray
    off: np.ndarray
    agreement: np.ndarray
    together: np.ndarray
    kept: np.ndarray
    energies: np.ndarray
    defect: float

    @property
    def shared(self) -> np.ndarray:
        """How far the others agree with each head alone, (starts, heads): the mean of `agreement`."""
        many = self.kept.shape[1]
        pairs = np.zeros((len(self.kept), many, many))
        pairs[:, *np.triu_indices(many, 1)] = self.agreement
        return (pairs + pairs.swapaxes(1, 2)).sum(-1) / (many - 1)


def measure_heads(seed: int, starts: int, counts: tuple[int, ...], say: Callable[[str], None]) -> Heads:
    """Run each head alone, each number of heads together, and the average of as many.

    Source: this library.
    """
    x0, heads = draw_starts(seed, starts, N, D), draw_heads(seed, starts, counts[-1])
    followed = heads[:, :COMPANY]
    say(f"{COMPANY} heads alone, {starts} times")
    each = [run_heads(x0, followed[:, head : head + 1], 1.0) for head in range(COMPANY)]
    alone, labels = (np.stack([np.asarray(one) for one in part], axis=1) for part in zip(*each, strict=True))
    axes = _axis(followed)
    on = np.abs(np.einsum("shnd,shd->shn", alone[:, :, -1], axes)).mean(axis=(1, 2))
    company, clusters, aligned = {1: alone[:, 0]}, {1: _count(labels).mean(axis=1)}, {1: on}
    way, ended, moved, off = int(np.argmin(np.abs(TS - ON_THE_WAY))), {}, [], []
    apart = lambda one, other: np.sqrt(np.mean(np.sum((one - other) ** 2, axis=-1), axis=-1))
    for count in counts:
        say(f"{count} heads together")
        mean = heads[:, :count].mean(axis=1, keepdims=True)
        xs, joint = (np.asarray(part) for part in run_heads(x0, heads[:, :count], count**-0.5))
        average = np.asarray(run_heads(x0, mean, count**0.5)[0])
        moved.append(apart(xs[:, way], xs[:, 0]))
        off.append(apart(xs[:, way], average[:, way]))
        company[count], clusters[count], ended[count] = xs, _count(joint), joint[:, -1]
        aligned[count] = np.abs(np.einsum("snd,sd->sn", xs[:, -1], _axis(mean)[:, 0])).mean(axis=1)
    say("measuring agreement and energy")
    energies, defect = _along(jnp.asarray(company[COMPANY]), followed)
    forces = _forces(company[COMPANY][:, -1], np.asarray(followed))
    kept = np.array(
        [[adjusted_rand(one, both) for one in own] for own, both in zip(labels[:, :, -1], ended[COMPANY], strict=True)]
    )
    return Heads(
        counts, axes, company, alone, clusters, aligned, np.stack(moved, axis=1), np.stack(off, axis=1),
        _agreement(labels[:, :, -1]), _together(forces), kept, energies, defect,
    )  # fmt: skip


def draw_heads(seed: int, starts: int, count: int) -> Float[Array, "starts heads d d"]:
    """Symmetric Gaussian matrices, divided by the modulus of the eigenvalue that is largest by it; the first of many
    are the same as fewer."""

    def one(start: Array, head: Array) -> Array:
        key = jr.fold_in(jr.fold_in(jr.fold_in(jr.key(seed), 4_000_007), start), head)
        matrix = jr.normal(key, (D, D))
        matrix = matrix + matrix.T
        return matrix / jnp.max(jnp.abs(jnp.linalg.eigvalsh(matrix)))

    return jax.vmap(lambda start: jax.vmap(lambda head: one(start, head))(jnp.arange(count)))(jnp.arange(starts))


def run_heads(x0: Array, heads: Float[Array, "starts heads d d"], scale: float) -> tuple[Array, Array]:
    """Tokens and clusters under the sum of heads, times `scale`.

    Fewer heads are filled up with zeros, which add nothing, so that a few programs serve all numbers.

    Source: this library.
    """
    starts, count = heads.shape[:2]
    room = min(size for size in ROOMS if size >= count)
    stack = jnp.concatenate([heads, jnp.zeros((starts, room - count, D, D))], axis=1)
    return _run_all(x0, stack, jnp.asarray(scale))


def _heads_field(heads: Float[Array, "heads d d"]) -> MultiHeadField:
    return MultiHeadField(BETA, heads, heads, attention=UnnormalisedAttention)


@eqx.filter_jit
def _run_all(x0: Array, heads: Array, scale: Array) -> tuple[Array, Array]:
    def one(x: Array, heads: Array) -> tuple[Array, Array]:
        xs = simulate(scale * _heads_field(heads), x, jnp.asarray(TS), adjoint=dfx.ForwardMode()).xs
        return xs, jax.vmap(partial(cluster_labels, radius=jnp.asarray(RADIUS)))(xs)

    return jax.vmap(one)(x0, heads)


def _axis(heads: Array) -> np.ndarray:
    """The eigenvector of the eigenvalue of largest modulus of each."""
    values, vectors = np.linalg.eigh(np.asarray(heads))
    best = np.abs(values).argmax(axis=-1)
    return np.take_along_axis(vectors, best[..., None, None], axis=-1)[..., 0]


def _count(labels: np.ndarray) -> np.ndarray:
    return (labels == np.arange(N)).sum(-1).astype(float)


@jax.jit
def _rates(xs: Array, heads: Array) -> tuple[Array, Array, Array]:
    """The energy of the company, its rate, and the mean squared speed, (starts, times) each."""

    def one(x: Array, heads: Array) -> tuple[Array, Array, Array]:
        scale = heads.shape[0] ** -0.5
        velocity = scale * _heads_field(heads)(0.0, x)
        energy = lambda x: scale * jnp.sum(jax.vmap(lambda form: interaction_energy(x, BETA, form))(heads))
        value, rise = jax.jvp(energy, (x,), (velocity,))
        return value, rise, energy_dissipation(x, velocity)

    return jax.vmap(lambda xs, heads: jax.vmap(lambda x: one(x, heads))(xs))(xs, heads)


def _along(xs: Array, heads: Array) -> tuple[np.ndarray, float]:
    values, rises, speeds = (np.asarray(part) for part in _rates(xs, heads))
    return values, float(np.abs(rises - speeds).max() / speeds.max())


def _forces(x: Float[np.ndarray, "starts n d"], heads: Float[np.ndarray, "starts heads d d"]) -> np.ndarray:
    """The velocity that each head alone would give, (starts, heads, n, d)."""
    pulls = np.einsum("sjd,shed->shje", x, heads)
    weights = np.exp(BETA * np.einsum("sie,shje->shij", x, pulls)) / x.shape[1]
    total = np.einsum("shij,shje->shie", weights, pulls)
    return total - np.sum(total * x[:, None], axis=-1, keepdims=True) * x[:, None]


def _agreement(labels: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of each pair of heads, (starts, pairs)."""
    first, second = np.triu_indices(labels.shape[1], 1)
    return np.array([[adjusted_rand(row[a], row[b]) for a, b in zip(first, second, strict=True)] for row in labels])


def _together(forces: np.ndarray) -> np.ndarray:
    """The mean cosine over tokens of the forces of each pair of heads, (starts, pairs)."""
    unit = forces / np.linalg.norm(forces, axis=-1, keepdims=True)
    first, second = np.triu_indices(forces.shape[1], 1)
    return np.einsum("spnd,spnd->spn", unit[:, first], unit[:, second]).mean(-1)
