"""What the hardmax figure measures: four clouds layer by layer, and the theorem on random ones.

Alcalde, Fantuzzi, Zuazua (2407.01602): for a symmetric positive definite A tokens converge to a polytope whose vertices
are the leaders, and to the A-projection of the origin onto its faces. Each clause is certified with a margin
(`hardmax.certificate`). The four clouds are chosen to show a case each: leaders alone, a square, a leader that emerges
later, and clusters off the vertices, for which tokens must tie between two corners and hence lie on the axes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._iterate import iterate
from ...hardmax import Certificate, HardmaxLayer, certificate
from ...hardmax._certificate import make_certificate
from ...hardmax._fixed_point import run_to_fixed_point
from ...hardmax._limit import settled_tolerance
from ..framework.experiment import Settings
from ..framework.parameters import parameter


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
