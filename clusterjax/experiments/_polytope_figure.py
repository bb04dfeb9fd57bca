"""The hardmax figure: tokens come to a polytope of leaders; and what draws a token."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._iterate import iterate
from ..hardmax import Certificate, HardmaxLayer, certificate
from ..hardmax._certificate import judged
from ..hardmax._limit import settled_tolerance
from ..hardmax._settle import settle
from ..plot import OKABE_ITO, attraction, polytope, style
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._verdict import ANY, Measured, Source, Subject


LAYERS_ALONE = Subject("hardmax-layers", "hardmax attention alone, not trained")
THEOREM = Source("Alcalde, Fantuzzi and Zuazua, 2407.01602, of any tokens", LAYERS_ALONE, ANY)
CLOUDS = Subject("clouds", "four chosen clouds, and normal ones")
N, ALPHA, LAYERS = 15, 0.5, (0, 1, 2, 5, 30)
SIDE = 1.4
SQUARE = SIDE * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
TRIANGLE = np.array([[0.0, 1.7], [-1.5, -0.9], [1.5, -0.9]])
ON_AXES = np.array([[0.5, 0.0], [0.9, 0.0], [-0.7, 0.0], [0.0, 0.4], [0.0, -0.9]])
EMERGING, LATE = np.array(
    [[2.15, -1.12], [0.09, 1.93], [0.65, -0.64], [-0.26, 0.57], [0.79, 0.46], [0.31, -0.71], [-1.87, 2.14],
     [-0.27, -0.48], [0.32, -1.69], [1.01, -0.65], [1.13, 0.97], [0.7, 1.52], [-0.5, 0.9], [-0.9, 0.2], [0.1, -0.9]]
), 10  # fmt: skip
PICTURE = np.array([[0.55, 0.35], [1.45, 0.25], [0.5, 1.25], [-1.1, 0.75], [-0.85, -0.8], [0.7, -0.95], [-0.2, 0.3]])
STRETCH = np.diag([0.35, 1.6])


def _starts(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    within = lambda corners, count: rng.dirichlet(np.full(len(corners), 1.5), count) @ corners
    return {
        "triangle": np.concatenate([TRIANGLE, within(TRIANGLE, N - 3)]),
        "square": np.concatenate([SQUARE, within(SQUARE, N - 4)]),
        "emerging leader": EMERGING,
        "clusters off the vertices": np.concatenate([SQUARE, ON_AXES, within(SQUARE, N - 9)]),
    }


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    say("iterating")
    layer = HardmaxLayer(ALPHA)
    starts = _starts(settings.seed)
    xs = {name: np.asarray(iterate(layer, jnp.asarray(z0), LAYERS[-1]).xs) for name, z0 in starts.items()}
    say("checking the theorem")
    found = {name: certificate(jnp.asarray(z0), layer) for name, z0 in starts.items()}
    left = {name: _distances(xs[name], found[name]) for name in starts}
    random = _random_clouds(settings)
    claims = (*_claims(xs, found, left), *_random_claims(random))
    caption = (
        f"Hardmax layers with A = I and alpha = {ALPHA:g}. Each row is one cloud of {N} tokens, coloured by the "
        "point that they come to; leaders are stars from the layer on at which they attend to themselves alone, and "
        "the polytope that they span is grey. Third row: a token that does not lead at first becomes a leader at layer "
        f"{int(found['emerging leader'].limit.leaders.first[LATE])}. Fourth row: tokens that tie between two corners "
        "come to the middle of a side, where the origin projects. (a), (b): a token (red) is drawn to those (blue) "
        "that lie farthest in the direction A z, for A = I and for a stretched A. (c): the farthest that a token is "
        "from its limit."
    )
    return Outcome(
        caption,
        claims,
        {"n": N, "d": 2, "alpha": ALPHA, "A": "identity; random for the random clouds", "layers": list(LAYERS),
         "starts": settings.starts},
        {"layer": np.arange(LAYERS[-1] + 1)} | {f"left, {name}": values for name, values in left.items()},
        lambda: _draw(xs, found, left),
        None,
        on=Measured(LAYERS_ALONE, CLOUDS, {"tokens": N, "d": 2, "layers": LAYERS[-1], "starts": settings.starts}),
    )  # fmt: skip


def _distances(xs: np.ndarray, found: Certificate) -> np.ndarray:
    """The largest distance of a token from its limit, after each layer."""
    return np.linalg.norm(xs - found.limit.points[found.limit.goes_to], axis=-1).max(axis=1)


def _random_clouds(settings: Settings) -> list[Certificate]:
    rng = np.random.default_rng(settings.seed)
    clouds = rng.normal(size=(settings.starts, N, 2))
    axes = np.linalg.qr(rng.normal(size=(settings.starts, 2, 2)))[0]
    forms = (axes * 100.0 ** -rng.uniform(0, 1, (settings.starts, 1, 2))) @ axes.transpose(0, 2, 1)
    forms = (forms + forms.transpose(0, 2, 1)) / 2
    alphas = 5.0 ** rng.uniform(-1, 1, settings.starts)
    tolerance = settled_tolerance(clouds.dtype)
    run = lambda z, A, alpha: settle(z, HardmaxLayer(alpha, A), jnp.asarray(5000), tolerance)
    ends = jax.tree.map(np.asarray, eqx.filter_jit(jax.vmap(run))(*map(jnp.asarray, (clouds, forms, alphas))))
    everyone = np.ones(N, bool)
    return [
        judged(jax.tree.map(lambda leaf, b=b: leaf[b], ends), cloud, everyone, forms[b])
        for b, cloud in enumerate(clouds)
    ]


def _claims(xs: dict[str, np.ndarray], found: dict[str, Certificate], left: dict[str, np.ndarray]) -> tuple[Claim, ...]:
    limits = {name: certified.limit for name, certified in found.items()}
    side = xs["clusters off the vertices"][:, 4]
    exact = SIDE - (SIDE - ON_AXES[0, 0]) * (1 + ALPHA) ** -np.arange(len(side))
    defect = float(np.abs(side - np.stack([exact, np.zeros(len(exact))], axis=1)).max())
    late = limits["emerging leader"].leaders
    others = limits["clusters off the vertices"]
    middles = others.points[~others.is_vertex]
    expected = SIDE * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    off = max(float(np.linalg.norm(expected - point, axis=1).min()) for point in middles)
    farthest = max(float(values[-1]) for values in left.values())
    return (
        Claim(
            "All clauses of the theorem hold on the four clouds.",
            "; ".join(f"{name}: {sum(c.held for c in one.clauses)} of 5" for name, one in found.items()),
            "5 of 5 on each",
            all(one.held for one in found.values()),
            "identity",
        ),
        Claim(
            "A token that ties between two corners comes to the middle of the side by 1 / (1 + alpha) a layer.",
            f"largest error {defect:.1e} over {len(side)} layers",
            "less than 1e-12",
            defect < 1e-12,
            "identity",
            defect,
        ),
        Claim(
            "At layer 30 the tokens are clustered.",
            f"the farthest token of the four clouds is {farthest:.1e} from its limit",
            "less than 1e-3",
            farthest < 1e-3,
            "paper",
            farthest,
            source=THEOREM,
        ),
        Claim(
            "A leader may emerge that is no leader at first.",
            f"token {LATE} of the third cloud leads from layer {int(late.first[LATE])} on",
            "it leads, but not from layer 0 on",
            bool(late.first[LATE] > 0),
            "paper",
            float(late.first[LATE]),
            source=THEOREM,
        ),
        Claim(
            "There are clusters off the vertices, where the origin projects onto a face.",
            f"{len(middles)} such points, at most {off:.1e} from the middle of a side",
            "some, each less than 1e-9 away",
            len(middles) > 0 and off < 1e-9,
            "paper",
            off,
            source=THEOREM,
        ),
    )


def _random_claims(random: list[Certificate]) -> tuple[Claim, ...]:
    late = np.array([int(one.limit.leaders.first.max()) > 0 for one in random])
    share, error = float(late.mean()), float(np.sqrt(max(late.mean() * (1 - late.mean()), 1e-12) / len(late)))
    counts = np.array([len(one.limit.leaders.indices) for one in random])
    return (
        Claim(
            "The theorem holds on random clouds, for A of condition up to 100 and alpha from 0.2 to 5.",
            f"on {sum(one.held for one in random)} of {len(random)}",
            "on all of them",
            all(one.held for one in random),
            "identity",
        ),
        Claim(
            "On random clouds the leaders are nearly always those of layer 0.",
            f"{plus_minus(100 * share, 100 * error, 1)} % of {len(random)} clouds have a later one; "
            f"{counts.mean():.1f} of {N} tokens lead on average",
            "less than 5 %",
            share < 0.05,
            "finding",
            share,
            error,
        ),
    )


@style()
def _draw(xs: dict[str, np.ndarray], found: dict[str, Certificate], left: dict[str, np.ndarray]) -> Figure:
    panel = WIDTH / (len(LAYERS) + 0.25)
    figure = Figure(figsize=(WIDTH, len(xs) * panel + 2.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(len(xs) * panel + 0.15, 2.35))  # pyright: ignore
    grid = top.subplots(len(xs), len(LAYERS), squeeze=False)
    for axes, (name, run) in zip(grid, xs.items(), strict=True):
        _row(axes, run, found[name])
        axes[0].text(-0.03, 0.5, name, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
    for ax, k in zip(grid[0], LAYERS, strict=True):
        ax.set_title(f"layer {k}")
    panels = bottom.subplots(1, 3, width_ratios=(1, 1, 1.25))
    attraction(PICTURE, 0, panels[0])
    attraction(PICTURE, 0, panels[1], form=STRETCH)
    _decay(panels[2], left)
    for letter, ax in zip("abc", panels, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    panels[0].set_title("$A = I$")
    panels[1].set_title(f"$A$ = diag({STRETCH[0, 0]:g}, {STRETCH[1, 1]:g})")
    return figure


def _row(axes: np.ndarray, run: np.ndarray, one: Certificate) -> None:
    first = np.asarray(one.limit.leaders.first)
    reach = 1.12 * np.abs(run[0]).max()
    for ax, k in zip(axes, LAYERS, strict=True):
        leading = (first >= 0) & (first <= k)
        polytope(
            run[k], ax, corners=one.limit.vertices, leaders=leading, labels=one.limit.goes_to, reach=reach, size=0.8
        )


def _decay(ax: Axes, left: dict[str, np.ndarray]) -> None:
    ks = np.arange(LAYERS[-1] + 1)
    for (name, values), colour in zip(left.items(), OKABE_ITO, strict=False):
        ax.semilogy(ks, values, color=colour, label=name)
    ax.semilogy(
        ks, 12.0 * (1 + ALPHA) ** -ks.astype(float), color="0.4", ls="--", lw=0.9, label=r"$\propto (1+\alpha)^{-k}$"
    )
    ax.set(xlabel="layer $k$", ylabel="farthest token from its limit")
    ax.legend(loc="lower left", borderaxespad=0.1, labelspacing=0.25)


HARDMAX_POLYTOPE = Experiment(
    "hardmax-polytope",
    "hardmax_polytope",
    "Hardmax: tokens come to a polytope of leaders",
    "Every token converges to a vertex of a polytope, each of which is a leader, or to the projection of the origin "
    "onto one of its faces (layers 0, 1, 2, 5, 30).",
    _run,
)
