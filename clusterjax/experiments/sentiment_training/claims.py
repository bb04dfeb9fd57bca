"""What is claimed of training: 8 layers settle the words, few lead in two dimensions, and all in many."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus
from ..sentiment.model import POSTER, Source
from .measure import Curves, Results


def claims_of(curves: dict[int, Curves]) -> tuple[Claim, ...]:
    """All claims of the figure."""
    # The smallest and the largest dimension that was run: 2 and 16.
    low, high = min(curves), max(curves)
    # Over all models: a single word that gets farther out would refute it.
    growth = max(model.growth for model in curves.values())
    settled = curves[low].settled
    # The error of a share.
    spread = float(np.sqrt(settled * (1 - settled) / len(curves[low].moves)))
    listed = "; ".join(
        f"d = {dim}: {plus_minus(model.accuracy, model.error, 4)}, {model.per_word:.3f} leaders per word, "
        f"alpha {model.alpha:.2f}"
        for dim, model in curves.items()
    )
    claims = (
        Claim(
            says="No word gets farther out than the longest one was at the start: words move towards other words.",
            measured=f"largest length at layer 64 over that at layer 0: {growth:.7f}",
            criterion="at most 1 + 1e-5",
            holds=growth <= 1 + 1e-5,
            kind="identity",
            value=growth,
        ),
        Claim(
            says=f"8 layers are enough to approximate the clustered state (d = {low}).",
            measured=f"{plus_minus(100 * settled, 100 * spread, 1)} % of {len(curves[low].moves)} test reviews are "
            "settled at layer 8; "
            + ", ".join(f"d = {dim}: {100 * model.settled:.1f} %" for dim, model in curves.items()),
            criterion="at least 75 %",
            holds=settled >= 0.75,
            kind="paper",
            value=settled,
            error=spread,
            source=POSTER,
        ),
        Claim(
            says=f"Few words lead at d = {low}.",
            measured=f"{curves[low].per_review:.2f} leaders per review",
            criterion="at most 3",
            holds=curves[low].per_review <= 3,
            kind="finding",
            value=curves[low].per_review,
        ),
        Claim(
            says=f"With more dimensions clustering disappears: at d = {high} half of the words are their own leaders.",
            measured=listed,
            criterion=f"leaders per word at most 0.15 for d = {low} and at least 0.5 for d = {high}",
            holds=curves[low].per_word <= 0.15 and curves[high].per_word >= 0.5,
            kind="finding",
            value=curves[high].per_word,
        ),
    )
    return over("test reviews, of one training for each d", claims)


def caption_of(m: Results, source: Source) -> str:
    """What is seen, of reviews from `source`."""
    return (
        f"One model for each d = {', '.join(map(str, m.curves))}, trained on {source.words} (8 hardmax layers, trained "
        "through the hardmax itself). (a) Loss and (b) accuracy after each epoch, on the training part (dashed: an "
        "average over the epoch with words dropped and, in the loss, labels smoothed, so that the losses do not compare"
        ") and on the validation part (solid); a ring marks the epoch that is kept, the best on the validation "
        "part. (c) The share of test reviews in which some word moves farther, from layer 8 to 64, than a given share "
        "of the longest word's length; dotted: 1 %, below which a review counts as settled. (d) Test accuracy beside "
        "the leaders per word: at 1 every word leads itself and nothing clusters; dash-dotted: a bag of words, the "
        f"model without layers, {m.bag:.4f}."
    )
