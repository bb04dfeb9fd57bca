"""What the experiment on rank collapse measures: layers with and without skips, feed-forward and norms, of one program.

The residual is the distance from equal tokens, ||X - 1 x^T|| / ||X||. Dong, Cordonnier, Loukas (2103.03404): attention
alone cubes it, layer by layer, so that after L layers it is raised to the power 3^L. Seven variants differ by four
flags and run in one compiled program with the same weights, fresh in each layer; a start has weights of its own. From
orthogonal tokens under attention alone one distance describes everything, and an exact recursion continues where
float64 ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..._observables import effective_rank
from ...plot import OKABE_ITO, style
from ...transformer import Block, FeedForward, LayerNorm, MultiHeadAttention, NoNorm, PostNorm, PreNorm
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus, within
from ..framework.figure import declared
from ..framework.verdict import ANY, UNSAID, Measured, Source, Subject
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import UNIFORM


# Whether there are skip connections, a feed-forward layer, a norm after each sub-layer, a norm before it.
PARTS = {
    "attention alone": (0, 0, 0, 0),
    "+ feed-forward": (0, 1, 0, 0),
    "+ layer norm": (0, 0, 1, 0),
    "+ skip": (1, 0, 0, 0),
    "block, no norm": (1, 1, 0, 0),
    "block, PostNorm": (1, 1, 1, 0),
    "block, PreNorm": (1, 1, 0, 1),
}
FEW, BETAS, PURE_LAYERS = 6, (1.5, 4.0, 6.0), 12  # orthogonal tokens, for the exact recursion
SPREADS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
LEAST = 1e-300  # in place of a residual that is zero, so that it has a logarithm
GONE = 1e-12  # a residual below it is none; rounding leaves 4e-16
RANKED = 32  # starts of which the rank is taken, at most


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=4, most=512)
    d: int = parameter(32, "the width of the layers, a multiple of heads", least=8, most=512)
    heads: int = parameter(4, "the number of heads", least=1, most=64)
    hidden: int = parameter(128, "the neurons of a feed-forward layer", least=1, most=4096)
    layers: int = parameter(24, "the number of layers", quick=12, least=12, most=200)

    def __post_init__(self):
        if self.d % self.heads:
            raise ValueError(f"heads must divide d, {self.d}, but it is {self.heads}; set another of the two.")


class Depths(NamedTuple):
    """What is left after each layer.

    **Attributes:**

    - `residual`: (variants, starts, layers + 1), $\\|X - 1\\bar x^\\top\\|_F / \\|X\\|_F$.
    - `rank`: (variants, few starts, layers + 1), the effective rank.
    - `first`: (variants, n, d), the tokens of the first start after the first layer.
    """

    residual: np.ndarray
    rank: np.ndarray
    first: np.ndarray


def _numbers(p: Parameters, seed: int, layer: int, starts: int) -> Float[Array, "starts numbers"]:
    """The weights of one layer, of each start; those of the first starts do not depend on how many there are."""
    # A generator for each layer: more layers or starts leave the earlier numbers as they are.
    rng = np.random.default_rng((seed, layer))
    return jnp.asarray(rng.normal(size=(starts, 4 * p.d * p.d + 2 * p.d * p.hidden)))


def _parts(p: Parameters, numbers: Float[Array, " numbers"]) -> tuple[MultiHeadAttention, FeedForward, LayerNorm]:
    """Normal weights of standard deviation 1 / sqrt(inputs), as `Block.random` has them."""
    d, size = p.d, 4 * p.d * p.d
    # One row of numbers is cut into query, key, value, output and both matrices of the feed-forward.
    heads, neurons = numbers[:size] / np.sqrt(d), numbers[size:].reshape(2, d, p.hidden)
    query, key, value, output = heads.reshape(4, p.heads, d, d // p.heads)
    attention = MultiHeadAttention(query, key, value, output.transpose(0, 2, 1))
    feed_forward = FeedForward(neurons[0] / np.sqrt(d), neurons[1].T / np.sqrt(p.hidden))
    return attention, feed_forward, LayerNorm.identity(d)


@eqx.filter_jit
def _one_layer(
    p: Parameters,
    parts: Float[Array, "variants 4"],
    numbers: Float[Array, "starts numbers"],
    x: Float[Array, "variants starts n d"],
) -> tuple[Float[Array, "variants starts n d"], Float[Array, "variants starts"]]:
    def apply(parts: Array, numbers: Array, x: Array) -> tuple[Array, Array]:
        # 0 or 1 each, as floats: traced, so that variants share a program.
        skip, with_neurons, after, before = parts
        attention, feed_forward, norm = _parts(p, numbers)
        read = lambda x: jnp.where(before > 0, norm(x), x)
        write = lambda x: jnp.where(after > 0, norm(x), x)
        middle = write(skip * x + attention(read(x)))
        # Computed for every variant and taken for some: where under vmap is a selection.
        y = jnp.where(with_neurons > 0, write(skip * middle + feed_forward(read(middle))), middle)
        return y, _residual(y)

    return jax.vmap(jax.vmap(apply, (None, 0, 0)), (0, None, 0))(parts, numbers, x)


def _residual(x: Float[Array, "n d"]) -> Float[Array, ""]:
    return jnp.linalg.norm(x - jnp.mean(x, axis=0)[None]) / jnp.linalg.norm(x)


@eqx.filter_jit
def _blocks(p: Parameters, numbers: Float[Array, " numbers"], x: Float[Array, "n d"]) -> Float[Array, "blocks n d"]:
    attention, feed_forward, norm = _parts(p, numbers)
    norms = lambda residual: (norm, norm) if residual.needs_norm else (None, None)
    return jnp.stack(
        [Block(attention, feed_forward, norms(kind), kind)(x) for kind in (NoNorm(), PostNorm(), PreNorm())]
    )


def difference_from_blocks(
    p: Parameters, seed: int, x: Float[np.ndarray, "n d"], first: Float[np.ndarray, "variants n d"]
) -> float:
    """How far the layers with everything, after the first layer from x, are from blocks, in units of the latter."""
    numbers = _numbers(p, seed, 0, 1)[0]
    expected = np.asarray(_blocks(p, numbers, jnp.asarray(x)))
    # The last three variants are those that are blocks, in the order of `_blocks`.
    return float(np.abs(first[-3:] - expected).max() / np.abs(expected).max())


def run_depths(p: Parameters, seed: int, x0: Float[np.ndarray, "starts n d"]) -> Depths:
    """Every variant from the same starts, through the same random weights, fresh ones in each layer."""
    parts, starts = jnp.asarray(np.array(list(PARTS.values()), float)), len(x0)
    x = jnp.asarray(np.broadcast_to(x0, (len(parts), *x0.shape)))
    residuals = [np.broadcast_to([_residual_of(one) for one in x0], (len(parts), starts))]
    ranks, first = [_ranks(x)], np.empty(0)
    for layer in range(p.layers):
        x, residual = _one_layer(p, parts, _numbers(p, seed, layer, starts), x)
        first = np.asarray(x)[:, 0] if layer == 0 else first
        # A residual of zero has no logarithm.
        residuals.append(np.maximum(np.asarray(residual), LEAST))
        ranks.append(_ranks(x))
    return Depths(np.stack(residuals, axis=-1), np.stack(ranks, axis=-1), first)


def through_one_layer(
    p: Parameters, seed: int, x0: Float[np.ndarray, "spreads starts n d"]
) -> tuple[Float[np.ndarray, "spreads starts"], Float[np.ndarray, "spreads variants starts"]]:
    """The residuals before and after the first layer, from tokens of several spreads."""
    parts = jnp.asarray(np.array(list(PARTS.values()), float))
    numbers = _numbers(p, seed, 0, x0.shape[1])
    each = lambda x: jnp.asarray(np.broadcast_to(x, (len(parts), *x.shape)))
    after = np.stack([np.asarray(_one_layer(p, parts, numbers, each(x))[1]) for x in x0])
    return np.array([[_residual_of(x) for x in cloud] for cloud in x0]), np.maximum(after, LEAST)


def _residual_of(x: np.ndarray) -> float:
    return float(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x))


_ranks_of = eqx.filter_jit(jax.vmap(jax.vmap(effective_rank)))


def _ranks(x: Float[Array, "variants starts n d"]) -> np.ndarray:
    return np.asarray(_ranks_of(jnp.asarray(np.asarray(x)[:, :RANKED])))


@eqx.filter_jit
def _pure(beta: Float[Array, " betas"], x: Float[Array, "betas n d"]) -> Float[Array, "betas n d"]:
    def attend(beta: Array, x: Array) -> Array:
        # One head, Q = K = V = I.
        eye = jnp.eye(x.shape[1], dtype=x.dtype)[None]
        return MultiHeadAttention(eye, eye, eye, eye, beta)(x)

    return jax.vmap(attend)(beta, x)


def pure_distances(n: int, betas: tuple[float, ...], layers: int) -> Float[np.ndarray, "betas depths"]:
    """The distance of two tokens after each layer of attention with Q = K = V = I, from n orthogonal tokens."""
    beta, x = jnp.asarray(betas), np.broadcast_to(np.eye(n), (len(betas), n, n))
    distances = []
    for _ in range(layers + 1):
        distances.append(np.linalg.norm(x[:, 0] - x[:, 1], axis=-1))
        x = np.asarray(_pure(beta, jnp.asarray(x)))
    return np.stack(distances, axis=-1)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `depths`: What is left after each layer.
    - `before`, `after`: The residuals before and after one layer, from several spreads.
    - `powers`: p in "residual after = C (residual before)^p", mean and standard error, by variant.
    - `gone`: After how many layers the residual is gone, mean and standard error, by variant.
    - `pure`, `exact`: (betas, layers + 1), the distance of orthogonal tokens under attention alone, and the recursion.
    - `off`: How far the layers with skips are from blocks of the package, relatively.
    """

    p: Parameters
    starts: int
    depths: Depths
    before: np.ndarray
    after: np.ndarray
    powers: dict[str, tuple[float, float]]
    gone: dict[str, tuple[float, float]]
    pure: np.ndarray
    exact: np.ndarray
    off: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Iterate all variants through the layers, and measure one layer and attention alone."""
    say("iterating")
    rng = np.random.default_rng(settings.seed)
    x0 = _on_sphere(rng.normal(size=(settings.starts, p.n, p.d)))
    depths = run_depths(p, settings.seed, x0)
    say("measuring one layer")
    middle = _on_sphere(rng.normal(size=(settings.starts, 1, p.d)))
    # Tokens about one direction, at several distances from it: a small residual to begin with.
    spreads = _on_sphere(middle + np.multiply.outer(np.array(SPREADS), x0))
    before, after = through_one_layer(p, settings.seed, spreads)
    powers = dict(zip(PARTS, (_power(before, one) for one in after.transpose(1, 0, 2)), strict=True))
    gone = dict(zip(PARTS, (layers_until_gone(one) for one in depths.residual), strict=True))
    exact = np.stack([recursion(FEW, beta, PURE_LAYERS) for beta in BETAS])
    pure = pure_distances(FEW, BETAS, PURE_LAYERS)
    off = difference_from_blocks(p, settings.seed, x0[0], depths.first)
    return Results(p, settings.starts, depths, before, after, powers, gone, pure, exact, off)


def recursion(n: int, beta: float, layers: int) -> np.ndarray:
    r"""$\delta \mapsto \delta\,(e^{\beta\delta^2/2} - 1) / (e^{\beta\delta^2/2} + n - 1)$ from $\sqrt2$, after each
    layer: the distance of tokens that are all equally far apart.

    The exponent $3^L$ is that of 2103.03404; the recursion follows from the symmetry of the tokens.
    """
    distances = [np.sqrt(2.0)]
    for _ in range(layers):
        # expm1: for a small distance e^x - 1 would be zero.
        lift = np.expm1(beta * distances[-1] ** 2 / 2)
        distances.append(distances[-1] * lift / (lift + n))
    return np.array(distances)


def _on_sphere(x: np.ndarray) -> np.ndarray:
    """Tokens of length sqrt(d), as a layer norm leaves them."""
    return np.sqrt(x.shape[-1]) * x / np.linalg.norm(x, axis=-1, keepdims=True)


def _power(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """p in "residual after = C (residual before)^p", from the two smallest spreads: mean over the starts and error."""
    # The two smallest spreads, where higher orders are least.
    powers = np.log(after[-2] / after[-1]) / np.log(before[-2] / before[-1])
    mean, error = mean_and_error(powers)
    return float(mean), float(error)


def layers_until_gone(residual: np.ndarray) -> tuple[float, float]:
    """After how many layers a residual (starts, layers + 1) is gone; the depth + 1 for those that are not."""
    below = residual < GONE
    mean, error = mean_and_error(np.where(below.any(1), below.argmax(1), residual.shape[1]))
    return float(mean), float(error)


# Rank collapse: attention alone makes all tokens one, doubly exponentially fast; what slows it.


THEOREM = Source("2103.03404, Theorem 2.2, of any weights", ANY, ANY)
TRAINED = Source("2103.03404, Section 4", Subject("bert-albert-xlnet", "pretrained BERT, ALBERT and XLNet"), UNSAID)
RANDOM = Subject("random-layers", "layers with random weights")
ALONE, NEURONS, NORMED, SKIPPED, PLAIN, POST, PRE = PARTS


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        f"{m.starts} starts",
        (
            *_exact_claims(m.pure, m.exact, m.off),
            *_claims_one_layer(m.powers, m.depths, m.gone),
            *_slowed(m.depths, m.p),
            _postponed(m.exact),
        ),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the experiment."""
    _, skips, neurons, _ = claims[3:7]
    p, starts, gone, depths = m.p, m.starts, m.gone, m.depths
    return (
        f"(a) Distance of two of {FEW} orthogonal tokens under attention alone, Q = K = V = I: dots are the layers, "
        "lines an exact recursion, which goes on where float64 ends (grey). (b) One layer with random weights: the "
        "residual, the distance from equal tokens in units of the size, after it against before it. Without skips it "
        "is cubed, with them multiplied. (c), (d): residual (geometric mean) and effective rank against depth, for "
        f"{starts} starts of {p.n} random tokens of length sqrt(d), d = {p.d}, {p.heads} heads, with normal weights, "
        f"fresh in each of {p.layers} layers; bands are standard errors, mostly thinner than the lines. The residual "
        f"of attention alone is below {GONE:g} after {plus_minus(*gone[ALONE], 1)} layers, with a feed-forward layer "
        f"behind it after {plus_minus(*gone[NEURONS], 1)}, with a layer norm after {plus_minus(*gone[NORMED], 1)}. "
        "With skip connections tokens gather all the same, but only exponentially with PostNorm, whose effective rank "
        f"ends at {float(depths.rank[list(PARTS).index(POST), :, -1].mean()):.2f}, and ever more slowly with PreNorm. "
        + (
            "So of the two remedies of 2103.03404 skips work, and feed-forward layers without skips do not, at least "
            "with weights as at the start of training."
            if skips.holds and not neurons.holds
            else "Whether the two remedies of 2103.03404 work here, the claims say."
        )
    )


