"""Phase diagrams: how many pairs of tokens are close, over time and beta, and the exact curve in high dimension."""

from collections.abc import Callable

import numpy as np

from .._observables import equiangular_time
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._phase_diagram_measure import DELTA, DIMENSIONS, FEWER, Map, N, diagram, off_theory, orthogonal_jump
from ._phase_diagram_panels import draw
from ._sources import PARTICLES, UNIFORM, particles
from ._verdict import Source


CODE = Source("the code of 2312.10794", PARTICLES, UNIFORM, {"tokens": 32, "d": 2})
HIGH = Source("2312.10794, Section 6", PARTICLES, UNIFORM, {"tokens": 32, "d": 128})
# What the published code gives on the circle, by its own step, over 512 starts: beta, time, share, error.
PUBLISHED = (
    (1.0, 6.0, 0.2290, 0.0070), (1.0, 15.0, 0.9699, 0.0051), (4.0, 15.0, 0.4812, 0.0043), (4.0, 30.0, 0.5224, 0.0044),
    (9.0, 15.0, 0.3181, 0.0029), (9.0, 30.0, 0.3444, 0.0031),
)  # fmt: skip
PUBLISHED_STARTS = 512
JUMPS = (0.0, 3.0, 6.0)
STEPPED = 32  # the dimension in which the published step is looked at, but for quick runs


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    from ..sweep import Adaptive, LikeQueryKey, PerBeta, Product, Square, Wigner

    quick, seed = settings.quick, settings.seed
    shown = (DIMENSIONS[0], DIMENSIONS[-1]) if quick else DIMENSIONS
    betas = np.union1d(np.linspace(0.5, 9, 6 if quick else 28), [1.0, 4.0, 9.0])
    slow = np.linspace(0.25, 3.0, 4 if quick else 20)
    times, early = np.linspace(0, 30, 61), np.linspace(0, 6, 61)
    softmax, gradient, maps = {}, {}, {}
    for d in shown:
        say(f"softmax attention, d = {d}")
        softmax[d] = maps[f"softmax, d = {d}"] = diagram(betas, times, d, settings.starts, seed)
    for d in shown[-1:] if quick else shown:
        say(f"unnormalised attention, d = {d}")
        gradient[d] = diagram(slow, early, d, settings.starts, seed, unnormalised=True)
        maps[f"unnormalised, d = {d}"] = gradient[d]
    laws = {
        "random Q, K, V": {"query_key": Product(), "value": Square()},
        "random Q, K": {"query_key": Product()},
        "V = $Q^T$K, Wigner": {"query_key": Wigner(PerBeta()), "value": LikeQueryKey(1 / 3)},
    }
    random = {}
    for name in () if quick else laws:
        say(f"{name}, d = 8")
        random[name] = maps[f"{name}, d = 8"] = diagram(betas, times, 8, settings.starts, seed, **laws[name])
    say("the published step against accurate ones")
    stepped, rows = shown[-1] if quick else STEPPED, slice(None, None, 3 if quick else 2)
    accurate = diagram(betas[rows], times, stepped, settings.starts, seed, integrator=Adaptive())
    off = softmax[stepped].share[rows] - accurate.share
    say("orthonormal tokens")
    return Outcome(
        _caption(settings.starts, shown, stepped),
        (
            _jump(quick),
            _uniform(softmax[2]),
            _published(softmax[2]),
            _high(softmax, unnormalised=False),
            _high(gradient, unnormalised=True),
            _low(softmax[2]),
            _asymptote(),
            _step(off, stepped),
            *(_random(found, softmax[2]) for found in list(random.values())[:1]),
        ),
        {"n": N, "d": list(shown), "starts": settings.starts, "systems for one on the circle": str(FEWER),
         "beta": [float(b) for b in betas], "beta, unnormalised": [float(b) for b in slow],
         "solver": "normalised Euler, step 0.1 (unnormalised: divided by max(sqrt(beta) e^(beta - 1/2), 1)), float32"},
        {"t": times}
        | {f"share_by_beta_and_time, {name}": found.share for name, found in maps.items()}
        | {"difference_by_beta_and_time": off},
        lambda: draw(maps, (f"step 0.1, d = {stepped}", accurate, off)),
        None,
        on=particles(
            tokens=N, d=shown, beta=tuple(betas[[0, -1]].tolist()), t=times[-1].item(), starts=settings.starts
        ),
    )  # fmt: skip


def _caption(starts: int, shown: tuple[int, ...], stepped: int) -> str:
    return (
        f"Share of pairs of {N} tokens with inner product above 0.999, over time and beta, V = Q = K = I but for the "
        f"random panels; means of up to {starts} uniform starts, fewer in high dimension. Solid: when tokens that are "
        "orthogonal at first have all cosines 0.999, exactly; dashed: its limit e^beta / (2 beta) for large beta "
        f"(softmax). In d = {shown[-1]} the transition is at the curve, for both kinds of attention. On the circle "
        "there is no such line: clusters form at the pace of the curve for beta = 0, whatever beta is, and then wait. "
        "The dashed line is a limit that the diagram does not come to. Unnormalised attention goes faster with larger "
        f"beta. Last panel: the published step of 0.1 against accurate integration, d = {stepped}; it moves the "
        "transition. The published diagrams have the state after the first step at time zero; here it is the start."
    )


