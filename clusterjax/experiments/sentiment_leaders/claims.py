"""What is claimed of leaders: that they carry sentiment, lie far from the hyperplane, and are few."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus
from ..sentiment.model import CLEAR, POSTER, shown
from .measure import STILL, Results


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure; that on planted words only where words were planted."""
    claims = _still(m), _frequent(m), _farthest(m), _apart(m), _few(m), _accurate(m)
    claims = (*claims, _planted(m)) if m.planted else claims
    return over(f"{m.counted.test:,} test reviews, of one training", claims)


def _still(m: Results) -> Claim:
    moved = m.counted.moved
    return Claim(
        says="A leader never moves again.",
        measured=f"largest move {moved:.1e} in the first {STILL} test reviews",
        criterion="less than 1e-5",
        holds=moved < 1e-5,
        kind="identity",
        value=moved,
    )


def _frequent(m: Results) -> Claim:
    counted = m.counted
    clear = np.abs(counted.ratio) >= CLEAR
    most = -(-11 * m.p.leaders // 15)  # 11 of the 15 that the poster shows
    listed = ", ".join(
        f"{shown(name)} ({ratio:+.2f}, {times})"
        for name, ratio, times in zip(counted.names, counted.ratio, counted.times, strict=True)
    )
    return Claim(
        says=f"The {m.p.leaders} most frequent leaders of confident correct reviews are mostly related to sentiment.",
        measured=f"{int(clear.sum())} of {len(clear)} have a log ratio of at least {CLEAR:g} either way: {listed}",
        criterion=f"at least {most}",
        holds=int(clear.sum()) >= most,
        kind="paper",
        value=float(clear.sum()),
        source=POSTER,
    )


def _farthest(m: Results) -> Claim:
    own = m.counted.own
    return Claim(
        says="The farthest leader of a confident correct review conveys its sentiment.",
        measured=f"its log ratio is at least {CLEAR:g} and of the sign of the label in {100 * own:.1f} % of "
        f"{m.counted.confident} reviews",
        criterion="in at least 90 %",
        holds=own >= 0.9,
        kind="paper",
        value=own,
        source=POSTER,
    )


def _apart(m: Results) -> Claim:
    farther, (leaders, words) = m.counted.farther, m.counted.away
    return Claim(
        says="Most leaders lie farther from the hyperplane than other words.",
        measured=f"median distance {leaders:.2f} against {words:.2f}; a random leader is farther than a random other "
        f"word with probability {farther:.2f}",
        criterion="probability above 0.6",
        holds=farther > 0.6,
        kind="finding",
        value=farther,
    )


def _few(m: Results) -> Claim:
    reviews = m.counted.reviews_by_leaders
    leaders, many = np.arange(len(reviews)), reviews.sum()
    mean = float(leaders @ reviews / many)
    error = float(np.sqrt((leaders - mean) ** 2 @ reviews) / many)
    return Claim(
        says="A review has few leaders: three at most in the mean.",
        measured=f"{plus_minus(mean, error, 3)} on average, of {m.counted.words_a_review:.1f} different words",
        criterion="at most 3",
        holds=mean <= 3,
        kind="finding",
        value=mean,
        error=error,
    )


def _accurate(m: Results) -> Claim:
    right, test = m.counted.accuracy, m.counted.test
    # The published accuracy is asked only of a test part as large as IMDb's.
    least = 0.8 if m.planted or test < 25000 else 0.855
    spread = float(np.sqrt(right * (1 - right) / test))
    many = "two" if m.p.d == 2 else m.p.d
    return Claim(
        says=f"A model of {many} dimensions, trained through the hardmax, classifies the test part: at least "
        f"{100 * least:g} %.",
        measured=f"test accuracy {plus_minus(right, spread, 4)} (published for d = 2, another split: 0.7914)",
        criterion=f"at least {least:g}",
        holds=right >= least,
        kind="finding",
        value=right,
        error=spread,
    )


def _planted(m: Results) -> Claim:
    # Of confident reviews: the word that is farthest from the hyperplane.
    share = m.counted.planted
    return Claim(
        says="The model finds the planted words: nearly every farthest leader is one.",
        measured=f"the farthest leader is a planted word in {100 * share:.1f} % of {m.counted.confident} confident "
        f"correct reviews; {len(m.planted.intersection(m.counted.names))} of the {m.p.leaders} most frequent "
        "leaders are planted",
        criterion="in at least 95 %",
        holds=share >= 0.95,
        kind="finding",
        value=share,
    )


def caption_of(m: Results) -> str:
    """What is seen."""
    neutral = [shown(name) for name, ratio in zip(m.counted.names, m.counted.ratio, strict=True) if abs(ratio) < CLEAR]
    return (
        f"Leaders in the test part of {m.of}, for a d = {m.p.d} model with 8 hardmax layers. (a) The "
        f"{m.p.leaders} most "
        "frequent leaders of the reviews that are classified correctly and confidently: the quarter of the test part "
        f"with the largest |logit|. Blue and vermilion: words at least e^{CLEAR:g} = {np.exp(CLEAR):.1f} times as "
        "frequent in positive or negative training reviews; grey: neither"
        + (f" ({', '.join(neutral)})" if neutral else "")
        + ". (b) Signed distance from the hyperplane, of leaders and of all other words; each histogram has area 1. "
        "Most words lie near the hyperplane, and leaders far from it on either side; those in the middle lead "
        "along it, where nothing else is. (c) Leaders in a review."
    )