def _exact_claims(pure: np.ndarray, exact: np.ndarray, off: float) -> tuple[Claim, ...]:
    # Below, float64 has too few digits of a distance of unit vectors.
    seen = exact > 1e-7
    defect = float(np.abs(pure[seen] / exact[seen] - 1).max())
    # Small enough for the cube to be the leading term, large enough to be measured.
    small = (exact[:, :-1] < 0.03) & (exact[:, 1:] > 1e-9)
    cubic = (np.array(BETAS)[:, None] / (2 * FEW) * pure[:, :-1] ** 3)[small]
    farthest = float(np.abs(pure[:, 1:][small] / cubic - 1).max())
    return (
        Claim(
            says="From orthogonal tokens attention alone takes the distance of two tokens to d (e^(beta d^2 / 2) - 1) "
            "/ (e^(beta d^2 / 2) + n - 1), layer by layer.",
            measured=f"largest relative difference {defect:.1e} over {int(seen.sum())} distances above 1e-7",
            criterion="less than 1e-6; below that float64 has too few digits",
            holds=defect < 1e-6,
            kind="identity",
            value=defect,
        ),
        Claim(
            says="Small distances are cubed: d becomes (beta / 2n) d^3, so that L layers raise it to the power 3^L.",
            measured=f"the ratio to it, over {len(cubic)} distances below 0.03: 1 to within {farthest:.1e}",
            criterion="within 1e-3",
            holds=farthest < 1e-3,
            kind="identity",
            value=farthest,
        ),
        Claim(
            says="The layers with skips are blocks of `clusterjax.transformer`: NoNorm, PostNorm, PreNorm.",
            measured=f"largest relative difference {off:.1e}",
            criterion="less than 1e-12",
            holds=off < 1e-12,
            kind="identity",
            value=off,
        ),
    )


