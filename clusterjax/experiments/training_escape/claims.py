"""What is claimed of training: densities that leave the clustered state in the end, and tokens that no longer collapse.

Criteria were set before the first run of all tasks: the paper's abstract says that densities follow the clustering of
attention at first and can leave it near the last layers.
"""

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.experiment import Claim, over, percent
from ..framework.verdict import Source, Subject
from .feedforward import END, TS
from .measure import RESOLVED, Results, late_share, least_inside


DENSITIES = Subject("densities", "densities on the circle, by coefficients")
# Its abstract does not say what is learnt.
THEIR_TASK = Subject("task-2605.07772", "the task of the paper")
ESCAPE = Source("2605.07772, abstract: leaving the clustered regime near the final layers", DENSITIES, THEIR_TASK)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    claims = _falls(m), _escape(m), _late(m), _task(m), _order(m), _effort(m), _collapse(m), _read(m)
    return over(f"{m.starts} tasks", claims)


def escapes(m: Results, flow: str = "trained") -> np.ndarray:
    """Which tasks have a density that is gathered more inside than at both ends, (tasks,)."""
    fall = m.energies["untrained"][:, 0] - m.energies["untrained"][:, -1]
    return least_inside(m.energies[flow], fall)


def _falls(m: Results) -> Claim:
    largest = float(np.diff(m.energies["untrained"], axis=1).max())
    return Claim(
        says="Without the feed-forward layer the free energy falls all the time.",
        measured=f"largest rise from one time to the next: {largest:.1e}",
        criterion="none above 1e-6",
        holds=largest < 1e-6,
        kind="identity",
        value=largest,
    )


def _escape(m: Results) -> Claim:
    share = clustered_error(escapes(m))
    return Claim(
        says="After training densities follow the clustering of attention at first, and leave it before the end.",
        measured=f"the free energy is lower within than at both ends in {percent(share.mean, share.error, 0)} of the "
        "tasks",
        criterion="lower by a tenth of its fall without training, in more than half of the tasks, by two errors",
        holds=share.above(0.5),
        kind="paper",
        value=float(share.mean),
        error=float(share.error),
        source=ESCAPE,
    )


def _late(m: Results) -> Claim:
    at = TS[m.energies["trained"].argmin(axis=1)][escapes(m)]
    middle = float(np.median(at)) if len(at) else float("nan")
    return Claim(
        says="They leave it near the last layers.",
        measured=f"the free energy is least at t = {middle:.1f} of {END:g}, the median of {len(at)} tasks that do",
        criterion="in the second half",
        holds=middle > END / 2,
        kind="paper",
        value=middle,
        source=ESCAPE,
    )


def _task(m: Results) -> Claim:
    solved = clustered_error(m.misses["trained"] < 0.1 * m.misses["untrained"])
    return Claim(
        says="A feed-forward layer that is linear in its parameters learns 95 % of the tasks or more.",
        measured=f"by {m.p.steps} steps of Adam the loss of the task falls below a tenth of that without it in "
        f"{percent(solved.mean, solved.error, 0)} of the tasks; median "
        f"{np.median(m.misses['trained']):.2g}, without it {np.median(m.misses['untrained']):.2g}; "
        f"{100 * np.mean(m.tails < RESOLVED):.0f} % of the densities are resolved all along",
        criterion="at least 95 %",
        holds=bool(solved.mean >= 0.95),
        kind="finding",
        value=float(solved.mean),
        error=float(solved.error),
    )


def _order(m: Results) -> Claim:
    shares = {flow: float(escapes(m, flow).mean()) for flow in ("trained", "layers reversed")}
    less = clustered_error(escapes(m).astype(float) - escapes(m, "layers reversed"))
    return Claim(
        says="With its layers in reverse order the trained feed-forward does so for fewer tasks.",
        measured=f"{100 * shares['trained']:.0f} % of the tasks, and {100 * shares['layers reversed']:.0f} % with the "
        f"layers reversed: {percent(less.mean, less.error, 0)} more",
        criterion="more, by two errors",
        holds=less.above(),
        kind="finding",
        value=float(less.mean),
        error=float(less.error),
    )


def _effort(m: Results) -> Claim:
    share = clustered_error(late_share(m.efforts))
    return Claim(
        says="The trained feed-forward acts more in the last quarter of the layers than in the others.",
        measured=f"{percent(share.mean, share.error, 0)} of the squares of the parameters are in the last quarter of "
        "the layers",
        criterion="more than a quarter, by two errors",
        holds=share.above(0.25),
        kind="finding",
        value=float(share.mean),
        error=float(share.error),
    )


def _collapse(m: Results) -> Claim:
    before, after = m.told.cosine[0], m.told.cosine[-1]
    share = clustered_error(before - after >= 0.3)
    return Claim(
        says="Training V and B, the same in all layers, drives tokens apart that attention gathers.",
        measured=f"the mean cosine of two tokens in the end falls from {before.mean():.2f} to {after.mean():.2f} by "
        f"{m.p.shared_steps} steps, by 0.3 and more in {percent(share.mean, share.error, 0)} of the tasks; clusters "
        f"{m.told.clusters[0].mean():.2f} and {m.told.clusters[-1].mean():.2f}",
        criterion="in at least 90 % of the tasks",
        holds=bool(share.mean >= 0.9),
        kind="finding",
        value=float(share.mean),
        error=float(share.error),
    )


def _read(m: Results) -> Claim:
    accuracy = clustered_error(m.told.accuracy[-1])
    return Claim(
        says="From where a token ends its label can then be read, of nine tokens in ten.",
        measured=f"{percent(accuracy.mean, accuracy.error)} of the tokens of new prompts end on their side, before "
        f"training {100 * m.told.accuracy[0].mean():.1f} %",
        criterion="at least 90 %",
        holds=bool(accuracy.mean >= 0.9),
        kind="finding",
        value=float(accuracy.mean),
        error=float(accuracy.error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, escape, late, task, *_, collapse, read = claims
    found = [
        "Trained densities gather first and leave"
        if escape.holds
        else "Most trained densities do not first gather and then leave",
        ", late. " if escape.holds and late.holds else ". ",
        "" if task.holds else "Not all tasks are learnt. ",
        "V and B learn to drive tokens apart" if collapse.holds else "Not all V and B learn to drive tokens apart",
        ", and labels are read." if read.holds else "; labels are not read to 90 %.",
    ]
    return (
        "Above: noisy unnormalised attention on the circle, and a feed-forward layer that is trained to bring "
        f"densities to moments of two bumps; one of {m.starts} tasks, without and with it. Below: (a) free energy "
        "along the layers, median and middle 80 % of the tasks: attention lowers it; (b) the squares of the "
        "parameters by layer; (c) tokens under one V and B for all layers, along training: the mean cosine in the "
        "end, and the share of tokens whose label can be read. " + "".join(found)
    )
