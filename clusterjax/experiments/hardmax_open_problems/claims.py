"""What is claimed of the open problems: what survives for any A, what does not, and the conjecture on rank one."""

import numpy as np

from ..framework.experiment import Claim, over, percent
from ..framework.few import Few
from ..framework.verdict import ANY, Source, Subject
from .kinds import KINDS
from .learnt import FORMS, Learnt, least_of
from .measure import CLAUSES, DIMENSIONS, Results


LAYERS_ALONE = Subject("hardmax-layers", "hardmax attention alone, not trained")
CLOUDS = Subject("whole-clouds", "normal tokens, rounded to whole numbers")
THEOREM = Source("Alcalde, Fantuzzi and Zuazua, 2407.01602, of any tokens", LAYERS_ALONE, ANY)
MOST_TOKENS, MOST_REACH = 4, 3  # of a small counterexample
NEAR = (0.05, 0.15)  # what rounds to one in ten
# Of classifiers whose A is trained: accuracy, the skew part of A, the share of reviews with a clause, leaders.
SAME, SKEW, SURVIVES, FEW = 0.01, 0.1, 0.99, 1.0


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    clouds, trainings = f"{m.p.clouds} clouds", f"{m.p.trainings} trainings"
    return (
        _definite(m), _any_form(m), _rank_one(m), *over(clouds, [_two_leaders(m), _small(m), _generic(m)]),
        *over(trainings, [_as_accurate(m.learnt)]),
        _stays_definite(m.learnt), _becomes_definite(m.learnt), _clauses_survive(m.learnt),
        *over(trainings, [_as_few_leaders(m.learnt)]),
        _stationary(m.learnt),
    )  # fmt: skip


def _definite(m: Results) -> Claim:
    kinds = ("identity", "positive definite")
    held = min(m.count(kind, clause, "held") for kind in kinds for clause in CLAUSES)
    return Claim(
        says="For a symmetric positive definite A all five clauses of the theorem hold.",
        measured=f"each is proved, in exact arithmetic, on {held} of {m.p.clouds} clouds at least; "
        f"{int(m.verdicts[:2, :, 1].sum())} fail",
        criterion="none fails, and 99 % or more are proved to hold",
        holds=bool(m.verdicts[:2, :, 1].sum() == 0 and held >= 0.99 * m.p.clouds),
        kind="paper",
        value=held / m.p.clouds,
        source=THEOREM,
    )


def _any_form(m: Results) -> Claim:
    fails = int(m.verdicts[:, 4, 1].sum())
    return Claim(
        says="Whatever A is, limits are stationary: <A s, .> is largest over K at s.",
        measured=f"on {int(m.verdicts[:, 4, 0].sum())} clouds of {len(KINDS)} kinds of A the limits are known, and "
        f"it fails on {fails}",
        criterion="on none, as is proved",
        holds=fails == 0,
        kind="identity",
        value=float(fails),
    )


def _rank_one(m: Results) -> Claim:
    return Claim(
        says="With A = u u^T the token of the largest <u, z> leads if that is above zero and attained once, that of "
        "the smallest if it is below zero and attained once, and no other ever; with -u u^T one leads at most.",
        measured=f"{m.wrong} exceptions among {2 * m.p.clouds} normal clouds and {m.lattice} coarse ones full of ties",
        criterion="no exception, as is proved",
        holds=m.wrong == 0,
        kind="identity",
        value=float(m.wrong),
    )


def _two_leaders(m: Results) -> Claim:
    counts = m.leaders[KINDS.index("rank one, u u^T")]
    share, expected = float(np.mean(counts == 2)), 1 - 2.0 ** (1 - m.p.n)
    error = float(np.sqrt(expected * (1 - expected) / len(counts)))
    return Claim(
        says="With A = u u^T there are two leaders if and only if tokens lie on both sides of the origin, ties aside: "
        "not always.",
        measured=f"in {percent(share, error, 2)} of clouds; {100 * expected:.2f} % of normal clouds "
        f"of {m.p.n} tokens have some on both sides",
        criterion="within 4 standard errors of it",
        holds=abs(share - expected) < 4 * error,
        kind="finding",
        value=share,
        error=error,
    )


def _small(m: Results) -> Claim:
    pairs = {(one.kind, one.clause) for one in m.small}
    failing = {(kind, c) for k, kind in enumerate(KINDS) for c in range(5) if m.verdicts[k, c, 1]}
    largest = max((len(one.tokens) for one in m.small), default=0)
    reach = max((one.reach for one in m.small), default=0)
    return Claim(
        says="What fails for some A fails for a few tokens with small whole coordinates.",
        measured=f"{len(m.small)} counterexamples in the plane, of {largest} tokens and numbers up to {reach} at most; "
        f"of {len(failing)} pairs of a kind of A and a clause that fail on the normal clouds {len(failing & pairs)} "
        "have one",
        criterion=f"{MOST_TOKENS} tokens and numbers up to {MOST_REACH} at most, and 3 counterexamples or more",
        holds=3 <= len(m.small) and largest <= MOST_TOKENS and reach <= MOST_REACH,
        kind="finding",
        value=float(largest),
    )