def _claims_one_layer(
    powers: dict[str, tuple[float, float]], depths: Depths, gone: dict[str, tuple[float, float]]
) -> tuple[Claim, ...]:
    """What a layer does to a small residual, and the two remedies of the paper."""
    last = dict(zip(PARTS, depths.residual[:, :, -1], strict=True))
    kept = float(np.log10(last[SKIPPED]).mean())
    said = lambda name: f"residual after one layer ~ (before)^p with p = {plus_minus(*powers[name], 4)}"
    return (
        Claim(
            says="Without skip connections and feed-forward layers tokens become one doubly exponentially fast "
            "(2103.03404), for random tokens and weights too.",
            measured=f"{said(ALONE)}; below {GONE:g} after {plus_minus(*gone[ALONE])} layers",
            criterion="p is 3 to within 0.1, and all starts are below it at the end",
            holds=within(powers[ALONE][0], 3.0, 0.1) and bool(last[ALONE].max() < GONE),
            kind="paper",
            value=powers[ALONE][0],
            error=powers[ALONE][1],
            source=THEOREM,
        ),
        Claim(
            says="Skip connections stop this collapse (2103.03404).",
            measured=f"{said(SKIPPED)}; geometric mean of the residual after the last layer 10^{kept:.2f}",
            criterion="p is 1 to within 0.1, and no start comes below 1e-6",
            holds=within(powers[SKIPPED][0], 1.0, 0.1) and bool(last[SKIPPED].min() > 1e-6),
            kind="paper",
            value=powers[SKIPPED][0],
            error=powers[SKIPPED][1],
            source=TRAINED,
        ),
        Claim(
            says="Feed-forward layers stop this collapse (2103.03404), here without skips and with random weights.",
            measured=f"{said(NEURONS)}; below {GONE:g} after {plus_minus(*gone[NEURONS])} layers",
            criterion="p is below 2, and no start comes below 1e-6",
            holds=powers[NEURONS][0] < 2 and bool(last[NEURONS].min() > 1e-6),
            kind="paper",
            value=powers[NEURONS][0],
            error=powers[NEURONS][1],
            source=TRAINED,
        ),
        Claim(
            says="A layer norm without skips does not stop this collapse, and postpones it by a few layers.",
            measured=f"{said(NORMED)}; below {GONE:g} after {plus_minus(*gone[NORMED])} layers, against "
            f"{plus_minus(*gone[ALONE])} without it",
            criterion="p is 3 to within 0.1, and later by more than two standard errors but less than four layers",
            holds=within(powers[NORMED][0], 3.0, 0.1) and _later(gone[NORMED], gone[ALONE]),
            kind="finding",
            value=powers[NORMED][0],
            error=powers[NORMED][1],
        ),
    )


