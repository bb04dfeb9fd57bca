"""Rank collapse (2103.03404): attention alone makes tokens equal, doubly exponentially fast in depth. What stops it?

The residual is the distance from equal tokens, ||X - 1 x^T|| / ||X||. Attention alone cubes the residual in each layer,
so that L layers raise it to the power 3^L. Seven variants of a layer differ by four flags, and run in one compiled
program with the same random weights, which differ between layers and between starts. From orthogonal tokens under
attention alone one distance describes all tokens, and an exact recursion continues where float64 ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, plus_minus, unmet, within
from ..framework.verdict import ANY, UNSAID, Measured, Source, Subject
from ..shared.ensemble import mean_and_error
from ..shared.layout import panels
from ..shared.sources import UNIFORM


# Flags of a variant: skip connections, a feed-forward layer, a norm after each sub-layer, a norm before each sub-layer.
PARTS = {
    "attention alone": (0, 0, 0, 0),
    "+ feed-forward": (0, 1, 0, 0),
    "+ layer norm": (0, 0, 1, 0),
    "+ skip": (1, 0, 0, 0),
    "block, no norm": (1, 1, 0, 0),
    "block, PostNorm": (1, 1, 1, 0),
    "block, PreNorm": (1, 1, 0, 1),
}
ALONE, NEURONS, NORMED, SKIPPED, PLAIN, POST, PRE = PARTS
FLAGS = np.array(list(PARTS.values()), float)
# The orthogonal tokens: their number, their betas, and the number of layers.
FEW, BETAS, PURE_LAYERS = 6, (1.5, 4.0, 6.0), 12
SPREADS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
LEAST = 1e-300  # replaces a residual of zero, which has no logarithm
GONE = 1e-12  # a smaller residual counts as zero; rounding errors leave 4e-16
RANKED = 32  # the largest number of starts of which the rank is computed


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens", least=4, most=512)
    d: int = parameter(32, "the width of the layers, a multiple of heads", least=8, most=512)
    heads: int = parameter(4, "the number of heads", least=1, most=64)
    hidden: int = parameter(128, "the number of neurons of a feed-forward layer", least=1, most=4096)
    layers: int = parameter(24, "the number of layers", quick=12, least=12, most=200)

    def __post_init__(self):
        if self.d % self.heads:
            raise ValueError(f"heads must divide d, {self.d}, but it is {self.heads}; set another of the two.")


MeanAndError = tuple[float, float]


class Results(NamedTuple):
    p: Parameters
    starts: int
    residual: np.ndarray  # the residual after each layer, (variants, starts, layers + 1)
    rank: np.ndarray  # the effective rank after each layer, (variants, few starts, layers + 1)
    # `before`, `after`: the residuals before and after one layer, (spreads, starts) and (spreads, variants, starts)
    before: np.ndarray
    after: np.ndarray
    powers: dict[str, MeanAndError]  # the power p of "residual after = C (residual before)^p", by variant
    gone: dict[str, MeanAndError]  # the number of layers until the residual is gone, by variant
    # `pure`, `exact`: the distance of orthogonal tokens under attention alone, and the recursion, (betas, layers + 1)
    pure: np.ndarray
    exact: np.ndarray
    off: float  # the relative difference of the layers with skips from blocks of the package


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say("passing tokens through the layers")
    rng, seed = np.random.default_rng(settings.seed), settings.seed
    x0 = _on_sphere(rng.normal(size=(settings.starts, p.n, p.d)))
    residual, rank, first = run_depths(p, seed, x0)
    say("measuring one layer")
    middle = _on_sphere(rng.normal(size=(settings.starts, 1, p.d)))
    # Tokens near one direction have a small residual at first.
    spreads = _on_sphere(middle + np.multiply.outer(np.array(SPREADS), x0))
    numbers = _numbers(p, seed, 0, settings.starts)
    before = np.array([[_residual_of(x) for x in cloud] for cloud in spreads])
    after = np.stack([_one_layer(p, jnp.asarray(FLAGS), numbers, _for_each(x))[1] for x in spreads])
    after = np.maximum(after, LEAST)
    powers = dict(zip(PARTS, (_power(before, values) for values in after.transpose(1, 0, 2)), strict=True))
    gone = dict(zip(PARTS, map(layers_until_gone, residual), strict=True))
    exact = np.stack([recursion(FEW, beta, PURE_LAYERS) for beta in BETAS])
    off = _difference_from_blocks(p, seed, x0[0], first)
    return Results(p, settings.starts, residual, rank, before, after, powers, gone, _pure_distances(), exact, off)


def _on_sphere(x: np.ndarray) -> np.ndarray:
    """Tokens of norm sqrt(d), as after a layer norm."""
    return np.sqrt(x.shape[-1]) * x / np.linalg.norm(x, axis=-1, keepdims=True)


def _residual_of(x: np.ndarray) -> float:
    return float(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x))


def _for_each(x: np.ndarray) -> Float[Array, "variants starts n d"]:
    return jnp.asarray(np.broadcast_to(x, (len(PARTS), *x.shape)))


def _numbers(p: Parameters, seed: int, layer: int, starts: int) -> Float[Array, "starts numbers"]:
    """The random numbers of the weights of one layer, for each start."""
    # Each layer has its own generator, so that more layers or starts leave the earlier numbers as they are.
    rng = np.random.default_rng((seed, layer))
    return jnp.asarray(rng.normal(size=(starts, 4 * p.d * p.d + 2 * p.d * p.hidden)))


def _parts(p: Parameters, numbers: Float[Array, " numbers"]) -> tuple[MultiHeadAttention, FeedForward, LayerNorm]:
    """A layer with normal weights of standard deviation 1 / sqrt(inputs), as in `Block.random`."""
    d, size = p.d, 4 * p.d * p.d
    heads, neurons = numbers[:size] / np.sqrt(d), numbers[size:].reshape(2, d, p.hidden)
    query, key, value, output = heads.reshape(4, p.heads, d, d // p.heads)
    attention = MultiHeadAttention(query, key, value, output.transpose(0, 2, 1))
    feed_forward = FeedForward(neurons[0] / np.sqrt(d), neurons[1].T / np.sqrt(p.hidden))
    return attention, feed_forward, LayerNorm.identity(d)


@eqx.filter_jit
def _one_layer(
    p: Parameters,
    flags: Float[Array, "variants 4"],
    numbers: Float[Array, "starts numbers"],
    x: Float[Array, "variants starts n d"],
) -> tuple[Float[Array, "variants starts n d"], Float[Array, "variants starts"]]:
    """The tokens after one layer, and their residuals."""

    def apply(flags: Array, numbers: Array, x: Array) -> tuple[Array, Array]:
        # The flags are traced floats, 0 or 1, so that all variants share one program.
        skip, with_neurons, after, before = flags
        attention, feed_forward, norm = _parts(p, numbers)
        read = lambda x: jnp.where(before > 0, norm(x), x)
        write = lambda x: jnp.where(after > 0, norm(x), x)
        middle = write(skip * x + attention(read(x)))
        y = jnp.where(with_neurons > 0, write(skip * middle + feed_forward(read(middle))), middle)
        return y, jnp.linalg.norm(y - jnp.mean(y, axis=0)[None]) / jnp.linalg.norm(y)

    return jax.vmap(jax.vmap(apply, (None, 0, 0)), (0, None, 0))(flags, numbers, x)


_ranks = eqx.filter_jit(jax.vmap(jax.vmap(effective_rank)))


def run_depths(
    p: Parameters, seed: int, x0: Float[np.ndarray, "starts n d"]
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "variants n d"]]:
    """The residuals and the effective ranks after each layer, and the first start after the first layer."""
    x = _for_each(x0)
    residuals = [np.broadcast_to([_residual_of(start) for start in x0], x.shape[:2])]
    ranks, first = [_ranks(x[:, :RANKED])], np.empty(0)
    for layer in range(p.layers):
        x, residual = _one_layer(p, jnp.asarray(FLAGS), _numbers(p, seed, layer, len(x0)), x)
        first = np.asarray(x)[:, 0] if layer == 0 else first
        residuals.append(np.maximum(np.asarray(residual), LEAST))
        ranks.append(_ranks(x[:, :RANKED]))
    return np.stack(residuals, axis=-1), np.stack(ranks, axis=-1), first


def _difference_from_blocks(p: Parameters, seed: int, x: np.ndarray, first: np.ndarray) -> float:
    """The relative difference of the last three variants, after the first layer, from blocks."""

    @eqx.filter_jit
    def blocks(numbers: Array, x: Array) -> Array:
        attention, feed_forward, norm = _parts(p, numbers)
        norms = lambda kind: (norm, norm) if kind.needs_norm else (None, None)
        kinds = NoNorm(), PostNorm(), PreNorm()
        return jnp.stack([Block(attention, feed_forward, norms(kind), kind)(x) for kind in kinds])

    expected = np.asarray(blocks(_numbers(p, seed, 0, 1)[0], jnp.asarray(x)))
    return float(np.abs(first[-3:] - expected).max() / np.abs(expected).max())


def _pure_distances() -> Float[np.ndarray, "betas depths"]:
    """The distance of two tokens after each layer of attention with Q = K = V = I, from orthogonal tokens."""
    eye = jnp.eye(FEW)[None]
    attend = eqx.filter_jit(jax.vmap(lambda beta, x: MultiHeadAttention(eye, eye, eye, eye, beta)(x)))
    x, distances = np.broadcast_to(np.eye(FEW), (len(BETAS), FEW, FEW)), []
    for _ in range(PURE_LAYERS + 1):
        distances.append(np.linalg.norm(x[:, 0] - x[:, 1], axis=-1))
        x = np.asarray(attend(jnp.asarray(BETAS), jnp.asarray(x)))
    return np.stack(distances, axis=-1)


def recursion(n: int, beta: float, layers: int) -> np.ndarray:
    """The distance of tokens at equal distances after each layer, from √2, by
    $δ ↦ δ (exp(βδ²/2) - 1) / (exp(βδ²/2) + n - 1)$.

    The exponent $3^L$ is from 2103.03404; the recursion follows from the symmetry of the tokens.
    """
    distances = [np.sqrt(2.0)]
    for _ in range(layers):
        # expm1 keeps the digits of e^x - 1 at small distances.
        lift = np.expm1(beta * distances[-1] ** 2 / 2)
        distances.append(distances[-1] * lift / (lift + n))
    return np.array(distances)


def _power(before: np.ndarray, after: np.ndarray) -> MeanAndError:
    """The power p from the two smallest spreads, where higher orders are smallest."""
    mean, error = mean_and_error(np.log(after[-2] / after[-1]) / np.log(before[-2] / before[-1]))
    return float(mean), float(error)


def layers_until_gone(residual: np.ndarray) -> MeanAndError:
    """The number of layers until a residual (starts, layers + 1) is gone; layers + 1 if it never is."""
    below = residual < GONE
    mean, error = mean_and_error(np.where(below.any(1), below.argmax(1), residual.shape[1]))
    return float(mean), float(error)


THEOREM = Source("2103.03404, Theorem 2.2, of any weights", ANY, ANY)
TRAINED = Source("2103.03404, Section 4", Subject("bert-albert-xlnet", "pretrained BERT, ALBERT and XLNet"), UNSAID)


@claim("less than 1e-6; smaller distances have too few digits in float64", kind="identity")
def exact_recursion(m: Results) -> Found:
    """From orthogonal tokens attention alone maps the distance d of two tokens to d (e^(beta d^2 / 2) - 1) / (e^(beta
    d^2 / 2) + n - 1), layer by layer."""
    large = m.exact > 1e-7
    off = float(np.abs(m.pure[large] / m.exact[large] - 1).max())
    words = f"the largest relative difference over {int(large.sum())} distances above 1e-7 is {off:.1e}"
    return Found(words, off < 1e-6, off)


@claim("the ratio is within 1e-3 of 1", kind="identity")
def cubed(m: Results) -> Found:
    """Small distances are cubed: d becomes (beta / 2n) d^3, so that L layers raise d to the power 3^L."""
    # The cube dominates at these distances, and rounding errors do not.
    small = (m.exact[:, :-1] < 0.03) & (m.exact[:, 1:] > 1e-9)
    cubic = (np.array(BETAS)[:, None] / (2 * FEW) * m.pure[:, :-1] ** 3)[small]
    off = float(np.abs(m.pure[:, 1:][small] / cubic - 1).max())
    words = f"the ratio to this value differs from 1 by at most {off:.1e} over {len(cubic)} distances below 0.03"
    return Found(words, off < 1e-3, off)


@claim("less than 1e-12", kind="identity")
def blocks(m: Results) -> Found:
    """The layers with skip connections equal blocks of `clusterjax.transformer` with NoNorm, PostNorm and PreNorm."""
    return Found(f"the largest relative difference is {m.off:.1e}", m.off < 1e-12, m.off)


def _last(m: Results, name: str) -> np.ndarray:
    """The residual of a variant after the last layer, (starts,)."""
    return m.residual[list(PARTS).index(name), :, -1]


def _decay(m: Results, name: str, gone: bool = True) -> str:
    words = f"the residual after one layer scales like (before)^p with p = {plus_minus(*m.powers[name], 4)}"
    return f"{words}; the residual is below {GONE:g} after {plus_minus(*m.gone[name])} layers" if gone else words


@claim("p is 3 to within 0.1, and the residuals of all starts are below 1e-12 at the end", source=THEOREM)
def collapse(m: Results) -> Found:
    """Without skip connections and feed-forward layers random tokens become equal doubly exponentially fast under
    random weights (2103.03404)."""
    holds = within(m.powers[ALONE][0], 3.0, 0.1) and _last(m, ALONE).max() < GONE
    return Found(_decay(m, ALONE), holds, *m.powers[ALONE])


@claim("p is 1 to within 0.1, and no residual is below 1e-6 at the end", source=TRAINED)
def skips(m: Results) -> Found:
    """Skip connections stop the rank collapse (2103.03404)."""
    last = _last(m, SKIPPED)
    words = f"the geometric mean of the residual after the last layer is 10^{float(np.log10(last).mean()):.2f}"
    holds = within(m.powers[SKIPPED][0], 1.0, 0.1) and last.min() > 1e-6
    return Found(f"{_decay(m, SKIPPED, gone=False)}; {words}", holds, *m.powers[SKIPPED])


@claim("p is below 2, and no residual is below 1e-6 at the end", source=TRAINED)
def neurons(m: Results) -> Found:
    """Feed-forward layers stop the rank collapse (2103.03404), here without skips and with random weights."""
    holds = m.powers[NEURONS][0] < 2 and _last(m, NEURONS).min() > 1e-6
    return Found(_decay(m, NEURONS), holds, *m.powers[NEURONS])


@claim("p is 3 to within 0.1, and the delay is more than two standard errors but less than four layers")
def layer_norm(m: Results) -> Found:
    """A layer norm without skip connections does not stop the rank collapse, but postpones it by a few layers."""
    (normed, normed_error), (alone, alone_error) = m.gone[NORMED], m.gone[ALONE]
    holds = within(m.powers[NORMED][0], 3.0, 0.1) and 2 * np.hypot(normed_error, alone_error) < normed - alone < 4
    return Found(f"{_decay(m, NORMED)}, and after {plus_minus(*m.gone[ALONE])} without it", holds, *m.powers[NORMED])


def _logs(m: Results, name: str) -> np.ndarray:
    return np.log10(m.residual[list(PARTS).index(name)])


@claim("the residual with PreNorm is larger than each of the others, start by start, by more than two standard errors")
def gather(m: Results) -> Found:
    """With skip connections tokens gather most slowly with PreNorm."""
    ends = {name: _logs(m, name)[:, -1] for name in (SKIPPED, PLAIN, POST, PRE)}
    means = {name: mean_and_error(end) for name, end in ends.items()}
    gaps = [mean_and_error(ends[PRE] - ends[name]) for name in (SKIPPED, PLAIN, POST)]
    listed = "; ".join(f"{plus_minus(*pair)} ({name})" for name, pair in means.items())
    holds = all(gap > 2 * error for gap, error in gaps)
    words = f"log10 of the residual after {m.p.layers} layers is {listed}"
    return Found(words, holds, *means[PRE])


@claim("PreNorm slows down, and is slower than PostNorm in the second half, each by more than two standard errors")
def slows_down(m: Results) -> Found:
    """With PreNorm the residual decreases more slowly in the second half of the layers than in the first half, and more
    slowly than with PostNorm."""
    layers, half = m.p.layers, m.p.layers // 2
    per_layer = lambda name, start, end: (_logs(m, name)[:, end] - _logs(m, name)[:, start]) / (end - start)
    first, second = per_layer(PRE, 0, half), per_layer(PRE, half, layers)
    post, post_error = mean_and_error(per_layer(POST, half, layers))
    (late, late_error), (gain, gain_error) = mean_and_error(second), mean_and_error(second - first)
    return Found(
        f"log10 of the residual changes per layer by {plus_minus(*mean_and_error(first), 3)} in the first half and by "
        f"{plus_minus(late, late_error, 3)} in the second half with PreNorm, and by {plus_minus(post, post_error, 3)} "
        "in the second half with PostNorm",
        gain > 2 * gain_error and late - post > 2 * np.hypot(late_error, post_error),
        late, late_error,
    )  # fmt: skip


@claim("1.00 for attention alone; with PreNorm above 2 by four standard errors")
def final_rank(m: Results) -> Found:
    """In the end tokens of attention alone have rank one, and tokens of blocks with PreNorm have a higher rank."""
    ranks = dict(zip(PARTS, (mean_and_error(rank[:, -1]) for rank in m.rank), strict=True))
    listed = "; ".join(f"{plus_minus(*ranks[name])} ({name})" for name in (ALONE, SKIPPED, PLAIN, POST, PRE))
    mean, error = ranks[PRE]
    holds = within(float(ranks[ALONE][0]), 1.0, 0.005) and mean - 4 * error > 2
    words = f"the effective rank after {m.p.layers} layers, at most {m.p.d}, is {listed}"
    return Found(words, holds, mean, error)


@claim("the number of layers increases with beta, and all are within the depth")
def postponed(m: Results) -> Found:
    """From orthogonal tokens a larger beta postpones the collapse, but does not prevent it."""
    layers = [int(np.argmax(row < 1e-3)) for row in m.exact]
    listed = ", ".join(f"{k} layers (beta = {beta:g})" for k, beta in zip(layers, BETAS, strict=True))
    holds = (np.diff(layers) > 0).all() and min(layers) > 0
    return Found(f"the distance of {FEW} tokens is less than 1e-3 after {listed}", holds, layers[-1])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"(a) The distance of two of {FEW} orthogonal tokens under attention alone, Q = K = V = I: dots are the "
        "layers, lines are an exact recursion, which continues where float64 ends (grey). (b) One layer with random "
        "weights: the residual, which is the distance from equal tokens over the norm, after the layer against before "
        "it. Without skip connections the residual is cubed, with them it is multiplied by a factor. (c), (d): The "
        f"residual (geometric mean) and the effective rank against depth, for {m.starts} starts of {m.p.n} random "
        f"tokens of norm sqrt(d), d = {m.p.d}, {m.p.heads} heads, with normal weights that differ between the "
        f"{m.p.layers} layers; bands are standard errors, mostly smaller than the width of the lines. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table = {"layer": np.arange(m.p.layers + 1)}
    for name in PARTS:
        label = f"log10 residual, {name}"
        table[label], table[f"{label}, error"] = mean_and_error(_logs(m, name))
    return table | {f"distance_by_layer, orthogonal, beta = {beta:g}": m.pure[k] for k, beta in enumerate(BETAS)}


COLOURS = tuple(OKABE_ITO[k] for k in (7, 5, 3, 4, 0, 1, 2))
MARKERS = ("o", "v", "s", "D", "P", "^", "X")
FLOOR = 4e-16  # smaller values, in the grey band, are rounding errors


@style()
def draw(m: Results) -> Figure:
    figure = panels(m, (_distances, _one_layer_panel, _residuals, _ranks_panel), columns=2, height=5.2)
    # The residuals are drawn for all seven variants.
    handles, names = figure.axes[2].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, handlelength=2.0)
    return figure


def _distances(ax: Axes, m: Results) -> None:
    layers = np.arange(m.pure.shape[1])
    for pure, exact, beta, colour in zip(m.pure, m.exact, BETAS, (OKABE_ITO[k] for k in (4, 0, 7)), strict=True):
        ax.plot(layers, np.maximum(exact, 1e-90), color=colour, lw=1)
        above = pure > FLOOR / 4
        ax.plot(layers[above], pure[above], "o", ms=3, color=colour, label=rf"$\beta$ = {beta:g}")
    ax.axhspan(1e-24, FLOOR, color="0.88", lw=0, zorder=0)
    ax.set(yscale="log", ylim=(1e-24, 5), xlim=(-0.4, 12.4), xlabel="layer", ylabel="distance of two tokens",
           title="attention alone, orthogonal start")  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc=(0.68, 0.42))


def _one_layer_panel(ax: Axes, m: Results) -> None:
    means = lambda residual: np.exp(np.log(residual).mean(1))
    for k, name in enumerate(PARTS):
        ax.plot(
            means(m.before), means(m.after[:, k]), marker=MARKERS[k], ms=4, lw=1, color=COLOURS[k], label=name
        )  # fmt: skip
    ends = np.array([1.5e-3, 3e-2])
    for power, height, description in ((1, 4.0, "with skips"), (3, 0.02, "without skips")):
        ax.plot(ends, height * ends**power, color="0.3", ls=":", lw=0.9)
        ax.text(ends[1] * 1.1, height * ends[1] ** power, f"{description}: slope {power}", fontsize=7, ha="left",
                va="bottom" if power == 1 else "top")  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="residual before", ylabel="residual after",
           xlim=(7e-4, 0.5), ylim=(3e-11, 2), title="one layer, random weights")  # fmt: skip


def _by_layer(ax: Axes, values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> None:
    layers = np.arange(values.shape[2])
    for k, name in enumerate(PARTS):
        mean, error = mean_and_error(values[k])
        ax.plot(layers, of(mean), color=COLOURS[k], marker=MARKERS[k], ms=3, lw=1, label=name)
        ax.fill_between(layers, of(mean - error), of(mean + error), color=COLOURS[k], alpha=0.25, lw=0)
    ax.set(yscale="log", xlabel="layer", title="random start and weights")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _residuals(ax: Axes, m: Results) -> None:
    _by_layer(ax, np.log(m.residual), np.exp)
    ax.axhspan(1e-17, FLOOR, color="0.88", lw=0, zorder=0)
    ax.set(ylim=(1e-17, 3), ylabel="residual")


def _ranks_panel(ax: Axes, m: Results) -> None:
    _by_layer(ax, m.rank, lambda rank: rank)
    ax.set(ylabel="effective rank", ylim=(0.9, m.p.d))
    ax.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    ax.minorticks_off()


FIGURE = figure(
    __name__,
    on=lambda m: Measured(
        Subject("random-layers", "layers with random weights"),
        UNIFORM,
        {"tokens": m.p.n, "d": m.p.d, "heads": m.p.heads, "layers": m.p.layers, "starts": m.starts},
    ),
    recorded=lambda m: {
        "starts": m.starts, "weights": "normal, of variance 1 / inputs, fresh in each layer",
        "solver": "none: layers in float64", "orthogonal tokens": FEW, "beta of these": list(BETAS),
    },
)  # fmt: skip
