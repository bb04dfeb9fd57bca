"""Hardmax: tokens come to a polytope of leaders (Alcalde, Fantuzzi, Zuazua, 2407.01602).

For a symmetric positive definite A tokens converge to a polytope whose vertices are the leaders, and to the
A-projection of the origin onto its faces. Each clause is certified with a margin (`hardmax.certificate`), on random
clouds and on four chosen clouds, each of which shows a case: leaders alone, a square, a leader that emerges later, and
clusters off the vertices, for which tokens must tie between two corners and hence lie on the axes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._dynamics.iterate import iterate
from ...hardmax import Certificate, HardmaxLayer, certificate
from ...hardmax._certificate import make_certificate
from ...hardmax._limit import run_to_fixed_point, settled_tolerance
from ...plot import OKABE_ITO, attraction, polytope, style
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, percent
from ..shared.ensemble import share_and_error
from ..shared.layout import WIDTH, letter
from ..shared.sources import HARDMAX_LAYERS, HARDMAX_THEOREM


N = 15  # tokens of each of the four clouds
EARLY = (0, 1, 2, 5)  # the layers of the picture, before the last
SIDE = 1.4
SQUARE = SIDE * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
TRIANGLE = np.array([[0.0, 1.7], [-1.5, -0.9], [1.5, -0.9]])
ON_AXES = np.array([[0.5, 0.0], [0.9, 0.0], [-0.7, 0.0], [0.0, 0.4], [0.0, -0.9]])
EMERGING, LATE = np.array(
    [[2.15, -1.12], [0.09, 1.93], [0.65, -0.64], [-0.26, 0.57], [0.79, 0.46], [0.31, -0.71], [-1.87, 2.14],
     [-0.27, -0.48], [0.32, -1.69], [1.01, -0.65], [1.13, 0.97], [0.7, 1.52], [-0.5, 0.9], [-0.9, 0.2], [0.1, -0.9]]
), 10  # fmt: skip
ASIDE = "clusters off the vertices"
CLOUDS = Subject("clouds", "four chosen clouds, and clouds of normal tokens")
# The tokens, and the second matrix, of the panels that show which tokens attract a token.
PICTURE = np.array([[0.55, 0.35], [1.45, 0.25], [0.5, 1.25], [-1.1, 0.75], [-0.85, -0.8], [0.7, -0.95], [-0.2, 0.3]])
STRETCH = np.diag([0.35, 1.6])


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(15, "the number of tokens of a random cloud", least=3, most=200)
    alpha: float = parameter(0.5, "the step of the four clouds", least=0.1, most=5)
    layers: int = parameter(30, "the number of layers of the four clouds", least=6, most=200)

    def __post_init__(self):
        # After more layers tokens are within e^-20 of their limits, where rounding errors break ties between corners.
        most = int(20 / np.log1p(self.alpha))
        if self.layers > most:
            raise ValueError(
                f"layers must be at most {most} for alpha = {self.alpha:g}, but it is {self.layers}; take fewer, for "
                "what is left beyond that is rounding."
            )

    @property
    def shown(self) -> tuple[int, ...]:
        """The layers of the picture."""
        return *EARLY, self.layers


class Results(NamedTuple):
    p: Parameters
    starts: int
    xs: dict[str, np.ndarray]  # the tokens of each of the four clouds by name, (layers + 1, n, 2)
    certificates: dict[str, Certificate]  # the certificates of the four clouds
    left: dict[str, np.ndarray]  # the largest distance of a token from its limit, (layers + 1,)
    random: list[Certificate]  # the certificates of the random clouds

    @property
    def emerged(self) -> int:
        """The layer from which on the token that emerges leads; -1 if it never leads."""
        return int(self.certificates["emerging leader"].limit.leaders.first[LATE])


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say("iterating")
    layer, starts = HardmaxLayer(p.alpha), _starts(settings.seed)
    xs = {name: np.asarray(iterate(layer, jnp.asarray(z0), p.layers).xs) for name, z0 in starts.items()}
    say("checking the theorem")
    certificates = {name: certificate(jnp.asarray(z0), layer) for name, z0 in starts.items()}
    left = {name: _distances(xs[name], certificates[name]) for name in starts}
    return Results(p, settings.starts, xs, certificates, left, _random_clouds(settings, p.n))


def _starts(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    # Dirichlet weights: random points within the convex hull of the corners.
    within = lambda corners, count: rng.dirichlet(np.full(len(corners), 1.5), count) @ corners
    return {
        "triangle": np.concatenate([TRIANGLE, within(TRIANGLE, N - 3)]),
        "square": np.concatenate([SQUARE, within(SQUARE, N - 4)]),
        "emerging leader": EMERGING,
        # Tokens on the axes have equal scores at two corners of the square and go to the middle of its side.
        ASIDE: np.concatenate([SQUARE, ON_AXES, within(SQUARE, N - 9)]),
    }


def _distances(xs: np.ndarray, certified: Certificate) -> np.ndarray:
    """The largest distance of a token from its limit, after each layer."""
    return np.linalg.norm(xs - certified.limit.points[certified.limit.goes_to], axis=-1).max(axis=1)


def _random_clouds(settings: Settings, n: int) -> list[Certificate]:
    rng = np.random.default_rng(settings.seed)
    clouds = rng.normal(size=(settings.starts, n, 2))
    # A = R^T diag(100^-u) R with u in (0, 1) has a condition number up to 100.
    axes = np.linalg.qr(rng.normal(size=(settings.starts, 2, 2)))[0]
    forms = (axes * 100.0 ** -rng.uniform(0, 1, (settings.starts, 1, 2))) @ axes.transpose(0, 2, 1)
    # The theorem asks for an exactly symmetric A, and rounding leaves 1e-17.
    forms = (forms + forms.transpose(0, 2, 1)) / 2
    # The alphas are from 1/5 to 5, as many below 1 as above.
    alphas = 5.0 ** rng.uniform(-1, 1, settings.starts)
    tolerance = settled_tolerance(clouds.dtype)
    # The runs go to the limit and not for a fixed number of layers, because small steps take thousands of layers.
    run = lambda z, A, alpha: run_to_fixed_point(z, HardmaxLayer(alpha, A), jnp.asarray(5000), tolerance)
    ends = jax.tree.map(np.asarray, eqx.filter_jit(jax.vmap(run))(*map(jnp.asarray, (clouds, forms, alphas))))
    every = np.ones(n, bool)
    # One compiled run serves all clouds; the clauses are checked one cloud at a time.
    return [
        make_certificate(jax.tree.map(lambda leaf, b=b: leaf[b], ends), cloud, every, forms[b])
        for b, cloud in enumerate(clouds)
    ]


@claim("5 of 5 on each", kind="identity")
def four_clouds(m: Results) -> Found:
    """All clauses of the theorem hold on the four clouds."""
    counts = {name: sum(clause.held for clause in certificate.clauses) for name, certificate in m.certificates.items()}
    measured = "; ".join(f"{name}: {held} of 5" for name, held in counts.items())
    return Found(measured, all(certificate.held for certificate in m.certificates.values()))


@claim("less than 1e-12", kind="identity")
def ties(m: Results) -> Found:
    """A token that ties between two corners approaches the middle of the side by a factor 1 / (1 + alpha) per layer."""
    side = m.xs[ASIDE][:, 4]
    exact = SIDE - (SIDE - ON_AXES[0, 0]) * (1 + m.p.alpha) ** -np.arange(len(side))
    defect = float(np.abs(side - np.stack([exact, np.zeros(len(exact))], axis=1)).max())
    return Found(f"the largest error is {defect:.1e} over {len(side)} layers", defect < 1e-12, defect)


@claim("less than 1e-3", source=HARDMAX_THEOREM)
def clustered(m: Results) -> Found:
    """At layer {p.layers} the tokens are clustered: they are within 1e-3 of their limits."""
    farthest = max(float(values[-1]) for values in m.left.values())
    measured = f"the farthest token of the four clouds is {farthest:.1e} from its limit"
    return Found(measured, farthest < 1e-3, farthest)


@claim("it leads, but not from layer 0 on", source=HARDMAX_THEOREM)
def emerges(m: Results) -> Found:
    """A leader may emerge from a token that does not lead at first."""
    leads = f"leads from layer {m.emerged} on" if m.emerged >= 0 else "never leads"
    return Found(f"token {LATE} of the third cloud {leads}", m.emerged > 0, m.emerged)


@claim("some, each less than 1e-9 away", source=HARDMAX_THEOREM)
def off_the_vertices(m: Results) -> Found:
    """There are clusters off the vertices, where the origin projects onto a face."""
    limit = m.certificates[ASIDE].limit
    middles = limit.points[~limit.is_vertex]
    expected = SIDE * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    off = max((float(np.linalg.norm(expected - point, axis=1).min()) for point in middles), default=np.inf)
    measured = f"{len(middles)} such points, at most {off:.1e} from the middle of a side"
    return Found(measured, len(middles) > 0 and off < 1e-9, off)


@claim("on all of them", kind="identity")
def random_clouds(m: Results) -> Found:
    """The theorem holds on random clouds, for A of condition up to 100 and alpha from 0.2 to 5."""
    held = sum(cloud.held for cloud in m.random)
    return Found(f"on {held} of {len(m.random)}", held == len(m.random))


@claim("less than 5 %")
def late_leaders(m: Results) -> Found:
    """On random clouds the leaders are nearly always the leaders of layer 0."""
    share, error = share_and_error(np.array([int(cloud.limit.leaders.first.max()) > 0 for cloud in m.random]))
    mean = np.mean([len(cloud.limit.leaders.indices) for cloud in m.random])
    return Found(
        f"{percent(share, error)} of {len(m.random)} clouds have a later leader; {mean:.1f} of {m.p.n} tokens lead on "
        "average",
        share < 0.05, share, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    emerges = f"becomes a leader at layer {m.emerged}" if m.emerged > 0 else "becomes a leader with other steps"
    return (
        f"Hardmax layers with A = I and alpha = {m.p.alpha:g}. Each row is one cloud of {N} tokens, coloured by the "
        "point that they come to; leaders are stars from the layer on at which they attend to themselves alone, and "
        f"the polytope that they span is grey. Third row: a token that does not lead at first {emerges}. Fourth row: "
        "tokens that tie between two corners come to the middle of a side, where the origin projects. (a), (b): a "
        "token (red) is drawn to the tokens (blue) that lie farthest in the direction A z, for A = I and for a "
        "stretched A. (c): the largest distance of a token from its limit."
    )


def series(m: Results) -> dict:
    return {"layer": np.arange(m.p.layers + 1)} | {f"left, {name}": values for name, values in m.left.items()}


@style()
def draw(m: Results) -> Figure:
    layers = m.p.shown
    # Square panels: the height of the figure follows from the number of clouds.
    panel = WIDTH / (len(layers) + 0.25)
    figure = Figure(figsize=(WIDTH, len(m.xs) * panel + 2.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(len(m.xs) * panel + 0.15, 2.35))  # pyright: ignore
    grid = top.subplots(len(m.xs), len(layers), squeeze=False)
    for axes, (name, run) in zip(grid, m.xs.items(), strict=True):
        _row(axes, run, m.certificates[name], layers)
        axes[0].text(-0.03, 0.5, name, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
    for ax, k in zip(grid[0], layers, strict=True):
        ax.set_title(f"layer {k}")
    panels = bottom.subplots(1, 3, width_ratios=(1, 1, 1.25))
    attraction(PICTURE, 0, panels[0])
    attraction(PICTURE, 0, panels[1], form=STRETCH)
    _decay(panels[2], m)
    letter(panels)
    panels[0].set_title("$A = I$")
    panels[1].set_title(f"$A$ = diag({STRETCH[0, 0]:g}, {STRETCH[1, 1]:g})")
    return figure


def _row(axes: np.ndarray, run: np.ndarray, certified: Certificate, layers: tuple[int, ...]) -> None:
    limit, first = certified.limit, np.asarray(certified.limit.leaders.first)
    # One range serves all layers of a cloud, so that its tokens are seen to move.
    reach = 1.12 * np.abs(run[0]).max()
    for ax, k in zip(axes, layers, strict=True):
        leading = (first >= 0) & (first <= k)
        polytope(run[k], ax, corners=limit.vertices, leaders=leading, labels=limit.goes_to, reach=reach, size=0.8)


def _decay(ax: Axes, m: Results) -> None:
    ks = np.arange(m.p.layers + 1)
    for (name, values), colour in zip(m.left.items(), OKABE_ITO, strict=False):
        ax.semilogy(ks, values, color=colour, label=name)
    # The rate of the theorem, with a factor that keeps the line clear of the curves.
    rate = 12.0 * (1 + m.p.alpha) ** -ks.astype(float)
    ax.semilogy(ks, rate, color="0.4", ls="--", lw=0.9, label=r"$\propto (1+\alpha)^{-k}$")
    ax.set(xlabel="layer $k$", ylabel="farthest token from its limit")
    ax.legend(loc="lower left", borderaxespad=0.1, labelspacing=0.25)


def measured_on(m: Results) -> Measured:
    tokens = N if m.p.n == N else (N, m.p.n)
    return Measured(HARDMAX_LAYERS, CLOUDS, {"tokens": tokens, "d": 2, "layers": m.p.layers, "starts": m.starts})


FIGURE = figure(
    __name__,
    on=measured_on,
    recorded=lambda m: {
        "n": N, "d": 2, "A": "identity; random for the random clouds", "layers": list(m.p.shown), "starts": m.starts,
    } | ({"n of the random clouds": m.p.n} if m.p.n != N else {}),
)  # fmt: skip