def _later(one: tuple[float, float], other: tuple[float, float]) -> bool:
    gap = one[0] - other[0]
    # Surely later, and yet by less than four layers.
    return bool(2 * np.hypot(one[1], other[1]) < gap < 4)


def _slowed(depths: Depths, p: Parameters) -> tuple[Claim, ...]:
    """How fast tokens gather with skips."""
    logs = dict(zip(PARTS, np.log10(depths.residual), strict=True))
    layers, half = p.layers, p.layers // 2
    # Per layer, of each start.
    rate = lambda name, start, end: mean_and_error((logs[name][:, end] - logs[name][:, start]) / (end - start))
    ends = {name: mean_and_error(logs[name][:, -1]) for name in (SKIPPED, PLAIN, POST, PRE)}
    gaps = {name: mean_and_error(logs[PRE][:, -1] - logs[name][:, -1]) for name in (SKIPPED, PLAIN, POST)}
    (early, of_early), (late, of_late) = rate(PRE, 0, half), rate(PRE, half, layers)
    (post, of_post), slower = rate(POST, half, layers), mean_and_error(_change(logs[PRE], half))
    ranks = dict(zip(PARTS, (mean_and_error(one[:, -1]) for one in depths.rank), strict=True))
    return (
        Claim(
            says="With skips tokens gather all the same, most slowly with PreNorm.",
            measured=f"log10 of the residual after {layers} layers: "
            + "; ".join(f"{name} {plus_minus(*ends[name])}" for name in ends),
            criterion="PreNorm keeps more than each of the others, start by start, by more than two standard errors",
            holds=all(gap > 2 * error for gap, error in gaps.values()),
            kind="finding",
            value=float(ends[PRE][0]),
            error=float(ends[PRE][1]),
        ),
        Claim(
            says="With PreNorm the residual falls more slowly in the second half of the layers than in the first, "
            "and than with PostNorm.",
            measured=f"log10 of the residual a layer, PreNorm: {plus_minus(early, of_early, 3)} in the first half and "
            f"{plus_minus(late, of_late, 3)} in the second; PostNorm: {plus_minus(post, of_post, 3)} in the second",
            criterion="PreNorm slows down, and is slower than PostNorm in the second half, each by more than two "
            "standard errors",
            holds=bool(slower[0] > 2 * slower[1] and late - post > 2 * np.hypot(of_late, of_post)),
            kind="finding",
            value=float(late),
            error=float(of_late),
        ),
        Claim(
            says="In the end the tokens of attention alone have rank one, and those of blocks with PreNorm have not.",
            measured=f"effective rank after {layers} layers, of at most {p.d}: "
            + "; ".join(f"{name} {plus_minus(*ranks[name])}" for name in (ALONE, SKIPPED, PLAIN, POST, PRE)),
            criterion="1.00 for attention alone; with PreNorm above 2 by four standard errors",
            holds=within(float(ranks[ALONE][0]), 1.0, 0.005) and bool(ranks[PRE][0] - 4 * ranks[PRE][1] > 2),
            kind="finding",
            value=float(ranks[PRE][0]),
            error=float(ranks[PRE][1]),
        ),
    )