def _jump(quick: bool) -> Claim:
    kinds = (False,) if quick else (False, True)
    shares = np.concatenate([orthogonal_jump(np.array(JUMPS[: 3 - kind]), kind) for kind in kinds])
    return Claim(
        "Orthonormal tokens have no close pair until the exact time of the curve, and only close ones after it.",
        f"largest share a thousandth before it {shares[:, 0].max():g}, smallest a thousandth after it "
        f"{shares[:, 1].min():g}; beta = {', '.join(f'{b:g}' for b in JUMPS)}, "
        + ("softmax attention" if quick else "both kinds of attention"),
        "0 and 1",
        bool(np.all(shares[:, 0] == 0) and np.all(shares[:, 1] == 1)),
        "identity",
    )


def _uniform(found: Map) -> Claim:
    expected, (share, error) = float(np.arccos(1 - DELTA) / np.pi), found.at(1.0, 0.0)
    return Claim(
        "At time zero the share is that of uniform tokens on the circle, arccos(0.999) / pi.",
        f"{plus_minus(share, error, 4)} against {expected:.4f}",
        "within four standard errors",
        bool(abs(share - expected) <= 4 * error),
        "identity",
        share,
        error,
    )


def _published(found: Map) -> Claim:
    ours = [found.at(beta, t) for beta, t, _, _ in PUBLISHED]
    # Few starts may all agree, and have no spread of their own: that of the published runs serves for both.
    both = np.sqrt(1 + PUBLISHED_STARTS / found.dataset.attrs["samples"])
    apart = [
        abs(share - printed) / (both * sigma)
        for (share, _), (_, _, printed, sigma) in zip(ours, PUBLISHED, strict=True)
    ]
    listed = (
        f"{plus_minus(*mine, 3)} against {plus_minus(printed, sigma, 3)} (beta = {beta:g}, t = {t:g})"
        for mine, (beta, t, printed, sigma) in zip(ours, PUBLISHED, strict=True)
    )
    return Claim(
        "The shares on the circle are those of the published code.",
        "; ".join(listed),
        "within four standard errors of the two together",
        bool(max(apart) <= 4),
        "paper",
        float(max(apart)),
        source=CODE,
    )


def _high(maps: dict[int, Map], *, unnormalised: bool) -> Claim:
    off = {d: off_theory(found, unnormalised) for d, found in maps.items()}
    last = max(off)
    kind = "unnormalised" if unnormalised else "softmax"
    return Claim(
        f"In high dimension tokens cluster along the curve of orthogonal ones, {kind} attention.",
        "half of all pairs are close at a time which differs from the curve on average by "
        + ", ".join(f"{100 * value:.1f} % (d = {d})" for d, value in off.items()),
        f"at most 10 % in d = {last}",
        off[last] <= 0.1,
        "paper",
        off[last],
        source=HIGH,
    )


def _low(found: Map) -> Claim:
    t = float(equiangular_time(1 - DELTA, 4.0, N))
    share, late = found.at(4.0, t), found.at(4.0, 30.0)
    return Claim(
        "On the circle the curve is no boundary: at beta = 4 clusters wait for each other far beyond it.",
        f"share {plus_minus(*share, 3)} at the time of the curve, {t:.2f}, and {plus_minus(*late, 3)} at t = 30",
        "less than two thirds at both, by four standard errors",
        max(share[0] + 4 * share[1], late[0] + 4 * late[1]) < 2 / 3,
        "finding",
        *late,
    )


def _asymptote() -> Claim:
    ratios = [float(equiangular_time(1 - DELTA, b, N)) / (np.exp(b) / (2 * b)) for b in (6.0, 9.0, 40.0, 320.0)]
    return Claim(
        "The line e^beta / (2 beta) is a limit that no diagram up to beta = 9 comes to.",
        f"exact time over it {', '.join(f'{r:.2f}' for r in ratios)} at beta = 6, 9, 40, 320; n = {N}",
        "off by more than a third at 9, by less than 10 % at 320",
        bool(abs(ratios[1] - 1) > 1 / 3 and abs(ratios[-1] - 1) < 0.1),
        "finding",
        ratios[1],
    )


def _step(off: np.ndarray, d: int) -> Claim:
    worst = float(np.abs(off).max())
    return Claim(
        "The published step of 0.1 moves the transition.",
        f"shares differ from those of accurate integration, of the same starts, by up to {worst:.2f} in d = {d}",
        "more than 0.05 somewhere",
        worst > 0.05,
        "finding",
        worst,
    )


def _random(found: Map, circle: Map) -> Claim:
    ours, theirs = found.at(9.0, 30.0), circle.at(9.0, 30.0)
    return Claim(
        "Random Q, K and a random positive semidefinite V, drawn for each start, gather most tokens at every beta.",
        f"share {plus_minus(*ours)} in d = 8 at beta = 9, t = 30, where V = Q = K = I has {plus_minus(*theirs)} on the "
        "circle",
        "more than one half, by two standard errors",
        ours[0] - 2 * ours[1] > 0.5,
        "finding",
        *ours,
    )


PHASE_DIAGRAM = Experiment(
    "phase-diagram",
    "phase_diagrams",
    "Phase diagrams: time, beta and dimension",
    "Over time and beta there are tokens that have clustered and tokens that have not; as the dimension grows the "
    "boundary between them becomes the explicit curve of orthogonal tokens (2312.10794, Section 6).",
    _run,
)
