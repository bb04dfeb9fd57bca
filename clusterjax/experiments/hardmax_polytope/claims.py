"""What the hardmax figure claims: the theorem holds, leaders may emerge, and clusters may lie off the vertices."""

import numpy as np

from ...hardmax import Certificate
from ..framework.experiment import Claim, over, percent
from ..framework.verdict import ANY, Source, Subject
from .measure import LATE, ON_AXES, SIDE, N, Results


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
