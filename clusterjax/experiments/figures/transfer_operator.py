r"""The attention matrix as a transfer operator: its time scales, the clusters, and the time to the next merger.

Softmax attention P is the transition matrix of a walk over tokens. With Q = K = I the walk is reversible and its kernel
is positive semidefinite, so that the eigenvalues are real and not negative; they fall from $λ_1 = 1$. The time scales
are $t_k = -1 / log λ_k$, in steps. All statements are derived here; none is quoted from a recent paper on these time
scales, whose text was not available.

**Two point clusters.** At the angle θ, $1 - λ_2 = p_{12} + p_{21}$ with the weights of each cluster for the other.
With V = I the angle closes at the rate $θ̇ = -(1 - λ_2) sin θ$. Two consequences follow. The difference of two values
that the layers average decays along the run as $exp(-∫(1 - λ_2) dt)$, which is the ratio of $tan(θ/2)$ at the end and
at the start: clusters mix exactly as they meet. With $1 - λ_2 ∝ exp(β cos θ)$, as for separate clusters, the clusters
merge after $t_2 ∫ exp(β(cos θ - cos φ)) dφ / sin φ$, over the angles φ up to θ, and their angle grows unstable at the
rate $(1 - λ_2)(β sin² θ - cos θ)$.

**More clusters.** The pair that merges next has the shortest of the m long time scales, $t_m$ in place of $t_2$. The
operator of a window of time is the product of the operators $exp(h(P - I))$ of short steps h. A singular value near one
belongs to a coherent set: tokens whose values the other tokens have not mixed with theirs by the end of the window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike
from matplotlib.axes import Axes

from ..._base.numerics import double_precision
from ..._coarsen import MergeTree, coarsen
from ..._dynamics.modes import modes
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._observables import cluster_labels
from ...plot import OKABE_ITO
from ...probe.measures.heads import adjusted_rand
from ...probe.measures.survey import clustered_error
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, percent, plus_minus, unmet
from ..shared.ensemble import draw_starts, line_of, mean_and_error
from ..shared.exact import turning_angle
from ..shared.layout import panels
from ..shared.sources import particles


DIMENSIONS, BETAS = (2, 3), (6.0, 9.0, 12.0)  # start i of each dimension has the beta with the index i modulo 3
LONG = 1.0  # the time scale, in steps, above which eigenvalues are counted
NARROW = 0.01  # the width of a cluster, in units of the radius, below which its tokens have gathered
TOLERANCE, END = 0.05, 1e300  # the distance at which clusters have merged, and the time that stands for infinity
POINTS = 40  # the number of states of each run, evenly spaced in log t from t = 0.1 to the last merger
STEP = 0.1  # the step of a window
COHERENT = 0.25  # the singular value above which a set of tokens is coherent
SHUFFLES, ORDERS = 99, 9  # the number of shuffles of a control, and of the sets of each start
# Two clusters for the identities: sizes with one sum, for one compilation, and angles.
SIZES, ANGLES = ((4, 4), (2, 6), (7, 1)), (0.4, 1.2, 2.5)
MIXED = (1.0, 2.0, 6.0)  # the values of beta of the runs of two clusters, in which clusters come near each other


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens", quick=16, least=4, most=64)
    window: float = parameter(15.0, "the duration of the window of the product", least=1, most=100)


class Wait(NamedTuple):
    """The wait from the first gathered state after a merger to the next merger."""

    start: int
    clusters: int
    scale: float  # t_m, the shortest of the long time scales
    waited: float  # log10 of the wait
    predicted: float  # log10 of its prediction from t_m
    slowest: float  # log10 of its prediction from t_2
    foreseen: bool  # whether the clusters that attend to each other most merge next
    growth: float  # the largest eigenvalue of the linearised flow over its prediction; NaN on the sphere


class Window(NamedTuple):
    """The product of the transfer operators of one start, or the operator of its tokens at rest."""

    clusters: int  # the number of clusters at the end of the window
    singular: np.ndarray  # the singular values, (n,)
    agreement: float  # the adjusted Rand index of the coherent sets and the clusters at the end
    shuffled: float  # the mean of that index over shuffled sets

    @property
    def counted(self) -> int:
        return int(np.sum(self.singular > COHERENT))


class Results(NamedTuple):
    p: Parameters
    starts: int  # on the circle, and as many on the sphere
    closing: float  # the largest difference of three values of 1 - lambda_2 of two clusters
    mixing: float  # the largest relative difference of a product and of a ratio of tan(theta / 2)
    states: np.ndarray  # start, gathered, clusters, time scales above `LONG`: of states with two clusters, (states, 4)
    waits: list[Wait]
    moving: list[Window]
    resting: list[Window]
    shown: tuple[np.ndarray, np.ndarray, np.ndarray]  # of one start: times, time scales (times, n), times of mergers


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    with double_precision():
        closing = max(closing_error(n1, n2, a, beta) for n1, n2 in SIZES for a in ANGLES for beta in BETAS)
        mixing = mixing_error([(n1, n2, a, beta) for n1, n2 in SIZES for a in ANGLES for beta in MIXED])
        rng = np.random.default_rng(settings.seed)
        states, waits, moving, resting, shown = [], [], [], [], None
        for row, d in enumerate(DIMENSIONS):
            # The starts of the second dimension have other keys, so that all starts are independent.
            x0 = draw_starts(settings.seed, (row + 1) * settings.starts, p.n, d)[row * settings.starts :]
            betas = np.resize(BETAS, settings.starts)
            say(f"following {settings.starts} starts to their last merger, d = {d}")
            for number, (x, beta) in enumerate(zip(x0, betas, strict=True), row * settings.starts):
                field = AttentionField(SoftmaxAttention(beta))
                tree = coarsen(field, x, END, tolerance=TOLERANCE)
                states.append(states_of(tree, float(beta), number))
                waits += waits_of(tree, field, float(beta), number)
                if shown is None and beta == BETAS[1]:
                    ts, xs = tree.steps()
                    shown = ts, time_scales(spectrum_of(xs, float(beta))[0]), tree.times
            say(f"multiplying transfer operators, d = {d}")
            steps = max(1, round(p.window / STEP))
            for xs, beta in zip(runs(x0, betas, p.window, steps), betas, strict=True):
                labels = np.asarray(cluster_labels(jnp.asarray(xs[-1]), radius_of(float(beta))))
                moving.append(window_of(product(xs[1:-1], p.window / steps, float(beta)), labels, rng))
                resting.append(window_of(product(xs[:1], p.window, float(beta)), labels, rng))
        assert shown is not None
        return Results(p, settings.starts, closing, mixing, np.concatenate(states), waits, moving, resting, shown)


@jax.jit
def _runs(x0: jax.Array, betas: jax.Array, ts: jax.Array) -> jax.Array:
    run = lambda x, beta: simulate(AttentionField(SoftmaxAttention(beta)), x, ts, adjoint=dfx.ForwardMode()).xs
    return jax.vmap(run)(x0, betas)


def runs(x0: ArrayLike, betas: ArrayLike, duration: float, steps: int) -> np.ndarray:
    """Runs of starts, (starts, 2 + steps, n, d): the start, the middle of each step, and the end."""
    middles = (np.arange(steps) + 0.5) * duration / steps
    ts = np.concatenate([[0.0], middles, [duration]])
    return np.asarray(_runs(jnp.asarray(x0), jnp.asarray(betas), jnp.asarray(ts)))


def radius_of(beta: float) -> float:
    """The radius of clusters: the distance at which two tokens of unnormalised attention attract each other most."""
    return 2 * float(np.sin(turning_angle(beta) / 2))


def spectrum_of(x: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The eigenvalues of P in decreasing order, (..., n), orthonormal eigenvectors u of a symmetric matrix that is
    similar to P, (..., n, n), and the roots r of its row sums, (..., n): the eigenvectors of P are u / r."""
    kernel = np.exp(beta * (x @ np.swapaxes(x, -1, -2) - 1))
    roots = np.sqrt(kernel.sum(axis=-1))
    values, vectors = np.linalg.eigh(kernel / (roots[..., :, None] * roots[..., None, :]))
    return values[..., ::-1], vectors[..., ::-1], roots


