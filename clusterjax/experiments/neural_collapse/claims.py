"""What is claimed of neural collapse: what the paper says of training, and the same along depth."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ..framework.causal import ABSENT, NAME, OWN, PASSAGES, PUBLIC, SMOLLM2
from ..framework.experiment import Claim, over
from ..framework.few import Few
from ..framework.verdict import Measured, Source, Subject
from .levels import Clustering, Measures, mean_of
from .measure import Results


# Papyan, Han and Donoho, Section 4: networks, data, and training beyond zero error.
IMAGES = Source(
    "Papyan, Han and Donoho, Prevalence of neural collapse (2008.08186)",
    Subject("image-classifiers", "VGG, ResNet and DenseNet, trained beyond zero error"),
    Subject("image-sets", "seven balanced sets of images"),
)
SMALL = Subject("small-language-models", "small language models, trained here")
HALF = 0.5  # what a measure must have fallen below, of what it was
SIMPLEX = 0.2  # what both of NC2 must be below
ALIGNED = 0.5  # what NC3 must be below, of 4; without relation it is 2
UNRELATED = 1.0  # what it must exceed without training
AGREED = {"classifier": 0.05, "network": 0.1}  # what NC4 must be below
TOGETHER = -0.8  # the rank correlation below which two things go together
ROUNDING = 1e-4


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    of_training = over(f"{m.p.trainings} trainings", _training(m))
    return (*of_training, *_classifier(m), *_network(m), _dissolves(m), _with_clusters(m), _two_classes(m))


def name_of(m: Results) -> str:
    """What the language network is called in a sentence."""
    return "the language model of the package" if m.own else NAME


def network_of(m: Results) -> Measured:
    """What is measured of the language network."""
    size = {"classes": m.network.classes, "features": m.network.each, "seeds": len(m.network.random)}
    return Measured(OWN, PASSAGES, size) if m.own else Measured(SMOLLM2, PUBLIC, size)


def _training(m: Results) -> list[Claim]:
    kinds = {
        "variability": "the features of a class come to their mean (NC1)",
        "equinorm": "the means of classes come to equal distances from their mean (NC2)",
        "equiangular": "the means of classes come to the angles of a simplex (NC2)",
        "self_duality": "the rows of the classifier and the class means come together (NC3)",
        "disagreement": "the decision comes to that of the nearest class mean (NC4)",
    }
    return [_falls_in_training(m, name, words) for name, words in kinds.items()]


def _falls_in_training(m: Results, name: str, words: str) -> Claim:
    of = lambda part: getattr(part, name)
    t = m.training
    share = Few.of(of(t.seen)[:, -1] / of(t.seen)[:, 0])
    told = lambda part, place: Few.of(of(part)[:, place]).words()
    return Claim(
        says=f"Along training {words}.",
        measured=f"of {len(share.each)} small language models {told(t.seen, 0)} before training, {told(t.seen, -1)} "
        f"after {t.steps[-1]} steps, a share of {share.words()}; on other texts {told(t.unseen, -1)}; with labels in "
        f"random order {told(t.shuffled, -1)}",
        criterion=f"surely less than {HALF:g} of what it was",
        holds=share.below(HALF),
        kind="paper",
        value=share.mean,
        error=share.error,
        source=IMAGES,
        on=Measured(SMALL, m.corpus.data, {"seeds": len(share.each), "steps": int(t.steps[-1])}),
    )


def _share(measures: Measures) -> float:
    """NC1 after the last layer over that before the first."""
    return float(measures.variability[-1] / measures.variability[0])


def _falls(
    says: str,
    trained: Measures,
    mixed: Measures,
    random: tuple[Measures, ...],
    on: Measured,
    more: str = "",
    spread: str = "",
) -> Claim:
    other = _share(mean_of(random))
    return Claim(
        says=says,
        measured=f"NC1 {trained.variability[0]:.3g} before the first layer, {trained.variability[-1]:.3g} after the "
        f"last, a share of {_share(trained):.3f}{more}; of {len(random)} networks of random weights{spread} "
        f"{other:.3f}; "
        f"with labels in random order {_share(mixed):.3f}",
        criterion=f"less than {HALF:g} of what it was, and neither of random weights nor with labels in random order",
        holds=_share(trained) < HALF <= min(other, _share(mixed)),
        kind="finding",
        value=_share(trained),
        on=on,
    )


def _aligned(says: str, trained: Measures, random: tuple[Measures, ...], on: Measured, spread: str = "") -> Claim:
    last, other = float(trained.self_duality[-1]), float(mean_of(random).self_duality[-1])
    return Claim(
        says=says,
        measured=f"NC3 {last:.3f} after the last layer, of 4 at most, 2 without relation; of {len(random)} "
        f"networks of random weights{spread} {other:.3f}",
        criterion=f"less than {ALIGNED:g}, and of random weights more than {UNRELATED:g}",
        holds=last < ALIGNED and other > UNRELATED,
        kind="finding",
        value=last,
        on=on,
    )


def _agreed(says: str, trained: Measures, mixed: Measures, most: float, on: Measured) -> Claim:
    last, other = float(trained.disagreement[-1]), float(mixed.disagreement[-1])
    return Claim(
        says=says,
        measured=f"NC4: another class in {100 * last:.1f} % after the last layer, in "
        f"{100 * trained.disagreement[0]:.1f} % before the first; with means of labels in random order in "
        f"{100 * other:.1f} %",
        criterion=f"in less than {100 * most:g} %, and with labels in random order in five times as many",
        holds=last < most and other > 5 * last,
        kind="finding",
        value=last,
        on=on,
    )


def _classifier(m: Results) -> list[Claim]:
    c, on = m.classifier, m.of_classifier
    return [
        _falls("Layers of the hardmax classifier bring the reviews of a label to their mean (NC1).", c.trained,
               c.shuffled, c.random, on, f", of other reviews {_share(c.test):.3f}"),
        _aligned("The normal of its hyperplane points from one class mean to the other (NC3).", c.trained, c.random,
                 on),
        _agreed("It decides for the class of the nearest mean (NC4).", c.trained, c.shuffled, AGREED["classifier"], on),
    ]  # fmt: skip


def _network(m: Results) -> list[Claim]:
    n, name, on = m.network, name_of(m), network_of(m)
    equinorm, equiangular = float(n.next.equinorm[-1]), float(n.next.equiangular[-1])
    simplex = Claim(
        says=f"After the last layer of {name} the means of next tokens are near a simplex (NC2).",
        measured=f"spread of their lengths {equinorm:.3f}, of their cosines from -1 / (C - 1) {equiangular:.3f}; "
        f"before the first layer {n.next.equinorm[0]:.3f} and {n.next.equiangular[0]:.3f}; with labels in random order "
        f"{n.shuffled.equinorm[-1]:.3f} and {n.shuffled.equiangular[-1]:.3f}",
        criterion=f"both less than {SIMPLEX:g}, and less than before the first layer",
        holds=bool(
            max(equinorm, equiangular) < SIMPLEX
            and equinorm < n.next.equinorm[0]
            and equiangular < n.next.equiangular[0]
        ),
        kind="finding",
        value=equiangular,
        on=on,
    )
    return [
        _falls(f"Layers of {name} bring the places with one next token to their mean (NC1).", n.next, n.shuffled,
               n.random, on, spread=f" {n.spread},"),
        simplex,
        _aligned(f"The rows of the head of {name} point to the means of next tokens (NC3).", n.next, n.random, on,
                 f" {n.spread},"),
        _agreed(f"The head of {name} decides for the next token of the nearest mean (NC4).", n.next, n.shuffled,
                AGREED["network"], on),
    ]  # fmt: skip


def _dissolves(m: Results) -> Claim:
    now, then = m.network.current.variability, m.network.next.variability
    return Claim(
        says=f"Along the layers of {name_of(m)} the classes of the token that was read dissolve as those of the next "
        "one form.",
        measured=f"NC1 of the token that was read from {now[0]:.2g} to {now[-1]:.3g}, of the next one from "
        f"{then[0]:.3g} to {then[-1]:.3g}; {_crossing(now, then)}",
        criterion="the first rises and the second falls, and they change places",
        holds=bool(now[-1] > now[0] and then[-1] < then[0] and now[0] < then[0] and now[-1] > then[-1]),
        kind="finding",
        value=float(now[-1] / then[-1]),
        on=network_of(m),
    )


def _crossing(now: np.ndarray, then: np.ndarray) -> str:
    above = np.flatnonzero(now > then)
    return f"the first is above the second from layer {above[0]} on" if len(above) else "the first is never above"


def correlation(measures: Measures, clustering: Clustering) -> float:
    """The rank correlation over levels of NC1 and the mean cosine of tokens."""
    found: Any = spearmanr(measures.variability, clustering.cosine)
    return float(found[0])


def _with_clusters(m: Results) -> Claim:
    of_classifier = correlation(m.classifier.trained, m.classifier.clustering)
    of_network = correlation(m.network.next, m.network.clustering)
    return Claim(
        says="Where the tokens of a text come together, so do the features of a class: NC1 falls as their mean cosine "
        "rises, level by level.",
        measured=f"rank correlation over levels {of_classifier:.2f} of the classifier, {of_network:.2f} of "
        f"{name_of(m)}",
        criterion=f"below {TOGETHER:g} for both",
        holds=max(of_classifier, of_network) < TOGETHER,
        kind="finding",
        value=max(of_classifier, of_network),
    )


def _two_classes(m: Results) -> Claim:
    off = float(max(m.classifier.trained.equinorm.max(), m.classifier.trained.equiangular.max()))
    return Claim(
        says="Two classes have opposite centred means: NC2 holds at every layer, whatever the features are.",
        measured=f"the larger of its two measures: {off:.1e}",
        criterion=f"less than {ROUNDING:g}",
        holds=off < ROUNDING,
        kind="identity",
        value=off,
        on=m.of_classifier,
    )


def caption_of(m: Results, claims: tuple[Claim, ...], reviews: str) -> str:
    """What is seen, and what holds."""
    n, along = m.network, claims[:5]
    held = [word for word, claim in zip(("NC1", "the lengths of NC2", "the angles of NC2", "NC3", "NC4"), along,
                                        strict=True) if claim.holds]  # fmt: skip
    told = "no measure falls to a half" if not held else f"{', '.join(held)} fall to less than a half"
    return (
        f"{ABSENT + ' ' if m.own else ''}Neural collapse beside clustering. Left: the hardmax sentiment classifier, "
        f"d = {m.p.d}, layer by layer, on {m.classifier.each} of each label of {reviews}; its features are the means "
        f"of the words of a review. Middle: {name_of(m)}, the stream as its head would read it, at places whose next "
        f"token is one of {n.classes}, {n.each} of each. Right: {m.p.trainings} small language models along their "
        "training, after the last layer; standard errors over them. (a-c) The variability of a class over that "
        "between classes, NC1; dotted: what chance makes of it. (d-f) The other measures: the angles "
        "of the class means from those of a simplex (NC2, zero for any two classes), the rows of the classifier from "
        "the means (NC3, 2 without relation), and the share that it gives another class than the nearest mean does "
        "(NC4). (g-i) How far tokens of one text cluster. "
        f"Along training {told}."
    )
