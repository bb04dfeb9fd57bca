r"""What is measured of neural collapse: along the depth of two networks, and along the training of small ones.

Papyan, Han and Donoho (2008.08186): as a classifier of images is trained beyond zero error, the features of a class
come to their mean (NC1), the centred means to a simplex (NC2), the rows of the classifier to the same directions (NC3),
and its decision to that of the nearest mean (NC4). Here are networks whose tokens cluster: the hardmax classifier of
reviews, a causal language network, and small language models along their training. Of language no training reaches zero
error, since several tokens may come next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ... import probe, transformer
from ..framework.causal import ABSENT, smollm2
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.small_models import LENGTH, Corpus, corpus_of, rows_of, train_small
from ..framework.starts import keys_of, seed_of
from ..framework.verdict import Measured
from ..sentiment.model import measured, trained
from .levels import Clustering, Measures, measures_of, shuffled
from .reviews import OfReviews, measure_reviews
from .texts import OfTexts, Places, clustering_of, measure_texts, places_of, rows_of as head_rows, stream_of


SHUFFLES = 4  # orders of the labels
# Of the classifier, whose two classes differ along one line: by chance two lines are near each other, or opposite.
MANY = 16  # orders of the labels, and random classifiers
SEEN = 10_000  # texts that small models are trained on, at most
SNAPSHOTS = 5
TIMES = 400  # the small models read so many tokens for each place of a class


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    d: int = parameter(2, "the dimension of the words of the classifier", least=2, most=64)
    reviews: int = parameter(2000, "the reviews of each label that are measured, at most", least=20, quick=300)
    classes: int = parameter(20, "the number of tokens that are classes, the most frequent ones", least=2, quick=6)
    each: int = parameter(32, "the number of places of each class", least=4, most=10_000, quick=16)
    tokens: int = parameter(112, "the tokens of a text that are read", least=16, most=1024, quick=32)
    draws: int = parameter(2, "the number of networks of random weights", least=2, most=32)
    trainings: int = parameter(3, "the number of small models", least=2, most=32, quick=2)
    steps: int = parameter(1200, "the steps of the training of each", least=16, most=100_000, quick=64)


class Training(NamedTuple):
    """Small models along their training, after the last norm: (trainings, snapshots) each.

    **Attributes:**

    - `steps`: The step of each snapshot, (snapshots,), the first 0.
    - `seen`: Of texts that they were trained on.
    - `unseen`: Of others.
    - `shuffled`: Of texts that they were trained on, labels in random order.
    - `clustering`: Of the tokens of these texts.
    """

    steps: np.ndarray
    seen: Measures
    unseen: Measures
    shuffled: Measures
    clustering: Clustering


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `own`: Whether the language network is that of the package, SmolLM2 being absent.
    - `of_classifier`: What the classifier is, and what it read.
    - `corpus`: What the small models read.
    - `classifier`, `network`, `training`: What was measured of each.
    """

    p: Parameters
    own: bool
    of_classifier: Measured
    corpus: Corpus
    classifier: OfReviews
    network: OfTexts
    training: Training


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Measure the two networks along depth, and small models along training."""
    rng, keys = np.random.default_rng([settings.seed, 2008]), keys_of(settings.seed, p.draws)
    fit = trained(settings, p.d, say)
    say("measuring the classifier, layer by layer")
    classifier = measure_reviews(fit, settings, p.reviews, keys_of(settings.seed, MANY), rng, MANY)
    model = smollm2()
    own = model is None
    if model is None:
        say(ABSENT)
        model = probe.load("language-model")
    say("measuring the language network, level by level")
    texts = probe.bundled_texts() if settings.texts is None else probe.read_texts([settings.texts])
    network = measure_texts(model, beginnings(model, texts, p.tokens), p.classes, p.each, keys, rng, SHUFFLES)
    corpus, training = train_models(p, settings, rng, say)
    return Results(p, own, measured(settings, (p.d,)), corpus, classifier, network, training)


def beginnings(model: probe.Model, texts: list[str], most: int) -> probe.Encoded:
    """The first tokens of each text, as many as the positions of the network admit, without special ones, padded on
    the right."""
    most = min(most, model.max_positions or most)
    rows = [row[:most] for row in model.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]]
    mask = np.arange(max(map(len, rows)))[None] < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    # Of two tokens there is no pair behind the first.
    long = mask.sum(axis=1) > 3
    return probe.Encoded(ids[long], mask[long])


def train_models(
    p: Parameters, settings: Settings, rng: np.random.Generator, say: Callable[[str], None]
) -> tuple[Corpus, Training]:
    """Train small models and measure each along its training."""
    # So many texts that each class has its places.
    many = -(-TIMES * p.each // LENGTH)
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), many)
    parts = [probe.Encoded(*rows_of(texts, LENGTH)) for texts in (corpus.seen[:many], corpus.scored.texts)]
    recipe = transformer.LanguageRecipe(
        d=64, heads=4, hidden=256, layers=3, length=LENGTH, steps=p.steps, epoch_steps=max(1, p.steps // 16),
        warm_up=p.steps // 10,
    )  # fmt: skip
    # The same classes in both parts, the same places at all snapshots.
    places = places_of(parts[0], p.classes, p.each, rng, ahead=True, beside=parts[1])
    rows, steps = [], np.zeros(0, int)
    for place, key in enumerate(keys_of(settings.seed, p.trainings)):
        say(f"training a small language model, {place + 1} of {p.trainings}")
        snapshots = train_small(corpus.seen, recipe, seed=seed_of(key), snapshots=SNAPSHOTS)
        steps = np.array([one.step for one in snapshots])
        rows.append([_snapshot(one.model, parts, places, settings.seed) for one in snapshots])
    seen, unseen, mixed, clustering = ([[one[k] for one in snapshots] for snapshots in rows] for k in range(4))
    of = lambda each: Measures(*np.moveaxis(np.array(each), 2, 0))
    return corpus, Training(
        steps, of(seen), of(unseen), of(mixed), Clustering(*np.moveaxis(np.array(clustering), 2, 0))
    )


def _snapshot(model: Any, parts: list[probe.Encoded], places: tuple[Places, ...], seed: int) -> tuple[np.ndarray, ...]:
    """The measures after the last layer: of texts seen, unseen, with labels in random order, and of clusters."""
    network, found = probe.from_language_model(model), []
    for part, place in zip(parts, places, strict=True):
        (features,) = stream_of(network, part, [place])
        found.append((features[-1:], place.labels, head_rows(network, place)))
    (features, labels, rows), (others, of_others, other_rows) = found
    mixed = shuffled(features, labels, rows, None, np.random.default_rng(seed), SHUFFLES)
    measures = measures_of(features, labels, rows), measures_of(others, of_others, other_rows), mixed
    # The last level of the clustering is that of the features.
    return (*(np.array(one)[:, 0] for one in measures), np.array(clustering_of(network, parts[0]))[:, -1])
