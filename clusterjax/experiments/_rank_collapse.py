"""Rank collapse: attention alone makes all tokens one, doubly exponentially fast; what slows it."""

from collections.abc import Callable

import numpy as np

from ._ensemble import mean_and_error
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus, within
from ._rank_collapse_measure import (
    HEADS,
    HIDDEN,
    PARTS,
    D,
    Depths,
    N,
    difference_from_blocks,
    pure_distances,
    run_depths,
    through_one_layer,
)
from ._rank_collapse_panels import draw
from ._sources import UNIFORM
from ._verdict import ANY, UNSAID, Measured, Source, Subject


THEOREM = Source("2103.03404, Theorem 2.2, of any weights", ANY, ANY)
TRAINED = Source("2103.03404, Section 4", Subject("bert-albert-xlnet", "pretrained BERT, ALBERT and XLNet"), UNSAID)
RANDOM = Subject("random-layers", "layers with random weights")
FEW, BETAS = 6, (1.5, 4.0, 6.0)  # orthogonal tokens, for the exact recursion
LAYERS, QUICK_LAYERS, PURE_LAYERS = 24, 12, 12
SPREADS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
GONE = 1e-12  # a residual below it is none; rounding leaves 4e-16
ALONE, NEURONS, NORMED, SKIPPED, PLAIN, POST, PRE = PARTS


def recursion(n: int, beta: float, layers: int) -> np.ndarray:
    r"""$\delta \mapsto \delta\,(e^{\beta\delta^2/2} - 1) / (e^{\beta\delta^2/2} + n - 1)$ from $\sqrt2$, after each
    layer: the distance of tokens that are all equally far apart.

    Source: this library; the exponent $3^L$ is that of 2103.03404.
    """
    distances = [np.sqrt(2.0)]
    for _ in range(layers):
        lift = np.expm1(beta * distances[-1] ** 2 / 2)
        distances.append(distances[-1] * lift / (lift + n))
    return np.array(distances)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    say("iterating")
    layers = QUICK_LAYERS if settings.quick else LAYERS
    rng = np.random.default_rng(settings.seed)
    x0 = _on_sphere(rng.normal(size=(settings.starts, N, D)))
    depths = run_depths(settings.seed, x0, layers)
    say("measuring one layer")
    middle = _on_sphere(rng.normal(size=(settings.starts, 1, D)))
    spreads = _on_sphere(middle + np.multiply.outer(np.array(SPREADS), x0))
    before, after = through_one_layer(settings.seed, spreads)
    powers = dict(zip(PARTS, (_power(before, one) for one in after.transpose(1, 0, 2)), strict=True))
    exact = np.stack([recursion(FEW, beta, PURE_LAYERS) for beta in BETAS])
    pure = pure_distances(FEW, BETAS, PURE_LAYERS)
    off = difference_from_blocks(settings.seed, x0[0], depths.first)
    gone = dict(zip(PARTS, (_layers_until_gone(one) for one in depths.residual), strict=True))
    claims = (
        *_exact_claims(pure, exact, off),
        *_one_layer(powers, depths, gone),
        *_slowed(depths, layers),
        _postponed(exact),
    )
    logs = dict(zip(PARTS, (mean_and_error(np.log10(one)) for one in depths.residual), strict=True))
    return Outcome(
        _caption(settings.starts, layers, gone, depths),
        claims,
        {"n": N, "d": D, "heads": HEADS, "hidden": HIDDEN, "layers": layers, "starts": settings.starts,
         "weights": "normal, of variance 1 / inputs, fresh in each layer", "solver": "none: layers in float64",
         "orthogonal tokens": FEW, "beta of these": list(BETAS)},
        {"layer": np.arange(layers + 1)}
        | {f"log10 residual, {name}{what}": part for name, both in logs.items()
           for what, part in zip(("", ", error"), both, strict=True)}
        | {f"distance_by_layer, orthogonal, beta = {beta:g}": pure[k] for k, beta in enumerate(BETAS)},
        lambda: draw(pure, exact, BETAS, before, after, depths),
        None,
        on=Measured(
            RANDOM, UNIFORM, {"tokens": N, "d": D, "heads": HEADS, "layers": layers, "starts": settings.starts}
        ),
    )  # fmt: skip


def _on_sphere(x: np.ndarray) -> np.ndarray:
    """Tokens of length sqrt(d), as a layer norm leaves them."""
    return np.sqrt(D) * x / np.linalg.norm(x, axis=-1, keepdims=True)