def time_scales(values: np.ndarray) -> np.ndarray:
    """$-1 / log λ$ of eigenvalues; zero for an eigenvalue zero."""
    # Rounding errors may make an eigenvalue negative, or larger than one.
    return -1 / np.log(np.clip(values, 1e-300, 1 - 2.0**-53))


def pair_duration(angle: float, beta: float) -> float:
    """The time to the merger of two separate clusters at an angle, in units of their time scale."""
    # With s = log tan(phi / 2), ds = d phi / sin phi and cos phi = -tanh s.
    s = np.linspace(np.log(np.tan(np.arcsin(TOLERANCE / 2))), np.log(np.tan(angle / 2)), 4001)
    return float(np.trapezoid(np.exp(beta * (np.cos(angle) + np.tanh(s))), s))


def two_clusters(n1: int, n2: int, angle: float) -> np.ndarray:
    """The tokens of two point clusters on the circle."""
    return np.repeat([[1.0, 0.0], [np.cos(angle), np.sin(angle)]], [n1, n2], axis=0)


def closing_error(n1: int, n2: int, angle: float, beta: float) -> float:
    """The largest difference between the formula for $1 - λ_2$, the attention matrix and the velocity of the field."""
    x = jnp.asarray(two_clusters(n1, n2, angle))
    attention = SoftmaxAttention(beta)
    weight = np.exp(beta * (np.cos(angle) - 1))
    formula = n2 * weight / (n1 + n2 * weight) + n1 * weight / (n2 + n1 * weight)
    values = np.sort(np.linalg.eigvals(np.asarray(attention.weights(x))).real)[::-1]
    v = np.asarray(AttentionField(attention)(0.0, x, None))
    # The derivative of cos(theta) is (1 - lambda_2) sin^2(theta).
    rate = (v[0] @ x[-1] + v[-1] @ x[0]) / np.sin(angle) ** 2
    return float(max(abs(1 - values[1] - formula), abs(rate - formula), np.abs(values[2:]).max(initial=0.0)))


