"""Rank collapse: attention alone makes all tokens one, doubly exponentially fast; what slows it."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, plus_minus, within
from ..framework.verdict import ANY, UNSAID, Source, Subject
from .measure import BETAS, FEW, GONE, PARTS, Depths, Parameters, Results


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
            *_one_layer(m.powers, m.depths, m.gone),
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


def _one_layer(
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
