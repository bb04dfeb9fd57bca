"""What the hardmax figure measures: four clouds layer by layer, and the theorem on random ones.

Alcalde, Fantuzzi, Zuazua (2407.01602): for a symmetric positive definite A tokens converge to a polytope whose vertices
are the leaders, and to the A-projection of the origin onto its faces. Each clause is certified with a margin
(`hardmax.certificate`). The four clouds are chosen to show a case each: leaders alone, a square, a leader that emerges
later, and clusters off the vertices, for which tokens must tie between two corners and hence lie on the axes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent
from ..framework.figure import declared
from ..framework.verdict import ANY, Measured, Source, Subject
from ..shared.layout import WIDTH


N = 15  # tokens of each of the four clouds
EARLY = (0, 1, 2, 5)  # layers that are shown, before the last
SIDE = 1.4
SQUARE = SIDE * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
TRIANGLE = np.array([[0.0, 1.7], [-1.5, -0.9], [1.5, -0.9]])
ON_AXES = np.array([[0.5, 0.0], [0.9, 0.0], [-0.7, 0.0], [0.0, 0.4], [0.0, -0.9]])
EMERGING, LATE = np.array(
    [[2.15, -1.12], [0.09, 1.93], [0.65, -0.64], [-0.26, 0.57], [0.79, 0.46], [0.31, -0.71], [-1.87, 2.14],
     [-0.27, -0.48], [0.32, -1.69], [1.01, -0.65], [1.13, 0.97], [0.7, 1.52], [-0.5, 0.9], [-0.9, 0.2], [0.1, -0.9]]
), 10  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(15, "the number of tokens of a random cloud", least=3, most=200)
    alpha: float = parameter(0.5, "the step of the four clouds", least=0.1, most=5)
    layers: int = parameter(30, "the number of layers of the four clouds", least=6, most=200)

    def __post_init__(self):
        # Beyond e^-20 of the way tokens are within rounding of their limits, and ties between corners break by it.
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


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `xs`: (layers + 1, n, 2), the tokens of each of the four clouds, by name.
    - `certificates`: What is certified of them.
    - `left`: (layers + 1,), the farthest that a token is from its limit.
    - `random`: What is certified of the random clouds.
    """

    p: Parameters
    starts: int
    xs: dict[str, np.ndarray]
    certificates: dict[str, Certificate]
    left: dict[str, np.ndarray]
    random: list[Certificate]

    @property
    def emerged(self) -> int:
        """The layer from which on the token that emerges leads; -1 if it never does."""
        return int(self.certificates["emerging leader"].limit.leaders.first[LATE])


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Iterate the four clouds, and certify them and random ones."""
    say("iterating")
    layer = HardmaxLayer(p.alpha)
    starts = _starts(settings.seed)
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
        "clusters off the vertices": np.concatenate([SQUARE, ON_AXES, within(SQUARE, N - 9)]),
    }


def _distances(xs: np.ndarray, certified: Certificate) -> np.ndarray:
    """The largest distance of a token from its limit, after each layer."""
    return np.linalg.norm(xs - certified.limit.points[certified.limit.goes_to], axis=-1).max(axis=1)


def _random_clouds(settings: Settings, n: int) -> list[Certificate]:
    rng = np.random.default_rng(settings.seed)
    clouds = rng.normal(size=(settings.starts, n, 2))
    # A = R^T diag(100^-u) R with u in (0, 1): condition up to 100.
    axes = np.linalg.qr(rng.normal(size=(settings.starts, 2, 2)))[0]
    forms = (axes * 100.0 ** -rng.uniform(0, 1, (settings.starts, 1, 2))) @ axes.transpose(0, 2, 1)
    # Exactly symmetric, as the theorem asks: rounding leaves 1e-17.
    forms = (forms + forms.transpose(0, 2, 1)) / 2
    # From 1/5 to 5, as many below 1 as above.
    alphas = 5.0 ** rng.uniform(-1, 1, settings.starts)
    tolerance = settled_tolerance(clouds.dtype)
    # To the limit, and not for a fixed number of layers: small steps take thousands.
    run = lambda z, A, alpha: run_to_fixed_point(z, HardmaxLayer(alpha, A), jnp.asarray(5000), tolerance)
    ends = jax.tree.map(np.asarray, eqx.filter_jit(jax.vmap(run))(*map(jnp.asarray, (clouds, forms, alphas))))
    everyone = np.ones(n, bool)
    return [
        # One compiled run for all clouds; the clauses are checked one cloud at a time.
        make_certificate(jax.tree.map(lambda leaf, b=b: leaf[b], ends), cloud, everyone, forms[b])
        for b, cloud in enumerate(clouds)
    ]


# What the hardmax figure claims: the theorem holds, leaders may emerge, and clusters may lie off the vertices.


LAYERS_ALONE = Subject("hardmax-layers", "hardmax attention alone, not trained")
THEOREM = Source("Alcalde, Fantuzzi and Zuazua, 2407.01602, of any tokens", LAYERS_ALONE, ANY)
CLOUDS = Subject("clouds", "four chosen clouds, and normal ones")


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (*_four_clouds(m), *_random_claims(m.random, m.p.n)))


def _four_clouds(m: Results) -> tuple[Claim, ...]:
    xs, certificates, left, p = m.xs, m.certificates, m.left, m.p
    limits = {name: certified.limit for name, certified in certificates.items()}
    side = xs["clusters off the vertices"][:, 4]
    exact = SIDE - (SIDE - ON_AXES[0, 0]) * (1 + p.alpha) ** -np.arange(len(side))
    defect = float(np.abs(side - np.stack([exact, np.zeros(len(exact))], axis=1)).max())
    others = limits["clusters off the vertices"]
    middles = others.points[~others.is_vertex]
    expected = SIDE * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    off = max((float(np.linalg.norm(expected - point, axis=1).min()) for point in middles), default=np.inf)
    farthest = max(float(values[-1]) for values in left.values())
    return (
        Claim(
            says="All clauses of the theorem hold on the four clouds.",
            measured="; ".join(
                f"{name}: {sum(c.held for c in one.clauses)} of 5" for name, one in certificates.items()
            ),
            criterion="5 of 5 on each",
            holds=all(one.held for one in certificates.values()),
            kind="identity",
        ),
        Claim(
            says="A token that ties between two corners comes to the middle of the side by 1 / (1 + alpha) a layer.",
            measured=f"largest error {defect:.1e} over {len(side)} layers",
            criterion="less than 1e-12",
            holds=defect < 1e-12,
            kind="identity",
            value=defect,
        ),
        Claim(
            says=f"At layer {p.layers} the tokens are clustered.",
            measured=f"the farthest token of the four clouds is {farthest:.1e} from its limit",
            criterion="less than 1e-3",
            holds=farthest < 1e-3,
            kind="paper",
            value=farthest,
            source=THEOREM,
        ),
        Claim(
            says="A leader may emerge that is no leader at first.",
            measured=f"token {LATE} of the third cloud "
            + (f"leads from layer {m.emerged} on" if m.emerged >= 0 else "never leads"),
            criterion="it leads, but not from layer 0 on",
            holds=bool(m.emerged > 0),
            kind="paper",
            value=float(m.emerged),
            source=THEOREM,
        ),
        Claim(
            says="There are clusters off the vertices, where the origin projects onto a face.",
            measured=f"{len(middles)} such points, at most {off:.1e} from the middle of a side",
            criterion="some, each less than 1e-9 away",
            holds=len(middles) > 0 and off < 1e-9,
            kind="paper",
            value=off,
            source=THEOREM,
        ),
    )


def _random_claims(random: list[Certificate], n: int) -> tuple[Claim, ...]:
    late = np.array([int(one.limit.leaders.first.max()) > 0 for one in random])
    # The error of a share; at least a little where none or all are late.
    share, error = float(late.mean()), float(np.sqrt(max(late.mean() * (1 - late.mean()), 1e-12) / len(late)))
    counts = np.array([len(one.limit.leaders.indices) for one in random])
    return (
        Claim(
            says="The theorem holds on random clouds, for A of condition up to 100 and alpha from 0.2 to 5.",
            measured=f"on {sum(one.held for one in random)} of {len(random)}",
            criterion="on all of them",
            holds=all(one.held for one in random),
            kind="identity",
        ),
        Claim(
            says="On random clouds the leaders are nearly always those of layer 0.",
            measured=f"{percent(share, error)} of {len(random)} clouds have a later one; "
            f"{counts.mean():.1f} of {n} tokens lead on average",
            criterion="less than 5 %",
            holds=share < 0.05,
            kind="finding",
            value=share,
            error=error,
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    emerges = f"becomes a leader at layer {m.emerged}" if m.emerged > 0 else "becomes a leader with other steps"
    return (
        f"Hardmax layers with A = I and alpha = {m.p.alpha:g}. Each row is one cloud of {N} tokens, coloured by the "
        "point that they come to; leaders are stars from the layer on at which they attend to themselves alone, and "
        f"the polytope that they span is grey. Third row: a token that does not lead at first {emerges}. Fourth row: "
        "tokens that tie between two corners come to the middle of a side, where the origin projects. (a), (b): a "
        "token (red) is drawn to those (blue) that lie farthest in the direction A z, for A = I and for a stretched A. "
        "(c): the farthest that a token is from its limit."
    )


# The picture of the hardmax figure: clouds and their polytopes, what draws a token, distances to the limit.


PICTURE = np.array([[0.55, 0.35], [1.45, 0.25], [0.5, 1.25], [-1.1, 0.75], [-0.85, -0.8], [0.7, -0.95], [-0.2, 0.3]])
STRETCH = np.diag([0.35, 1.6])


@style()
def draw(m: Results) -> Figure:
    """The clouds layer by layer above, what draws a token and how far tokens are from their limits below."""
    xs, certificates, layers = m.xs, m.certificates, m.p.shown
    # Square panels: the height of the figure follows from the number of clouds.
    panel = WIDTH / (len(layers) + 0.25)
    figure = Figure(figsize=(WIDTH, len(xs) * panel + 2.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(len(xs) * panel + 0.15, 2.35))  # pyright: ignore
    grid = top.subplots(len(xs), len(layers), squeeze=False)
    for axes, (name, run) in zip(grid, xs.items(), strict=True):
        _row(axes, run, certificates[name], layers)
        axes[0].text(-0.03, 0.5, name, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
    for ax, k in zip(grid[0], layers, strict=True):
        ax.set_title(f"layer {k}")
    panels = bottom.subplots(1, 3, width_ratios=(1, 1, 1.25))
    attraction(PICTURE, 0, panels[0])
    attraction(PICTURE, 0, panels[1], form=STRETCH)
    _decay(panels[2], m)
    for letter, ax in zip("abc", panels, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    panels[0].set_title("$A = I$")
    panels[1].set_title(f"$A$ = diag({STRETCH[0, 0]:g}, {STRETCH[1, 1]:g})")
    return figure


def _row(axes: np.ndarray, run: np.ndarray, one: Certificate, layers: tuple[int, ...]) -> None:
    first = np.asarray(one.limit.leaders.first)
    # The same for all layers of a cloud, so that its tokens are seen to move.
    reach = 1.12 * np.abs(run[0]).max()
    for ax, k in zip(axes, layers, strict=True):
        # Leaders are stars from the layer on at which they begin to lead.
        leading = (first >= 0) & (first <= k)
        polytope(
            run[k], ax, corners=one.limit.vertices, leaders=leading, labels=one.limit.goes_to, reach=reach, size=0.8
        )


def _decay(ax: Axes, m: Results) -> None:
    ks = np.arange(m.p.layers + 1)
    for (name, values), colour in zip(m.left.items(), OKABE_ITO, strict=False):
        ax.semilogy(ks, values, color=colour, label=name)
    ax.semilogy(
        ks,
        # The rate of the theorem, with a factor that keeps it clear of the curves.
        12.0 * (1 + m.p.alpha) ** -ks.astype(float),
        color="0.4",
        ls="--",
        lw=0.9,
        label=r"$\propto (1+\alpha)^{-k}$",
    )
    ax.set(xlabel="layer $k$", ylabel="farthest token from its limit")
    ax.legend(loc="lower left", borderaxespad=0.1, labelspacing=0.25)


# The hardmax figure as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    tokens = N if p.n == N else (N, p.n)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": N, "d": 2, "alpha": p.alpha, "A": "identity; random for the random clouds", "layers": list(p.shown),
         "starts": m.starts} | ({"n of the random clouds": p.n} if p.n != N else {}),
        {"layer": np.arange(p.layers + 1)} | {f"left, {name}": values for name, values in m.left.items()},
        partial(draw, m),
        None,
        on=Measured(LAYERS_ALONE, CLOUDS, {"tokens": tokens, "d": 2, "layers": p.layers, "starts": m.starts}),
    )  # fmt: skip


FIGURE = declared("hardmax-polytope", _run, parameters=Parameters)