def _power(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """p in "residual after = C (residual before)^p", from the two smallest spreads: mean over the starts and error."""
    powers = np.log(after[-2] / after[-1]) / np.log(before[-2] / before[-1])
    mean, error = mean_and_error(powers)
    return float(mean), float(error)


def _caption(starts: int, layers: int, gone: dict[str, tuple[float, float]], depths: Depths) -> str:
    return (
        f"(a) Distance of two of {FEW} orthogonal tokens under attention alone, Q = K = V = I: dots are the layers, "
        "lines an exact recursion, which goes on where float64 ends (grey). (b) One layer with random weights: the "
        "residual, the distance from equal tokens in units of the size, after it against before it. Without skips it "
        f"is cubed, with them multiplied. (c), (d): residual (geometric mean) and effective rank against depth, for "
        f"{starts} starts of {N} random tokens of length sqrt(d), d = {D}, {HEADS} heads, with normal weights, fresh "
        f"in each of {layers} layers; bands are standard errors, mostly thinner than the lines. The residual of "
        f"attention alone is below {GONE:g} after {plus_minus(*gone[ALONE], 1)} layers, with a feed-forward layer "
        f"behind it after {plus_minus(*gone[NEURONS], 1)}, with a layer norm after {plus_minus(*gone[NORMED], 1)}. "
        "With skip connections tokens gather all the same, but only exponentially with PostNorm, whose effective rank "
        f"ends at {float(depths.rank[list(PARTS).index(POST), :, -1].mean()):.2f}, and ever more slowly with PreNorm. "
        "So of the two remedies of 2103.03404 skips work, and feed-forward layers without skips do not, at least with "
        "weights as at the start of training."
    )


def _exact_claims(pure: np.ndarray, exact: np.ndarray, off: float) -> tuple[Claim, ...]:
    seen = exact > 1e-7
    defect = float(np.abs(pure[seen] / exact[seen] - 1).max())
    small = (exact[:, :-1] < 0.03) & (exact[:, 1:] > 1e-9)
    cubic = (np.array(BETAS)[:, None] / (2 * FEW) * pure[:, :-1] ** 3)[small]
    farthest = float(np.abs(pure[:, 1:][small] / cubic - 1).max())
    return (
        Claim(
            "From orthogonal tokens attention alone takes the distance of two tokens to d (e^(beta d^2 / 2) - 1) / "
            "(e^(beta d^2 / 2) + n - 1), layer by layer.",
            f"largest relative difference {defect:.1e} over {int(seen.sum())} distances above 1e-7",
            "less than 1e-6; below that float64 has too few digits",
            defect < 1e-6,
            "identity",
            defect,
        ),
        Claim(
            "Small distances are cubed: d becomes (beta / 2n) d^3, so that L layers raise it to the power 3^L.",
            f"the ratio to it, over {len(cubic)} distances below 0.03: 1 to within {farthest:.1e}",
            "within 1e-3",
            farthest < 1e-3,
            "identity",
            farthest,
        ),
        Claim(
            "The layers with skips are blocks of `clusterjax.transformer`: NoNorm, PostNorm, PreNorm.",
            f"largest relative difference {off:.1e}",
            "less than 1e-12",
            off < 1e-12,
            "identity",
            off,
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
            "Without skip connections and feed-forward layers tokens become one doubly exponentially fast "
            "(2103.03404), for random tokens and weights too.",
            f"{said(ALONE)}; below {GONE:g} after {plus_minus(*gone[ALONE])} layers",
            "p is 3 to within 0.1, and all starts are below it at the end",
            within(powers[ALONE][0], 3.0, 0.1) and bool(last[ALONE].max() < GONE),
            "paper",
            *powers[ALONE],
            source=THEOREM,
        ),
        Claim(
            "Skip connections stop it (2103.03404).",
            f"{said(SKIPPED)}; geometric mean of the residual after the last layer 10^{kept:.2f}",
            "p is 1 to within 0.1, and no start comes below 1e-6",
            within(powers[SKIPPED][0], 1.0, 0.1) and bool(last[SKIPPED].min() > 1e-6),
            "paper",
            *powers[SKIPPED],
            source=TRAINED,
        ),
        Claim(
            "Feed-forward layers stop it (2103.03404), here without skips and with random weights.",
            f"{said(NEURONS)}; below {GONE:g} after {plus_minus(*gone[NEURONS])} layers",
            "p is below 2, and no start comes below 1e-6",
            powers[NEURONS][0] < 2 and bool(last[NEURONS].min() > 1e-6),
            "paper",
            *powers[NEURONS],
            source=TRAINED,
        ),
        Claim(
            "A layer norm without skips does not stop it: it postpones it by a few layers.",
            f"{said(NORMED)}; below {GONE:g} after {plus_minus(*gone[NORMED])} layers, against "
            f"{plus_minus(*gone[ALONE])} without it",
            "p is 3 to within 0.1, and later by more than two standard errors but less than four layers",
            within(powers[NORMED][0], 3.0, 0.1) and _later(gone[NORMED], gone[ALONE]),
            "finding",
            *powers[NORMED],
        ),
    )


def _layers_until_gone(residual: np.ndarray) -> tuple[float, float]:
    """After how many layers a residual (starts, layers + 1) is gone; the depth + 1 for those that are not."""
    below = residual < GONE
    mean, error = mean_and_error(np.where(below.any(1), below.argmax(1), residual.shape[1]))
    return float(mean), float(error)


def _later(one: tuple[float, float], other: tuple[float, float]) -> bool:
    gap = one[0] - other[0]
    return bool(2 * np.hypot(one[1], other[1]) < gap < 4)


def _slowed(depths: Depths, layers: int) -> tuple[Claim, ...]:
    """How fast tokens gather with skips."""
    logs = dict(zip(PARTS, np.log10(depths.residual), strict=True))
    half = layers // 2
    rate = lambda name, start, end: mean_and_error((logs[name][:, end] - logs[name][:, start]) / (end - start))
    ends = {name: mean_and_error(logs[name][:, -1]) for name in (SKIPPED, PLAIN, POST, PRE)}
    gaps = {name: mean_and_error(logs[PRE][:, -1] - logs[name][:, -1]) for name in (SKIPPED, PLAIN, POST)}
    (early, of_early), (late, of_late) = rate(PRE, 0, half), rate(PRE, half, layers)
    (post, of_post), slower = rate(POST, half, layers), mean_and_error(_change(logs[PRE], half))
    ranks = dict(zip(PARTS, (mean_and_error(one[:, -1]) for one in depths.rank), strict=True))
    return (
        Claim(
            "With skips tokens gather all the same, most slowly with PreNorm.",
            f"log10 of the residual after {layers} layers: "
            + "; ".join(f"{name} {plus_minus(*ends[name])}" for name in ends),
            "PreNorm keeps more than each of the others, start by start, by more than two standard errors",
            all(gap > 2 * error for gap, error in gaps.values()),
            "finding",
            float(ends[PRE][0]),
            float(ends[PRE][1]),
        ),
        Claim(
            "PostNorm loses at a steady rate, PreNorm ever more slowly, as the flows of norm-schemes do.",
            f"log10 of the residual a layer, PreNorm: {plus_minus(early, of_early, 3)} in the first half and "
            f"{plus_minus(late, of_late, 3)} in the second; PostNorm: {plus_minus(post, of_post, 3)} in the second",
            "PreNorm slows down, and is slower than PostNorm in the second half, each by more than two standard errors",
            bool(slower[0] > 2 * slower[1] and late - post > 2 * np.hypot(of_late, of_post)),
            "finding",
            float(late),
            float(of_late),
        ),
        Claim(
            "In the end the tokens of attention alone have rank one, and those of blocks with PreNorm have not.",
            f"effective rank after {layers} layers, of at most {D}: "
            + "; ".join(f"{name} {plus_minus(*ranks[name])}" for name in (ALONE, SKIPPED, PLAIN, POST, PRE)),
            "1.00 for attention alone; with PreNorm above 2 by four standard errors",
            within(float(ranks[ALONE][0]), 1.0, 0.005) and bool(ranks[PRE][0] - 4 * ranks[PRE][1] > 2),
            "finding",
            float(ranks[PRE][0]),
            float(ranks[PRE][1]),
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
        "From orthogonal tokens a larger beta postpones the collapse and does not prevent it.",
        f"{FEW} tokens are less than 1e-3 apart after "
        + ", ".join(f"{k} layers (beta = {beta:g})" for k, beta in zip(layers, BETAS, strict=True)),
        "the more layers the larger beta, all within the depth",
        bool((np.diff(layers) > 0).all() and min(layers) > 0),
        "finding",
        float(layers[-1]),
    )


RANK_COLLAPSE = Experiment(
    "rank-collapse",
    "rank_collapse",
    "Rank collapse: attention alone makes all tokens one",
    "Without skip connections or feed-forward layers the tokens converge doubly exponentially to rank one; skip "
    "connections and feed-forward layers stop that (2103.03404).",
    _run,
)