def _change(logs: np.ndarray, half: int) -> np.ndarray:
    """How much less is lost a layer in the second half than in the first, of each start."""
    last = logs.shape[1] - 1
    return (logs[:, -1] - logs[:, half]) / (last - half) - (logs[:, half] - logs[:, 0]) / half


def _postponed(exact: np.ndarray) -> Claim:
    """From the recursion: how many layers until the distance is below 1e-3."""
    layers = [int(np.argmax(row < 1e-3)) for row in exact]
    return Claim(
        says="From orthogonal tokens a larger beta postpones the collapse and does not prevent it.",
        measured=f"{FEW} tokens are less than 1e-3 apart after "
        + ", ".join(f"{k} layers (beta = {beta:g})" for k, beta in zip(layers, BETAS, strict=True)),
        criterion="the more layers the larger beta, all within the depth",
        holds=bool((np.diff(layers) > 0).all() and min(layers) > 0),
        kind="finding",
        value=float(layers[-1]),
    )


# The panels of the experiment on rank collapse.


COLOURS = tuple(OKABE_ITO[k] for k in (7, 5, 3, 4, 0, 1, 2))
MARKERS = ("o", "v", "s", "D", "P", "^", "X")
FLOOR = 4e-16


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _distances(axes[0, 0], m.pure, m.exact)
    _panels_one_layer(axes[0, 1], m.before, m.after)
    _residuals(axes[1, 0], m.depths.residual)
    _panels_ranks(axes[1, 1], m.depths.rank, m.p.d)
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    # That panel has all seven variants.
    handles, names = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, handlelength=2.0)
    return figure


