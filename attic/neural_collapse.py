r"""What is measured of neural collapse: along the depth of two networks, and along the training of small ones.

Papyan, Han and Donoho (2008.08186): as a classifier of images is trained beyond zero error, the features of a class
come to their mean (NC1), the centred means to a simplex (NC2), the rows of the classifier to the same directions (NC3),
and its decision to that of the nearest mean (NC4). Here are networks whose tokens cluster: the hardmax classifier of
reviews, a causal language network, and small language models along their training. Of language no training reaches zero
error, since several tokens may come next.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import spearmanr

from ... import probe, transformer
from ..._base.numerics import normalise
from ..._base.random import draw_normal
from ..._dynamics.iterate import iterate
from ..._observables import effective_rank, neural_collapse, num_clusters
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import Measure
from ...sentiment import Encoded, HardmaxClassifier, encode_reviews
from ..framework.experiment import Claim, Outcome, Settings, over, parameter
from ..framework.figure import declared
from ..framework.verdict import Measured, Source, Subject
from ..shared.causal import ABSENT, NAME, OWN, PASSAGES, PUBLIC, SMOLLM2, smollm2, spread_words, untrained
from ..shared.controls import Few, keys_of, seed_of
from ..shared.layout import WIDTH
from ..shared.sentiment import Source as ReviewSource, Trained, measured, reviews, trained
from ..shared.small_models import LENGTH, Corpus, corpus_of, rows_of, train_small


# The measures of neural collapse, and those of clusters, at each level of a network.
#
# Features of classes are measured by `neural_collapse`, as many of each class, so that its definition is that of the
# paper. Rows of the classifier are taken less their mean: this leaves the softmax over these classes, and the class
# that is chosen, as they are, and it is what the limit has, whose rows sum to zero.
#
# Means of m features each differ by chance alone: with labels in random order NC1 is not infinite but of the order of
# m, times the smaller one of C / d and d / C for C classes in d directions. So labels in random order are shown beside
# each measure, and a fall of NC1 counts only if theirs does not fall.
#
# Source: Papyan, Han and Donoho (2008.08186), NC1 to NC4.


class Measures(NamedTuple):
    """The measures of neural collapse, (levels,) each; the more axes before it the more were measured.

    **Attributes:**

    - `variability`: NC1.
    - `equinorm`, `equiangular`: NC2 of the means.
    - `self_duality`: NC3.
    - `disagreement`: NC4.
    """

    variability: np.ndarray
    equinorm: np.ndarray
    equiangular: np.ndarray
    self_duality: np.ndarray
    disagreement: np.ndarray


class Clustering(NamedTuple):
    """How far the tokens of a text cluster, mean over texts, (levels,) each.

    **Attributes:**

    - `cosine`: The mean cosine of two tokens.
    - `rank`: The effective rank over the largest that it can be.
    - `clusters`: The number of clusters over that of tokens.
    """

    cosine: np.ndarray
    rank: np.ndarray
    clusters: np.ndarray


def measures_of(
    features: Float[np.ndarray, "levels m d"],
    labels: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, "classes d"],
    bias: Float[np.ndarray, " classes"] | None = None,
) -> Measures:
    """The measures at each level."""
    rows = jnp.asarray(weights - weights.mean(axis=0))
    offset = None if bias is None else jnp.asarray(bias)
    found = [neural_collapse(jnp.asarray(level), labels, rows, offset) for level in features]
    columns = [
        (one.variability, one.equinorm_means, one.equiangular_means, one.self_duality, one.disagreement)
        for one in found
    ]
    return Measures(*np.asarray(columns, float).T)


def shuffled(
    features: Float[np.ndarray, "levels m d"],
    labels: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, "classes d"],
    bias: Float[np.ndarray, " classes"] | None,
    rng: np.random.Generator,
    draws: int,
) -> Measures:
    """The mean of the measures over labels in random orders."""
    return mean_of([measures_of(features, rng.permutation(labels), weights, bias) for _ in range(draws)])


def mean_of(several: Sequence[Measures]) -> Measures:
    """Over all of them: of NC1 the geometric mean, which for two classes by chance has no mean."""
    mean = Measures(*np.mean(several, axis=0))
    return mean._replace(variability=np.exp(np.mean([np.log(one.variability) for one in several], axis=0)))


def clusters_of(
    tokens: Float[Array, "levels n d"], counts: Float[Array, " n"], radius: Float[Array, ""], *, unit: bool
) -> Float[Array, "levels 3"]:
    """The three of `Clustering` at each level of one text; a token of count 0 is not there.

    **Arguments:**

    - `tokens`, `counts`: The stream, and how often each token is there.
    - `radius`: That of clusters.
    - `unit`: Whether clusters are those of directions, on the sphere.
    """
    present = counts > 0
    many = jnp.sum(present).astype(tokens.dtype)

    def of_level(x: Array) -> Array:
        directions = normalise(x)
        cosines = directions @ directions.T
        pairs = present[:, None] & present[None] & ~jnp.eye(len(x), dtype=bool)
        mean = jnp.sum(jnp.where(pairs, cosines, 0)) / jnp.maximum(many * (many - 1), 1)
        # Absent tokens are rows of zeros, which add no singular value.
        rank = effective_rank(jnp.where(present[:, None], x, 0)) / jnp.minimum(many, x.shape[1])
        # They stand where the first one stands, which is always there.
        places = directions if unit else x
        found = num_clusters(jnp.where(present[:, None], places, places[:1]), radius)
        return jnp.stack([mean, rank, found.astype(tokens.dtype) / many])

    return jax.lax.map(of_level, tokens)


def frequent(labels: Int[np.ndarray, " places"], classes: int, each: int) -> Int[np.ndarray, " classes"]:
    """The most frequent labels; fewer of them where fewer are there `each` times."""
    values, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:classes]
    return values[order][counts[order] >= each]


def balanced(
    labels: Int[np.ndarray, " places"], values: Int[np.ndarray, " classes"], each: int, rng: np.random.Generator
) -> Int[np.ndarray, " m"]:
    """Places of these labels, as many of each, drawn at random, class by class."""
    return np.concatenate([rng.choice(np.flatnonzero(labels == value), each, replace=False) for value in values])


# The hardmax sentiment classifier: what it reads of a review at each layer, with two classes and its hyperplane.
#
# A review is the mean of its words at that layer, which after the last one is what the classifier divides. The two rows
# are w / 2 and -w / 2. Two classes have one centred mean and its opposite, so that NC2 holds whatever they are.


REACH = 0.1  # of clusters: of the length of the longest word before the first layer
BATCH = 64


class OfReviews(NamedTuple):
    """The classifier on the reviews that it was trained on.

    **Attributes:**

    - `trained`: The measures by layer.
    - `test`: Of reviews that it was not trained on.
    - `shuffled`: With labels in random order.
    - `random`: Of classifiers with random embeddings and hyperplanes.
    - `clustering`: Of the words of a review.
    - `each`: How many reviews of each label.
    """

    trained: Measures
    test: Measures
    shuffled: Measures
    random: tuple[Measures, ...]
    clustering: Clustering
    each: int


def measure_reviews(
    fit: Trained, settings: Settings, most: int, keys: list[PRNGKeyArray], rng: np.random.Generator, draws: int
) -> OfReviews:
    """Measure the classifier and its controls on at most `most` reviews of each label."""
    recipe, vocabulary = fit.fitted.recipe, fit.fitted.vocabulary
    seen = encode_reviews(reviews(ReviewSource.of(settings)).split.train, vocabulary, length=recipe.length)
    parts = [_some(part, most, rng) for part in (seen, fit.test)]
    model = fit.fitted.model
    (features, clustering), (of_test, _) = (run(model, part) for part in parts)
    labels = parts[0].labels.astype(int)
    rows = review_rows_of(model)
    random = [redrawn(model, key) for key in keys]
    return OfReviews(
        measures_of(features, labels, *rows),
        measures_of(of_test, parts[1].labels.astype(int), *rows),
        shuffled(features, labels, *rows, rng, draws),
        tuple(measures_of(run(one, parts[0])[0], labels, *review_rows_of(one)) for one in random),
        clustering,
        len(labels) // 2,
    )


def _some(part: Encoded, most: int, rng: np.random.Generator) -> Encoded:
    """As many reviews of each label that have words."""
    rows = np.flatnonzero(part.lengths > 0)
    each = min(most, *np.bincount(part.labels[rows], minlength=2))
    return part.take(rows[balanced(part.labels[rows].astype(int), np.arange(2), int(each), rng)])


def review_rows_of(model: HardmaxClassifier) -> tuple[np.ndarray, np.ndarray]:
    """The classifier of two classes whose logits differ by that of the model: rows, (2, d), and bias."""
    w, v = np.asarray(model.w[0]), np.asarray(model.v)
    return np.stack([-w / 2, w / 2]), np.stack([-v / 2, v / 2])


def redrawn(model: HardmaxClassifier, key: PRNGKeyArray) -> HardmaxClassifier:
    """The same layers with normal words, as long as those of the model, and a random hyperplane through the origin."""
    words, normal = jr.split(key)
    scale = jnp.sqrt(jnp.mean(model.embedding**2))
    embedding = scale * draw_normal(words, model.embedding.shape, model.embedding.dtype)
    w = draw_normal(normal, model.w.shape, model.w.dtype)
    return eqx.tree_at(lambda one: (one.embedding, one.w, one.v), model, (embedding, w, jnp.zeros_like(model.v)))


def run(model: HardmaxClassifier, part: Encoded) -> tuple[np.ndarray, Clustering]:
    """The mean of the words of each review at each layer, (layers + 1, reviews, d), and how far they cluster."""
    means, clustering = _run(model, jnp.asarray(part.ids), jnp.asarray(part.counts, model.embedding.dtype))
    return np.moveaxis(np.asarray(means), 1, 0), Clustering(*np.asarray(clustering).mean(axis=0).T)


@eqx.filter_jit
def _run(model: HardmaxClassifier, ids: Array, counts: Array) -> tuple[Array, Array]:
    def of_review(review: tuple[Array, Array]) -> tuple[Array, Array]:
        ids, counts = review
        words = iterate(model.layer(0, counts), model.embedding[ids, 0], model.depth).xs
        longest = jnp.max(jnp.where(counts > 0, jnp.linalg.norm(words[0], axis=1), 0))
        means = jnp.einsum("n,knd->kd", counts / jnp.sum(counts), words)
        return means, clusters_of(words, counts, REACH * longest, unit=False)

    return jax.lax.map(of_review, (ids, counts), batch_size=BATCH)


# The stream of a causal language network: its classes are the next token, or the token that was read.
#
# At each level the stream is what the head would read there, that is, after the last norm (the logit lens), and the
# rows of the classifier are those of the head for these tokens. The first token of a text is left out: it has read
# nothing but itself, and where it is a sink its stream points elsewhere than all others.


NEAR = 0.2**0.5  # the chordal distance of directions whose cosine is 0.9: the radius of clusters
TEXT_BATCH, FEW = 8, 16


class Places(NamedTuple):
    """Some places of texts, as many of each class.

    **Attributes:**

    - `rows`, `columns`: Which text, and which of its tokens.
    - `labels`: The class of each, from 0.
    - `tokens`: The id of each class.
    """

    rows: np.ndarray
    columns: np.ndarray
    labels: np.ndarray
    tokens: np.ndarray


class OfTexts(NamedTuple):
    """A language network on some texts.

    **Attributes:**

    - `next`, `current`: The measures by level with the next token as the class, and the one that was read.
    - `shuffled`: Of the next token, labels in random order.
    - `random`: Of the next token, by networks of random weights.
    - `spread`: How these were drawn, in words.
    - `clustering`: Of the tokens of a text.
    - `classes`, `each`: How many next tokens are classes, and how many places each has.
    """

    next: Measures
    current: Measures
    shuffled: Measures
    random: tuple[Measures, ...]
    spread: str
    clustering: Clustering
    classes: int
    each: int


def measure_texts(
    model: probe.Model, texts: probe.Encoded, classes: int, each: int, keys: list[PRNGKeyArray],
    rng: np.random.Generator, draws: int,
) -> OfTexts:  # fmt: skip
    """Measure the network and its controls.

    **Raises:**

    - `ValueError` if fewer than two tokens are there `each` times.
    """
    (after,), (before,) = (places_of(texts, classes, each, rng, ahead=ahead) for ahead in (True, False))
    of_next, of_current = stream_of(model, texts, [after, before])
    rows = text_rows_of(model, after)
    random = []
    for key in keys:
        other = untrained(model, key)
        (found,) = stream_of(other, texts, [after])
        random.append(measures_of(found, after.labels, text_rows_of(other, after)))
    return OfTexts(
        measures_of(of_next, after.labels, rows),
        measures_of(of_current, before.labels, text_rows_of(model, before)),
        shuffled(of_next, after.labels, rows, None, rng, draws),
        tuple(random),
        spread_words(model),
        clustering_of(model, texts),
        len(after.tokens),
        each,
    )


def places_of(
    texts: probe.Encoded, classes: int, each: int, rng: np.random.Generator, *, ahead: bool,
    beside: probe.Encoded | None = None,
) -> tuple[Places, ...]:  # fmt: skip
    """Places whose next token, or whose own one, is one of the most frequent; and those of other texts with the same
    classes, which are then tokens that these texts have as often.

    **Raises:**

    - `ValueError` if fewer than two tokens are there `each` times.
    """
    several = [_labelled(one, ahead) for one in ([texts] if beside is None else [texts, beside])]
    tokens = frequent(several[0][2], classes, each)
    for _, _, labels in several[1:]:
        tokens = tokens[[np.sum(labels == token) >= each for token in tokens]]
    if len(tokens) < 2:
        raise ValueError(
            f"each must be so small that two tokens are there so often, but of {each} times there "
            f"{'is one' if len(tokens) else 'is none'}; set a smaller one, or pass more texts."
        )
    numbers = np.repeat(np.arange(len(tokens)), each)
    chosen = [balanced(labels, tokens, each, rng) for _, _, labels in several]
    return tuple(
        Places(rows[some], columns[some], numbers, tokens)
        for (rows, columns, _), some in zip(several, chosen, strict=True)
    )


def _labelled(texts: probe.Encoded, ahead: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and labels of all places that have a next token, the first of each text left out."""
    ids, mask = np.asarray(texts.token_ids), np.asarray(texts.mask)
    # Neither the first token, nor the last one, after which nothing comes.
    rows, columns = np.nonzero(mask[:, 1:-1] & mask[:, 2:])
    columns = columns + 1
    return rows, columns, ids[rows, columns + ahead]