def mixing_error(cases: Sequence[tuple[int, int, float, float]]) -> float:
    """The largest relative difference of products of transfer operators along runs of two clusters, with the given
    sizes, angles and beta, from their exact value."""
    duration, steps = 4.0, 400
    x0, betas = np.array([two_clusters(*case[:3]) for case in cases]), np.array([case[3] for case in cases])
    half = lambda x: np.linalg.norm(x[0] - x[-1]) / np.linalg.norm(x[0] + x[-1])  # tan(theta / 2)
    errors = []
    for (n1, _, _, beta), xs in zip(cases, runs(x0, betas, duration, steps), strict=True):
        operator = product(xs[1:-1], duration / steps, beta)
        kept = operator[0, :n1].sum() - operator[-1, :n1].sum()
        errors.append(abs(kept / (half(xs[-1]) / half(xs[0])) - 1))
    return float(max(errors))


def gathered_of(xs: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The labels of the clusters of states, (states, n), their number, and whether all clusters are narrow."""
    # Padding to a multiple of 256 states avoids a compilation for each number of states.
    padded = np.resize(xs, (-(-len(xs) // 256) * 256, *xs.shape[1:]))
    labels = np.asarray(_LABELS(jnp.asarray(padded), radius_of(beta)))[: len(xs)]
    widths = np.linalg.norm(xs - np.take_along_axis(xs, labels[..., None], axis=1), axis=-1).max(axis=-1)
    return labels, np.sum(labels == np.arange(xs.shape[1]), axis=1), widths < NARROW * radius_of(beta)


_LABELS = jax.jit(jax.vmap(cluster_labels, in_axes=(0, None)))


def states_of(tree: MergeTree, beta: float, start: int) -> np.ndarray:
    """The rows of `Results.states` of a run, evenly spaced in the logarithm of time."""
    ts, xs = tree.steps()
    chosen = np.unique(np.searchsorted(ts, np.geomspace(0.1, tree.times[-1], POINTS, endpoint=False)))
    _, clusters, gathered = gathered_of(xs[chosen], beta)
    counted = np.sum(time_scales(spectrum_of(xs[chosen], beta)[0]) > LONG, axis=1)
    return np.stack([np.full(len(chosen), start), gathered, clusters, counted], axis=1)[clusters > 1]


def waits_of(tree: MergeTree, field: AttentionField, beta: float, start: int) -> Iterator[Wait]:
    """The waits of a run, each with its predictions from the state at its beginning."""
    ts, xs = tree.steps()
    labels, clusters, gathered = gathered_of(xs, beta)
    for k, (end, pair) in enumerate(zip(tree.times, tree.pairs, strict=True)):
        begin = tree.times[k - 1] if k else 0.0
        inside = np.flatnonzero((ts >= begin) & (ts < end) & gathered & (clusters > 1))
        if not inside.size:
            continue
        at, m = inside[0], int(clusters[inside[0]])
        values = spectrum_of(xs[at], beta)[0]
        first, second, angle = closest(xs[at], labels[at], beta)
        units = pair_duration(angle, beta)
        growth = np.nan
        if xs.shape[2] == 2:
            # On the sphere the rotations are defective zero modes, whose rounding errors exceed slow rates.
            fastest = modes(field, jnp.asarray(xs[at]), 1, which="growing").values[0].real
            growth = fastest / ((1 - values[m - 1]) * (beta * np.sin(angle) ** 2 - np.cos(angle)))
        scale, slowest = time_scales(values)[[m - 1, 1]]
        foreseen = set(labels[at][pair].tolist()) == {first, second}
        waited, predicted, slow = np.log10([end - ts[at], scale * units, slowest * units]).tolist()
        yield Wait(start, m, float(scale), waited, predicted, slow, foreseen, float(growth))


def closest(x: np.ndarray, labels: np.ndarray, beta: float) -> tuple[int, int, float]:
    """The labels of the two clusters that attend to each other most, and the angle between the clusters."""
    firsts = np.unique(labels)
    kernel = np.exp(beta * (x[firsts] @ x.T - 1))
    weights = (kernel / kernel.sum(axis=1, keepdims=True)) @ (labels[:, None] == firsts)
    mutual = np.triu(weights + weights.T, 1)
    first, second = firsts[list(np.unravel_index(mutual.argmax(), mutual.shape))]
    return int(first), int(second), 2 * float(np.arcsin(min(np.linalg.norm(x[first] - x[second]) / 2, 1.0)))


def product(xs: np.ndarray, h: float, beta: float) -> np.ndarray:
    """The product of the operators exp(h (P - I)) at states in the order of time, (n, n): the last stands left."""
    operator = np.eye(xs.shape[1])
    for values, vectors, roots in zip(*spectrum_of(xs, beta), strict=True):
        step = (vectors * np.exp(h * (values - 1))) @ vectors.T
        operator = (step * roots / roots[:, None]) @ operator
    return operator


def coherent_sets(operator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The singular values of an operator, (n,), and the coherent set of each token at the start, (n,).

    Singular values are those between densities that are uniform at the end of the window, and their images at its
    start (Froyland, Santitissadeekorn, Monahan, Chaos 20, 2010). The sets are those of the inner simplex algorithm
    (Weber and Galliat, ZIB-Report 02-12): the corners are tokens, and each token joins the corner of its largest
    barycentric coordinate.
    """
    masses = operator.mean(axis=0)
    _, singular, right = np.linalg.svd(operator / np.sqrt(len(operator) * masses))
    k = max(1, int(np.sum(singular > COHERENT)))
    functions = right[:k].T / np.sqrt(masses)[:, None]
    rest, corners = functions, []
    for _ in range(k):
        corners.append(int(np.linalg.norm(rest, axis=1).argmax()))
        corner = rest[corners[-1]]
        # The first corner becomes the origin; each further corner removes its own direction.
        rest = rest - (corner if len(corners) == 1 else np.outer(rest @ corner, corner) / (corner @ corner))
    return singular, np.argmax(functions @ np.linalg.inv(functions[corners]), axis=1)


def window_of(operator: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Window:
    singular, sets = coherent_sets(operator)
    shuffled = np.mean([adjusted_rand(rng.permutation(sets), labels) for _ in range(ORDERS)])
    return Window(len(np.unique(labels)), singular, adjusted_rand(sets, labels), float(shuffled))


@claim("three values that differ by less than 1e-12", kind="identity")
def two_close(m: Results) -> Found:
    """The angle of two point clusters closes at the rate (1 - lambda_2) sin(theta), with the second eigenvalue of the
    attention matrix, lambda_2 = 1 - p12 - p21."""
    words = f"formula, attention matrix and velocity of the field differ by at most {m.closing:.1e}"
    return Found(words, m.closing < 1e-12, m.closing)


@claim("a relative difference below 1e-3, for steps of 0.01", kind="identity")
def two_mix(m: Results) -> Found:
    """Along a run of two point clusters the product of transfer operators keeps the part tan(theta/2) at the end over
    tan(theta/2) at the start of a difference between the clusters, at every beta."""
    listed = ", ".join(f"{beta:g}" for beta in MIXED)
    words = f"the largest relative difference is {m.mixing:.1e}, for beta = {listed}"
    return Found(words, m.mixing < 1e-3, m.mixing)


@claim(
    "in at least 99 % of these states, in less than 90 % of the states in which a cluster is wide, and in less than "
    "80 % for shuffled numbers of clusters"
)
def counted(m: Results) -> Found:
    """Once tokens have gathered in two clusters or more, as many time scales exceed one step as there are clusters."""
    start, gathered, clusters, scales = m.states[m.states[:, 1] == 1].T
    share, error = _share(start, clusters == scales)
    rng = np.random.default_rng(0)
    shuffled = np.array([np.mean(rng.permutation(clusters) == scales) for _ in range(SHUFFLES)])
    wide = m.states[m.states[:, 1] == 0]
    before, before_error = _share(wide[:, 0], wide[:, 2] == wide[:, 3])
    words = (
        f"in {percent(share, error)} of {len(start)} states, with fewer time scales than clusters in "
        f"{np.sum(scales < clusters)} and more in {np.sum(scales > clusters)}; where a cluster is wide, in "
        f"{percent(before, before_error)} of {len(wide)}; for shuffled numbers, in {_spread(100 * shuffled, 0, ' %')}"
    )
    return Found(words, share >= 0.99 and before < 0.9 and shuffled.max() < 0.8, share, error)


def _share(start: np.ndarray, flags: np.ndarray) -> tuple[float, float]:
    """The share of flagged states or waits, and its standard error over starts; NaN if there are none."""
    if not len(start):
        return np.nan, np.nan
    share = clustered_error(np.asarray(flags, float), start)
    return float(share.mean), float(share.error)


def _spread(values: np.ndarray, digits: int, unit: str = "") -> str:
    """The mean of a control and its standard deviation over shuffles."""
    mean = round(float(values.mean()), digits) + 0.0  # a mean of -0.0 becomes 0.0
    return f"{mean:.{digits}f}{unit} with a standard deviation of {values.std():.{digits + 1}f}{unit}"


def _waits(m: Results, two: bool) -> np.ndarray:
    """The columns start, wait, prediction from t_m, prediction from t_2, `foreseen`, `growth` and t_m of the waits of
    two clusters, or of more."""
    chosen = [w for w in m.waits if (w.clusters == 2) == two]
    rows = [(w.start, w.waited, w.predicted, w.slowest, w.foreseen, w.growth, w.scale) for w in chosen]
    return np.array(rows, float).reshape(-1, 7).T


@claim("a slope within 0.02 of 1 and a median factor below 1.1")
def clock_of_two(m: Results) -> Found:
    """The time scale t_2 of two clusters, times an integral over their angle, is the time to their merger."""
    start, waited, predicted, *_ = _waits(m, two=True)
    line = line_of(waited, predicted, start)
    slope = plus_minus(line.slope, line.error, 4)
    words = f"logarithms have the slope {slope}, with a median factor of {line.factor:.3f}, over {len(start)} waits"
    return Found(words, abs(line.slope - 1) < 0.02 and line.factor < 1.1, line.slope, line.error)


@claim(
    "a slope within 0.1 of 1, and below 0.5 for shuffled predictions; a median factor below 2, and above 10 with t_2"
)
def clock(m: Results) -> Found:
    """With m >= 3 clusters the shortest of the long time scales, t_m, predicts the order of magnitude of the time to
    the next merger, and the longest, t_2, does not."""
    start, waited, predicted, slowest, *_ = _waits(m, two=False)
    line, other, rng = line_of(waited, predicted, start), line_of(waited, slowest, start), np.random.default_rng(0)
    shuffled = np.array([line_of(waited, rng.permutation(predicted), start).slope for _ in range(SHUFFLES)])
    holds = abs(line.slope - 1) < 0.1 and shuffled.max() < 0.5 and line.factor < 2 and other.factor > 10
    slope = plus_minus(line.slope, line.error, 3)
    words = (
        f"logarithms have the slope {slope}, with a median factor of {line.factor:.2f}, over {len(start)} waits; with "
        f"t_2 the factor is {other.factor:.0f}; for shuffled predictions the slope is {_spread(shuffled, 2)}"
    )
    return Found(words, holds, line.slope, line.error)


@claim("in at least 90 % of the waits of three clusters or more")
def foreseen(m: Results) -> Found:
    """The two clusters that attend to each other most merge next."""
    start, _, _, _, flags, *_ = _waits(m, two=False)
    share, error = _share(start, flags)
    return Found(f"in {percent(share, error)} of {len(start)} waits", share >= 0.9, share, error)


@claim("within 10 % in at least 90 % of the waits of three clusters or more on the circle")
def growth(m: Results) -> Found:
    """The fastest growth rate of the linearised flow is (1 - lambda_m)(beta sin^2(theta) - cos(theta)), with the angle
    theta of the two clusters that attend to each other most."""
    start, *_, ratios, _ = _waits(m, two=False)
    start, ratios = start[np.isfinite(ratios)], ratios[np.isfinite(ratios)]
    share, error = _share(start, np.abs(ratios - 1) < 0.1)
    middle = np.median(ratios) if len(ratios) else np.nan
    words = f"in {percent(share, error)} of {len(start)} waits; the median ratio is {middle:.3f}"
    return Found(words, share >= 0.9, share, error)


@claim("for at least 90 % of the starts, and for less than 80 % of them with tokens at rest")
def coherent(m: Results) -> Found:
    """The product of transfer operators over a window of a run has as many singular values above {COHERENT:g} as there
    are clusters at the end of the window."""
    equal = lambda part: mean_and_error(np.array([w.counted == w.clusters for w in part]))
    moving, resting = equal(m.moving), equal(m.resting)
    words = f"for {percent(*moving)}; with the tokens at rest where they start, for {percent(*resting)}"
    return Found(words, moving[0] >= 0.9 and resting[0] < 0.8, *moving)


@claim("a mean adjusted Rand index of at least 0.95, larger than with tokens at rest by four standard errors")
def sets(m: Results) -> Found:
    """The coherent sets of the product are the tokens that form the clusters at the end of the window."""
    moving, resting = (np.array([w.agreement for w in part]) for part in (m.moving, m.resting))
    mean, gain = mean_and_error(moving), mean_and_error(moving - resting)
    shuffled = np.array([w.shuffled for w in m.moving])
    words = (
        f"an index of {plus_minus(*mean, 3)}; with tokens at rest {plus_minus(*mean_and_error(resting), 3)}, and for "
        f"shuffled sets {_spread(shuffled, 3)} over starts"
    )
    return Found(words, mean[0] >= 0.95 and gain[0] > 4 * gain[1], *mean)


def over(m: Results) -> str:
    return f"{2 * m.starts} starts"


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    betas = ", ".join(f"{beta:g}" for beta in BETAS)
    return (
        f"{m.p.n} uniform tokens under softmax attention with V = I and beta = {betas}; {m.starts} starts on the "
        "circle and as many on the sphere. (a) The time scales of the attention matrix along one run on the circle; "
        "grey: mergers; dashed: one step. (b) The wait from the first gathered state of m clusters to the next merger, "
        "against its prediction from a time scale. (c) The singular values of the product of transfer operators up to "
        f"t = {m.p.window:g}, where m clusters are left, and with the tokens at rest where they start: medians and the "
        f"middle 90 % of the starts; dashed: {COHERENT:g}. (d) The fastest growth rate of the linearised flow, over "
        "its prediction, on the circle. The statements are derived here and not quoted from a recent paper on these "
        f"time scales, whose text was not available. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    ts, scales, _ = m.shown
    named = {f"time scale {k + 1}": scales[:, k] for k in range(1, min(6, m.p.n))}
    return {"t": ts} | named


def _scales(ax: Axes, m: Results) -> None:
    ts, scales, mergers = m.shown
    for merger in mergers[mergers > 1]:
        ax.axvline(merger, color="0.85", lw=0.8)
    for k in range(1, min(6, m.p.n)):
        ax.plot(ts, scales[:, k], color=OKABE_ITO[k - 1], lw=1.2, label=f"$t_{k + 1}$")
    ax.axhline(LONG, color="0.4", lw=0.8, ls="--")
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(0.1, 3 * mergers[-1]),
        ylim=(0.05, None),
        xlabel="t",
        ylabel="time scale in steps",
    )
    ax.legend(loc="center", bbox_to_anchor=(0.7, 0.5), ncols=2)


def _predictions(ax: Axes, m: Results) -> None:
    _, waited, predicted, slowest, *_ = _waits(m, two=False)
    ax.plot(slowest, waited, ".", ms=2, color="0.75", rasterized=True, label="$m ≥ 3$, from $t_2$")
    ax.plot(predicted, waited, ".", ms=3, color=OKABE_ITO[0], rasterized=True, label="$m ≥ 3$, from $t_m$")
    _, waited, predicted, *_ = _waits(m, two=True)
    ax.plot(predicted, waited, ".", ms=3, color=OKABE_ITO[1], rasterized=True, label="$m = 2$")
    ends = -0.5, predicted.max(initial=1.0)
    ax.plot(ends, ends, color="0.3", lw=0.8, ls="--")
    ax.set(xlabel="log10 of the prediction", ylabel="log10 of the wait")
    ax.legend(loc="upper left", markerscale=3)


PLACES = np.arange(-2, 4)  # indices of singular values, minus the number m of clusters, counted from one


def _singular(ax: Axes, m: Results) -> None:
    for shift, label, colour, part in ((-0.08, "tokens move", OKABE_ITO[0], m.moving),
                                       (0.08, "tokens at rest", OKABE_ITO[1], m.resting)):  # fmt: skip
        # An index before the first singular value, or after the last, has no value.
        table = np.full((len(PLACES), len(part)), np.nan)
        for column, w in enumerate(part):
            inside = (w.clusters + PLACES > 0) & (w.clusters + PLACES <= m.p.n)
            table[inside, column] = w.singular[w.clusters + PLACES[inside] - 1]
        known = ~np.isnan(table).all(axis=1)
        low, middle, high = np.nanquantile(table[known], (0.05, 0.5, 0.95), axis=1)
        spans = middle - low, high - middle
        ax.errorbar(PLACES[known] + shift, middle, spans, fmt="o", ms=3, lw=1, color=colour, label=label)
    ax.axhline(COHERENT, color="0.4", lw=0.8, ls="--")
    ax.axvline(0.5, color="0.85", lw=0.8)
    ax.set(xlabel="index of the singular value, minus m", ylabel="singular value", ylim=(-0.03, 1.05))
    ax.legend(loc="upper right")


def _growth(ax: Axes, m: Results) -> None:
    for two, colour, label in ((False, OKABE_ITO[0], "$m ≥ 3$"), (True, OKABE_ITO[1], "$m = 2$")):
        *_, ratios, scales = _waits(m, two=two)
        ax.plot(scales, ratios, ".", ms=3, color=colour, rasterized=True, label=label)
    for level in (0.9, 1.1):
        ax.axhline(level, color="0.4", lw=0.8, ls="--")
    ax.set(xscale="log", xlabel="$t_m$ in steps", ylabel="growth rate / prediction", ylim=(0.6, 1.4))
    ax.legend(loc="upper right", markerscale=3)


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_scales, _predictions, _singular, _growth), columns=2, height=4.8),
    on=lambda m: particles(tokens=m.p.n, d=DIMENSIONS, beta=BETAS, starts=2 * m.starts),
    recorded=lambda m: {"value": "identity", "query_key": "identity", "attention": "softmax", "mask": "full",
                        "starts": 2 * m.starts, "narrow": NARROW, "long": LONG, "coherent": COHERENT,
                        "tolerance": TOLERANCE, "step": STEP},
)  # fmt: skip