def _floor(ax: Axes, least: float) -> None:
    # Below rounding: what lies in the grey band says nothing.
    ax.axhspan(least, FLOOR, color="0.88", lw=0, zorder=0)


def _distances(ax: Axes, pure: np.ndarray, exact: np.ndarray) -> None:
    layers = np.arange(pure.shape[1])
    for k, beta in enumerate(BETAS):
        colour = OKABE_ITO[(4, 0, 7)[k]]
        ax.plot(layers, np.maximum(exact[k], 1e-90), color=colour, lw=1)
        # Dots end where rounding begins; the exact line goes on.
        seen = pure[k] > FLOOR / 4
        ax.plot(layers[seen], pure[k][seen], "o", ms=3, color=colour, label=rf"$\beta$ = {beta:g}")
    _floor(ax, 1e-24)
    ax.set(yscale="log", ylim=(1e-24, 5), xlim=(-0.4, 12.4), xlabel="layer", ylabel="distance of two tokens",
           title="attention alone, orthogonal start")  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc=(0.68, 0.42))


def _panels_one_layer(ax: Axes, before: np.ndarray, after: np.ndarray) -> None:
    # Geometric means: residuals spread over orders of magnitude.
    middle = np.exp(np.log(before).mean(1))
    for k, name in enumerate(PARTS):
        ax.plot(
            middle, np.exp(np.log(after[:, k]).mean(1)), marker=MARKERS[k], ms=4, lw=1, color=COLOURS[k], label=name
        )
    # Guides of slope 1 and 3.
    ends = np.array([1.5e-3, 3e-2])
    for power, height, what in ((1, 4.0, "with skips"), (3, 0.02, "without skips")):
        ax.plot(ends, height * ends**power, color="0.3", ls=":", lw=0.9)
        ax.text(ends[1] * 1.1, height * ends[1] ** power, f"{what}: slope {power}", fontsize=7, ha="left",
                va="bottom" if power == 1 else "top")  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="residual before", ylabel="residual after",
           xlim=(7e-4, 0.5), ylim=(3e-11, 2), title="one layer, random weights")  # fmt: skip