def _generic(m: Results) -> Claim:
    share = m.count("generic", "leaders", "failed") / m.p.clouds
    error = float(np.sqrt(max(share * (1 - share), 1e-12) / m.p.clouds))
    by_d = ", ".join(
        f"{100 * failed:.1f} in dimension {d}" for d, (failed, _) in zip(DIMENSIONS, m.without, strict=True)
    )
    return Claim(
        says="For an A of normal entries about one cloud in ten has no leader.",
        measured=f"{percent(share, error, 2)} of {m.p.clouds} clouds of {m.p.n} tokens in dimension "
        f"{m.p.d} are proved to have none; {by_d}",
        criterion=f"from {100 * NEAR[0]:g} to {100 * NEAR[1]:g} %",
        holds=NEAR[0] < share < NEAR[1],
        kind="finding",
        value=share,
        error=error,
    )


def _as_accurate(m: Learnt) -> Claim:
    fixed, learnt, random = (Few.of(each) for each in m.accuracy)
    more = Few.of(m.accuracy[1] - m.accuracy[0])
    return Claim(
        says="A sentiment classifier whose A is trained from the identity is as accurate as the one with A = I.",
        measured=f"test accuracy {learnt.words()} and {fixed.words()}, difference {more.words()} over {len(more.each)} "
        f"trainings; trained from a random A {random.words()}",
        criterion=f"a mean difference of less than {SAME:g}",
        holds=abs(more.mean) < SAME,
        kind="finding",
        value=more.mean,
        error=more.error,
        on=m.on,
    )


def _each(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _stays_definite(m: Learnt) -> Claim:
    skew, least = m.skewness[1], m.least[1]
    return Claim(
        says="Trained from the identity, A stays positive definite and nearly symmetric.",
        measured=f"its skew part over the symmetric one: {_each(skew)}; the least eigenvalue of the symmetric part "
        f"over the largest: {_each(least)}",
        criterion=f"a skew part of less than {SKEW:g} and a positive least eigenvalue in each training",
        holds=bool(skew.max() < SKEW and least.min() > 0),
        kind="finding",
        value=float(skew.max()),
        on=m.on,
    )


def _becomes_definite(m: Learnt) -> Claim:
    before, after = least_of(m.before[2]), m.least[2]
    return Claim(
        says="Trained from a random matrix, A becomes positive definite.",
        measured=f"the least eigenvalue of its symmetric part over the largest: {_each(before)} before training, "
        f"{_each(after)} after; the skew part over the symmetric one {_each(m.skewness[2])}",
        criterion="a positive least eigenvalue after each training",
        holds=bool(after.min() > 0),
        kind="finding",
        value=float(after.min()),
        on=m.on,
    )


def _shares(verdicts: np.ndarray) -> np.ndarray:
    """The share of reviews on which each clause is proved to hold."""
    return verdicts[:, 0] / verdicts.sum(axis=1)


def _clauses_survive(m: Learnt) -> Claim:
    told = "; ".join(
        f"{kind}: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in zip(CLAUSES, _shares(v), strict=True))
        for kind, v in zip(FORMS, m.verdicts, strict=True)
    )
    least = float(_shares(m.verdicts[1]).min())
    return Claim(
        says="On its reviews the A that is trained from the identity keeps all clauses of the theorem.",
        measured=f"proved to hold, of {m.verdicts[1, 0].sum()} reviews of each kind: {told}",
        criterion=f"each clause on {100 * SURVIVES:g} % or more",
        holds=least >= SURVIVES,
        kind="finding",
        value=least,
        on=m.on,
    )


def _as_few_leaders(m: Learnt) -> Claim:
    fixed, learnt, random = (Few.of(each) for each in m.leaders)
    more = Few.of(m.leaders[1] - m.leaders[0])
    return Claim(
        says="With the A that is trained from the identity as few words lead as with A = I.",
        measured=f"leaders per review {learnt.words(2)} and {fixed.words(2)}; trained from a random A "
        f"{random.words(2)}",
        criterion=f"a mean difference of less than {FEW:g}",
        holds=abs(more.mean) < FEW,
        kind="finding",
        value=more.mean,
        error=more.error,
        on=m.on,
    )


def _stationary(m: Learnt) -> Claim:
    fails, known = int(m.verdicts[:, 4, 1].sum()), int(m.verdicts[:, 4, :2].sum())
    return Claim(
        says="Whatever A the training finds, limits of its reviews are stationary.",
        measured=f"the limits of {known} reviews are known, and it fails on {fails}",
        criterion="on none, as is proved",
        holds=fails == 0,
        kind="identity",
        value=float(fails),
        on=m.on,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    generic = claims[5]
    return (
        f"Hardmax layers with alpha = 1 and an A that need not be positive definite: {m.p.clouds} clouds of {m.p.n} "
        f"tokens in dimension {m.p.d} for each kind of A, in exact arithmetic. (a) The share of clouds, in per cent, "
        "on which each clause of the theorem is proved to hold. A leader stays at a vertex of its own whatever A is, "
        "and limits are stationary; what fails is that there are leaders and that each vertex has one. (b) How many "
        "leaders there are. (c) The smallest counterexamples that were found: tokens, their way to limits (squares) "
        f"and leaders (stars). For a generic A {100 * (generic.value or 0):.1f} % of the clouds have no leader"
        + (". " if generic.holds else ": not about one in ten. ")
        + f"(d-f) Sentiment classifiers, d = 2, on {m.learnt.words}, trained through a softmax of rising beta and "
        "tested with the hardmax, A fixed at the identity, trained from it, or trained from a random matrix: accuracy, "
        "leaders, and the least eigenvalue of the symmetric part of A over the largest in size; one point for each "
        "training."
    )
