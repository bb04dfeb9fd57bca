r"""The sentiment classifier whose A is trained, beside the one with A = I.

Through the hardmax no A has a derivative: it is zero wherever there is one. So all parameters are trained through the
softmax of the same layers, whose inverse temperature rises by equal factors from `SOFT` to `HARD` along the training,
and the classifier that is tested has the hardmax. A positive definite A is redundant, $z' = A^{1/2}z$ turns it into
the identity; what is asked is whether training finds another one, and which clauses of the theorem it keeps. The model
with A = I is trained in the same way from the same words, so that the way of training is not what differs.

Invariants: all kinds of one training have the same start but for A, and the same batches; nothing is chosen on the test
part.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from ..._iterate import iterate
from ..._random import draw_normal
from ...hardmax import SoftmaxTwin
from ...hardmax._examine import examine_exactly, rational
from ...sentiment import (
    Encoded,
    HardmaxClassifier,
    Recipe,
    TextOptions,
    Vocabulary,
    accuracy,
    encode_reviews,
    predict_logits,
)
from ...sentiment._fit import start, thinned
from ..framework.experiment import Settings
from ..framework.starts import keys_of
from ..framework.verdict import Measured
from ..sentiment.measure import leaders_of, sample
from ..sentiment.model import Source, measured, recipe as recipe_of, reviews


FORMS = ("A = I", "trained from I", "trained from a random A")
SOFT, HARD = 1.0, 100.0
TESTED = 1000  # reviews whose leaders are counted, at most
UNIT = 1024  # words and A are rounded to it for the exact layers
WORDS, DEPTH = 40, 40  # of a review that is examined, at most
DIM = 2


class Learnt(NamedTuple):
    """The classifiers of each kind of `FORMS`.

    **Attributes:**

    - `accuracy`, `leaders`: Of the test part with the hardmax, and leaders per review, (kinds, trainings).
    - `before`, `forms`: A before and after training, (kinds, trainings, d, d).
    - `verdicts`: How many reviews hold, fail and leave open each clause, (kinds, clauses, 3).
    - `on`: What was measured.
    - `words`: What the reviews are.
    """

    accuracy: np.ndarray
    leaders: np.ndarray
    before: np.ndarray
    forms: np.ndarray
    verdicts: np.ndarray
    on: Measured
    words: str

    @property
    def skewness(self) -> np.ndarray:
        """The length of the skew part of A over that of the symmetric part, (kinds, trainings)."""
        turned = np.swapaxes(self.forms, 2, 3)
        length = lambda matrices: np.linalg.norm(matrices, axis=(2, 3))
        return length(self.forms - turned) / length(self.forms + turned)

    @property
    def least(self) -> np.ndarray:
        """The least eigenvalue of the symmetric part over the size of the largest, (kinds, trainings)."""
        return least_of(self.forms)


def least_of(forms: np.ndarray) -> np.ndarray:
    """The least eigenvalue of the symmetric part of each matrix, over the largest in size."""
    values = np.linalg.eigvalsh((forms + np.swapaxes(forms, -1, -2)) / 2)
    return values[..., 0] / np.abs(values).max(axis=-1)


def learn(trainings: int, most: int, examined: int, settings: Settings, say: Callable[[str], None]) -> Learnt:
    """Train the classifiers on at most `most` reviews, and examine so many of each kind."""
    source = Source.of(settings)
    split, recipe = reviews(source).split, recipe_of(source, DIM)
    vocabulary = Vocabulary.build(split.train.texts, TextOptions(), min_count=recipe.min_count)
    seen, test = (encode_reviews(part, vocabulary, length=recipe.length) for part in (split.train, split.test))
    seen, some = sample(seen, most), sample(test, TESTED)
    rows, verdicts = [], np.zeros((len(FORMS), 5, 3), int)
    for number, key in enumerate(keys_of(settings.seed, trainings)):
        first, form, batches = jr.split(key, 3)
        begun = start(seen, vocabulary.size, recipe, key=first)
        drawn = np.asarray(draw_normal(form, (1, DIM, DIM), jnp.float32))
        for kind, before in enumerate((np.eye(DIM)[None], np.eye(DIM)[None], drawn)):
            say(f"training a classifier, {FORMS[kind]}, {number + 1} of {trainings}")
            with_form = eqx.tree_at(
                lambda one: one.A, begun, jnp.asarray(before, jnp.float32), is_leaf=lambda leaf: leaf is None
            )
            model = train(with_form, seen, recipe, batches, learn_form=kind > 0)
            logits = predict_logits(model, test.ids, test.counts)
            led = leaders_of(model, some)
            assert model.A is not None  # of these models
            rows.append((accuracy(logits, test.labels), float(led.counts.mean()), before[0], np.asarray(model.A[0])))
            verdicts[kind] += examine(model, some, -(-examined // trainings))
    # (trainings, kinds) to (kinds, trainings).
    right, leaders, before, forms = (
        np.swapaxes(np.array(column, float).reshape(trainings, len(FORMS), *np.shape(column[0])), 0, 1)
        for column in zip(*rows, strict=True)
    )
    return Learnt(right, leaders, before, forms, verdicts, measured(settings, (DIM,)), source.words)


def train(
    model: HardmaxClassifier, seen: Encoded, recipe: Recipe, key: PRNGKeyArray, *, learn_form: bool
) -> HardmaxClassifier:
    """The classifier after all epochs of the recipe, through the softmax."""
    size = min(recipe.batch_size, len(seen))
    each = len(seen) // size
    steps = recipe.epochs * each
    rate = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, min(recipe.warm_up, steps // 2), steps, recipe.learning_rate / 50
    )
    optimiser = optax.chain(optax.clip_by_global_norm(recipe.clip), optax.adam(rate, b2=0.99))
    spec = jtu.tree_map(eqx.is_inexact_array, model)
    spec = eqx.tree_at(lambda one: one.A, spec, learn_form)
    learnt, fixed = eqx.partition(model, spec)
    state = optimiser.init(learnt)
    arrays = jnp.asarray(seen.ids), jnp.asarray(seen.counts, jnp.float32), jnp.asarray(seen.labels, jnp.float32)
    for epoch in range(recipe.epochs):
        order_key, epoch_key = jr.split(jr.fold_in(key, epoch))
        order = jr.permutation(order_key, len(seen))[: each * size].reshape(each, size)
        betas = SOFT * (HARD / SOFT) ** ((epoch * each + jnp.arange(each, dtype=jnp.float32)) / max(steps - 1, 1))
        keys = jr.split(epoch_key, each)
        learnt, state = _epoch(learnt, fixed, state, arrays, (order, betas, keys), optimiser, recipe)
    return eqx.combine(learnt, fixed)


@eqx.filter_jit
def _epoch(learnt: Any, fixed: Any, state: Any, arrays: Any, plan: Any, optimiser: Any, recipe: Recipe) -> Any:
    def step(carry: Any, given: Any) -> tuple[Any, None]:
        learnt, state = carry
        rows, beta, key = given
        batch = tuple(part[rows] for part in arrays)
        gradient = jax.grad(partial(_loss, fixed=fixed, batch=batch, beta=beta, key=key, recipe=recipe))(learnt)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its counters with floats
            updates, state = optimiser.update(gradient, state, learnt)
        return (eqx.apply_updates(learnt, updates), state), None

    return jax.lax.scan(step, (learnt, state), plan)[0]


def _loss(learnt: Any, *, fixed: Any, batch: Any, beta: Array, key: PRNGKeyArray, recipe: Recipe) -> Array:
    """Cross entropy with words left out and labels smoothed, as of the training through the hardmax."""
    ids, counts, labels = batch
    if recipe.drop:
        ids, counts = thinned(ids, counts, recipe.drop, key)
    logits = soft_logits(eqx.combine(learnt, fixed), ids, counts, beta)
    targets = labels * (1 - recipe.label_smoothing) + recipe.label_smoothing / 2
    return jnp.mean(jax.nn.softplus(logits) - targets * logits)


def soft_logits(model: HardmaxClassifier, ids: Array, counts: Array, beta: Array) -> Array:
    """`HardmaxClassifier.softmax_logits` of a batch at once; a review without words has one of id 0."""
    counts = counts.at[:, 0].add(jnp.where(jnp.sum(counts, axis=1) > 0, 0.0, 1.0).astype(counts.dtype))

    def of_review(ids: Array, counts: Array) -> Array:
        layer = SoftmaxTwin(model.layer(0, counts), beta)
        tokens = iterate(layer, model.embedding[ids, 0], model.depth).x1
        return jnp.dot(model.w[0], counts / jnp.sum(counts) @ tokens) + model.v

    return jax.vmap(of_review)(ids, counts)


def examine(model: HardmaxClassifier, some: Encoded, many: int) -> np.ndarray:
    """How many of so many reviews, words counted once each, hold, fail and leave open each clause, (clauses, 3)."""
    short = np.flatnonzero(some.lengths <= WORDS)
    verdicts = np.zeros((5, 3), int)
    assert model.A is not None
    form = np.round(UNIT * np.asarray(model.A[0], float))
    alpha = float(model.alpha[0])
    share = Fraction(round(UNIT * alpha / (1 + alpha)), UNIT)
    for row in short[np.linspace(0, len(short) - 1, min(many, len(short))).astype(int)]:
        words = np.asarray(model.embedding, float)[some.ids[row, : some.lengths[row]], 0]
        found = examine_exactly(rational(np.round(UNIT * words)), rational(form), share, DEPTH)
        for c, clause in enumerate(found.clauses):
            verdicts[c, ("held", "failed", "open").index(clause.verdict)] += 1
    return verdicts