def text_rows_of(model: probe.Model, places: Places) -> np.ndarray:
    """The rows of the head for the classes of some places."""
    return np.asarray(model.network.unembedding())[places.tokens]


def stream_of(model: probe.Model, texts: probe.Encoded, several: list[Places]) -> list[np.ndarray]:
    """What the head would read at some places, (levels, places, d) for each of `several`."""
    found: list[list[np.ndarray]] = [[] for _ in several]
    for begin, hidden, _ in _batches(model, texts):
        # The last level is after the last norm already.
        read = np.concatenate([np.stack([model.network.finish(level) for level in hidden[:-1]]), hidden[-1:]])
        for place, parts in zip(several, found, strict=True):
            inside = (place.rows >= begin) & (place.rows < begin + TEXT_BATCH)
            parts.append(read[:, place.rows[inside] - begin, place.columns[inside]])
    # Places come in the order of the texts out of the loop: back into that of the labels.
    return [
        np.concatenate(parts, axis=1)[:, np.argsort(np.argsort(place.rows // TEXT_BATCH, kind="stable"))]
        for place, parts in zip(several, found, strict=True)
    ]


def clustering_of(model: probe.Model, texts: probe.Encoded) -> Clustering:
    """How far the tokens of a text cluster, the first one left out, over `FEW` texts at most."""
    rows = np.linspace(0, len(texts.mask) - 1, min(FEW, len(texts.mask))).astype(int)
    few = probe.Encoded(np.asarray(texts.token_ids)[rows], np.asarray(texts.mask)[rows])
    found = []
    for begin, hidden, mask in _batches(model, few):
        streams = jnp.moveaxis(hidden, 1, 0)[:, :, 1:]
        of_batch = np.asarray(_clusters(streams, jnp.asarray(mask[:, 1:], streams.dtype)))
        found.append(of_batch[: len(rows) - begin])
    return Clustering(*np.concatenate(found).mean(axis=0).T)


def _batches(model: probe.Model, texts: probe.Encoded) -> Iterator[tuple[int, Array, np.ndarray]]:
    """The first text of each batch, the stream at all levels, (levels, batch, n, d), and which tokens are there."""
    ids, mask = np.asarray(texts.token_ids), np.asarray(texts.mask)
    for begin in range(0, len(ids), TEXT_BATCH):
        # Filled up with the last text, so that all batches have one shape.
        batch = np.minimum(np.arange(begin, begin + TEXT_BATCH), len(ids) - 1)
        yield begin, probe.stream(model, ids[batch], mask[batch], _LEVELS).levels, mask[batch]


@jax.jit
def _clusters(streams: Array, counts: Array) -> Array:
    radius = jnp.asarray(NEAR, streams.dtype)
    return jax.lax.map(lambda one: clusters_of(one[0], one[1], radius, unit=True), (streams, counts))


_LEVELS = Measure(lambda hidden, mask: hidden)


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
        found.append((features[-1:], place.labels, text_rows_of(network, place)))
    (features, labels, rows), (others, of_others, other_rows) = found
    mixed = shuffled(features, labels, rows, None, np.random.default_rng(seed), SHUFFLES)
    measures = measures_of(features, labels, rows), measures_of(others, of_others, other_rows), mixed
    # The last level of the clustering is that of the features.
    return (*(np.array(one)[:, 0] for one in measures), np.array(clustering_of(network, parts[0]))[:, -1])


# What is claimed of neural collapse: what the paper says of training, and the same along depth.


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


# The picture of neural collapse: NC1, the other measures and clustering, along depth and along training.


LEAST = 1e-3  # in place of a variability of zero, which has no place on a logarithmic axis
KINDS = {"equiangular": ("NC2, angles", "-"), "self_duality": ("NC3", "--"), "disagreement": ("NC4", "-.")}
COLOURS = {"equiangular": OKABE_ITO[0], "self_duality": OKABE_ITO[1], "disagreement": OKABE_ITO[2]}
CLUSTERS = {"cosine": ("mean cosine", "-"), "rank": ("effective rank / largest", "--"),
            "clusters": ("clusters / tokens", ":")}  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
    panels = figure.subplots(3, 3)
    c, n, t = m.classifier, m.network, m.training
    _variability(panels[0, 0], {
        "reviews it was trained on": (c.trained, OKABE_ITO[0], "-"), "other reviews": (c.test, OKABE_ITO[2], "--"),
        "labels in random order": (c.shuffled, "0.5", ":"), "random weights": (mean_of(c.random), OKABE_ITO[1], "-."),
    })  # fmt: skip
    _variability(panels[0, 1], {
        "next token": (n.next, OKABE_ITO[0], "-"), "token that was read": (n.current, OKABE_ITO[3], "--"),
        "labels in random order": (n.shuffled, "0.5", ":"), "random weights": (mean_of(n.random), OKABE_ITO[1], "-."),
    })  # fmt: skip
    _along_training(panels[0, 2], m)
    for ax, measures in ((panels[1, 0], c.trained), (panels[1, 1], n.next)):
        for name, (label, line) in KINDS.items():
            values = getattr(measures, name)
            ax.plot(np.arange(len(values)), values, color=COLOURS[name], ls=line, label=label)
    for name, (label, line) in KINDS.items():
        _with_error(panels[1, 2], t.steps, getattr(t.seen, name), label, COLOURS[name], line)
    for ax, clustering in ((panels[2, 0], c.clustering), (panels[2, 1], n.clustering)):
        _panels_clusters(ax, np.arange(len(clustering.cosine)), clustering)
    _panels_clusters(panels[2, 2], t.steps, Clustering(*(each.mean(axis=0) for each in t.clustering)))
    titles = "hardmax classifier", _short(m), "small models, training"
    for column, (title, xlabel) in enumerate(zip(titles, ("layer", "layer", "training step"), strict=True)):
        panels[0, column].set_title(title, fontsize=8)
        panels[2, column].set_xlabel(xlabel)
    for row, ylabel in enumerate(("NC1: variability\nof a class", "NC2 to NC4", "tokens of a text")):
        panels[row, 0].set_ylabel(ylabel)
    for ax in panels[1]:
        ax.set_ylim(0, None)
    panels[1, 1].set_ylim(0, 1.35 * panels[1, 1].get_ylim()[1])
    panels[1, 1].legend(fontsize=6, handlelength=2.4, loc="upper right")
    panels[2, 1].legend(fontsize=6, handlelength=2.4)
    for letter, ax in zip("abcdefghi", panels.ravel(), strict=True):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _short(m: Results) -> str:
    return "language model of the package" if m.own else name_of(m)


def _variability(ax: Axes, lines: dict[str, tuple[Measures, str, str]]) -> None:
    for label, (measures, colour, line) in lines.items():
        values = np.maximum(measures.variability, LEAST)
        ax.plot(np.arange(len(values)), values, color=colour, ls=line, label=label)
    _logarithmic(ax)


def _along_training(ax: Axes, m: Results) -> None:
    t = m.training
    for label, measures, colour, line in (
        ("texts they were trained on", t.seen, OKABE_ITO[0], "-"), ("other texts", t.unseen, OKABE_ITO[2], "--"),
        ("labels in random order", t.shuffled, "0.5", ":"),
    ):  # fmt: skip
        _with_error(ax, t.steps, measures.variability, label, colour, line)
    _logarithmic(ax)


def _logarithmic(ax: Axes) -> None:
    """With room for the legend above the lines."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.45)
    ax.legend(fontsize=5.5, handlelength=2.4, loc="upper right")


def _with_error(ax: Axes, steps: np.ndarray, values: np.ndarray, label: str, colour: str, line: str) -> None:
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    time_series(steps, values.mean(axis=0), error, ax, label=label, colour=colour, linestyle=line, xlabel="")
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()


def _panels_clusters(ax: Axes, places: np.ndarray, clustering: Clustering) -> None:
    for (name, (label, line)), colour in zip(CLUSTERS.items(), (OKABE_ITO[5], OKABE_ITO[4], "0.3"), strict=True):
        ax.plot(places, getattr(clustering, name), color=colour, ls=line, label=label)
    ax.set_ylim(min(0.0, float(clustering.cosine.min()) * 1.05), 1.02)


# Neural collapse as an experiment: what is measured, claimed, recorded and drawn.


NETWORKS = Subject("classifier-and-language-models", "the hardmax classifier and language models")
TEXTS = Subject("reviews-and-texts", "reviews and texts")


def _experiment_run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    network = OWN if m.own else SMOLLM2
    return Outcome(
        caption_of(m, claims, ReviewSource.of(settings).words),
        claims,
        {"network": network.words, "reviews": ReviewSource.of(settings).words, "d": p.d, "classes": m.network.classes,
         "places of each class": m.network.each, "starts": settings.starts, "small models": p.trainings,
         "steps": p.steps, "texts of the small models": m.corpus.data.words, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(NETWORKS, TEXTS, {"classes": m.network.classes, "features": m.network.each, "seeds": p.trainings}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    t = m.training
    series = {"step": t.steps}
    for name in t.seen._fields:
        series[f"{name}, training"] = getattr(t.seen, name).mean(axis=0)
        series[f"{name}_by_layer of the classifier"] = getattr(m.classifier.trained, name)
        series[f"{name}_by_level of the network, next token"] = getattr(m.network.next, name)
        series[f"{name}_by_level of the network, current token"] = getattr(m.network.current, name)
        random = np.mean([getattr(one, name) for one in m.network.random], axis=0)
        series[f"{name}_by_level of random weights"] = random
    for name in t.clustering._fields:
        series[f"{name}, training"] = getattr(t.clustering, name).mean(axis=0)
        series[f"{name}_by_layer of the classifier"] = getattr(m.classifier.clustering, name)
        series[f"{name}_by_level of the network"] = getattr(m.network.clustering, name)
    return series


FIGURE = declared("neural-collapse", _experiment_run, parameters=Parameters)