def _residuals(ax: Axes, residual: np.ndarray) -> None:
    layers = np.arange(residual.shape[2])
    for k, name in enumerate(PARTS):
        mean, error = mean_and_error(np.log(residual[k]))
        ax.plot(layers, np.exp(mean), color=COLOURS[k], marker=MARKERS[k], ms=3, lw=1, label=name)
        ax.fill_between(layers, np.exp(mean - error), np.exp(mean + error), color=COLOURS[k], alpha=0.25, lw=0)
    _floor(ax, 1e-17)
    ax.set(yscale="log", ylim=(1e-17, 3), xlabel="layer", ylabel="residual", title="random start and weights")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _panels_ranks(ax: Axes, rank: np.ndarray, d: int) -> None:
    layers = np.arange(rank.shape[2])
    for k in range(len(PARTS)):
        mean, error = mean_and_error(rank[k])
        ax.plot(layers, mean, color=COLOURS[k], marker=MARKERS[k], ms=3, lw=1)
        ax.fill_between(layers, mean - error, mean + error, color=COLOURS[k], alpha=0.25, lw=0)
    ax.set(yscale="log", xlabel="layer", ylabel="effective rank", title="random start and weights", ylim=(0.9, d))
    ax.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    ax.minorticks_off()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


# Rank collapse as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    size = {"tokens": p.n, "d": p.d, "heads": p.heads, "layers": p.layers, "starts": m.starts}
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": p.d, "heads": p.heads, "hidden": p.hidden, "layers": p.layers, "starts": m.starts,
         "weights": "normal, of variance 1 / inputs, fresh in each layer", "solver": "none: layers in float64",
         "orthogonal tokens": FEW, "beta of these": list(BETAS)},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(RANDOM, UNIFORM, size),
    )  # fmt: skip


def _series(m: Results) -> dict:
    # By variant: mean over starts and error, (layers + 1,) each.
    logs = dict(zip(PARTS, (mean_and_error(np.log10(one)) for one in m.depths.residual), strict=True))
    return (
        {"layer": np.arange(m.p.layers + 1)}
        | {
            f"log10 residual, {name}{what}": part
            for name, both in logs.items()
            for what, part in zip(("", ", error"), both, strict=True)
        }
        | {f"distance_by_layer, orthogonal, beta = {beta:g}": m.pure[k] for k, beta in enumerate(BETAS)}
    )


FIGURE = declared("rank-collapse", _run, parameters=Parameters)
