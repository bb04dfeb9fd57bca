"""Hardmax: the part of the theorem that remains for other matrices A, clause by clause, in exact arithmetic.

**Proposition (a symmetric matrix of rank one).** Let $A = uu^T$ and $p_i = ⟨u, z_i⟩$, so that the score of i with j is
$p_i p_j$, and let M and m be the largest and the smallest $p_i$ at the start. *The number of leaders is
[M > 0, attained once] + [m < 0, attained once], and all of them lead from layer 0 on; it is 2 if and only if both
conditions hold.* Proof (n > 1): a token with $p_i > 0$ attends to all tokens with $p_j = M$, a token with $p_i < 0$ to
all with $p_j = m$, a token with $p_i = 0$ to all tokens. So tokens at M stay at M, because their mean is there, and
tokens with $0 < p_i < M$ come nearer to M and never reach it; below zero the same holds for m. A token with $p_i = 0$
never attends to itself alone, and goes to p = (a share of) the mean, strictly between m and M unless all p are 0. Hence
at every layer the same tokens are at M > 0 and at m < 0, and a token attends to itself alone if and only if it is the
only token there. There are not always two leaders: for u = (1, 0) the tokens (1, 0) and (2, 0), on one side of $u^⊥$,
have one leader, and the tokens (1, 0) and (1, 1) have none. For n independent tokens with a symmetric and continuous
distribution there are two leaders with probability $1 - 2^{1-n}$.

With $A = -uu^T$ a token with $p_i > 0$ attends to the tokens at m and a token with $p_i < 0$ to those at M, so that a
leader exists only if all tokens are on one side and one of them alone is nearest to $u^⊥$: *there is at most one
leader*. For any A a leader stays at a vertex of its own, and limits are stationary: see `hardmax.examine`.

**Trained A.** The derivative with respect to A through the hardmax is zero. All parameters of a sentiment classifier
are therefore trained through the softmax of the same layers, whose inverse temperature rises by equal factors from
`SOFT` to `HARD` during the training, and the tested classifier has the hardmax. A positive definite A is redundant,
because $z' = A^{1/2}z$ turns it into the identity; the question is whether training finds another A, and which clauses
of the theorem hold for that A. Invariants: all kinds of one training, also A = I, have the same start but for A, the
same batches and the same way of training; nothing is chosen on the test part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from ..._base.random import draw_normal
from ..._dynamics.iterate import iterate
from ...hardmax import Examination, SoftmaxTwin
from ...hardmax._certificate import examine_exactly, inertia, rank_of, rational
from ...plot import OKABE_ITO, style
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
from ...sentiment._loss import start, thinned
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, percent
from ..shared.controls import Few, keys_of
from ..shared.ensemble import share_and_error
from ..shared.layout import WIDTH, letter
from ..shared.sentiment import Source as ReviewSource, leaders_of, measured, recipe as recipe_of, reviews, sample
from ..shared.sources import HARDMAX_LAYERS, HARDMAX_THEOREM


# A of each kind, made of a square matrix of whole numbers.
DRAWN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda m: np.eye(len(m)),
    "positive definite": lambda m: m.T @ m,
    "semidefinite, rank d - 1": lambda m: m[: max(len(m) - 1, 1)].T @ m[: max(len(m) - 1, 1)],
    "rank one, u u^T": lambda m: np.outer(m[0], m[0]),
    "rank one, -u u^T": lambda m: -np.outer(m[0], m[0]),
    "symmetric indefinite": lambda m: m + m.T,
    "skew": lambda m: m - m.T,
    "generic": lambda m: m,
}
KINDS = tuple(DRAWN)
RANK_ONE = ("rank one, u u^T", "rank one, -u u^T")
CLAUSES = ("leaders", "vertices", "tokens", "boundary", "projections")
VERDICTS = ("held", "failed", "open")
CLOUDS = Subject("whole-clouds", "normal tokens, rounded to whole numbers")
# Clouds and counterexamples have whole numbers, so that their arithmetic is exact.
UNIT = 16  # A has normal entries in units of 1 / 16: coarse enough for short numbers, fine enough that ties are rare
FINE = 64  # the tokens of the clouds are normal, in units of 1 / 64
COARSE = 8  # the tokens of the search for counterexamples are normal, in units of 1 / 8
SHARE = Fraction(1, 2)  # the share of the distance to their target that tokens move in a layer: alpha = 1
DEPTH = 40  # the largest number of layers; a clause that is not decided by then is open
DIMENSIONS = (2, 3, 4, 6, 8)
MOST_TOKENS, MOST_REACH = 4, 3  # of a small counterexample
NEAR = (0.05, 0.15)  # the range that rounds to one in ten
# Classifiers whose A is trained.
FORMS = ("A = I", "trained from I", "trained from a random A")
SOFT, HARD = 1.0, 100.0
TESTED = 1000  # the largest number of reviews whose leaders are counted
LEARNT_UNIT = 1024  # words and A are rounded to units of 1 / 1024 for the exact layers
WORDS, LEARNT_DEPTH = 40, 40  # the largest number of words of an examined review, and of layers
DIM = 2
# The bounds of the claims on trained A: accuracy, the skew part of A, the share of reviews with a clause, leaders.
SAME, SKEW, SURVIVES, FEW = 0.01, 0.1, 0.99, 1.0


@dataclass(frozen=True)
class Parameters:
    clouds: int = parameter(10_000, "the number of clouds of each kind of A", quick=60, least=10, most=100_000)
    n: int = parameter(6, "the number of tokens of a cloud", least=2, most=20)
    d: int = parameter(3, "the dimension of the tokens", least=2, most=6)
    tries: int = parameter(400, "the number of clouds searched for counterexamples", quick=60, least=10, most=10_000)
    trainings: int = parameter(3, "the number of classifiers of each kind of A", quick=2, least=2, most=32)
    reviews: int = parameter(4000, "the largest number of training reviews", quick=1000, least=64, most=50_000)
    examined: int = parameter(200, "the number of examined reviews of each kind", quick=20, least=2, most=10_000)


class Counterexample(NamedTuple):
    """A cloud of nonzero, distinct tokens with small whole coordinates on which a clause fails."""

    kind: str  # the kind of A
    clause: int  # the number of the clause
    form: np.ndarray  # A
    tokens: np.ndarray  # the tokens, (n, 2)
    examination: Examination  # the proved verdicts on its clauses, and its limits

    @property
    def reach(self) -> int:
        """The largest coordinate or entry of A."""
        return int(max(np.abs(self.form).max(), np.abs(self.tokens).max()))

    @property
    def size(self) -> tuple[int, int, float]:
        """The order of counterexamples, the smallest first."""
        return len(self.tokens), self.reach, float(np.abs(self.tokens).sum() + np.abs(self.form).sum())


class Learnt(NamedTuple):
    # `accuracy`, `leaders`: the accuracy on the test part with the hardmax, and leaders per review, (kinds, trainings)
    accuracy: np.ndarray
    leaders: np.ndarray
    # `before`, `forms`: A before and after training, (kinds, trainings, d, d)
    before: np.ndarray
    forms: np.ndarray
    verdicts: np.ndarray  # the numbers of reviews that hold, fail and leave open each clause, (kinds, clauses, 3)
    on: Measured  # the network, the data and their sizes
    words: str  # the reviews, in words

    @property
    def skewness(self) -> np.ndarray:
        """The norm of the skew part of A over the norm of the symmetric part, (kinds, trainings)."""
        turned = np.swapaxes(self.forms, 2, 3)
        norm = lambda matrices: np.linalg.norm(matrices, axis=(2, 3))
        return norm(self.forms - turned) / norm(self.forms + turned)

    @property
    def least(self) -> np.ndarray:
        """The least eigenvalue of the symmetric part over the size of the largest, (kinds, trainings)."""
        return least_of(self.forms)

    @property
    def shares(self) -> np.ndarray:
        """The share of reviews on which each clause is proved to hold, (kinds, clauses)."""
        return self.verdicts[..., 0] / self.verdicts.sum(axis=-1)


def least_of(forms: np.ndarray) -> np.ndarray:
    """The least eigenvalue of the symmetric part of each matrix, over the largest in size."""
    values = np.linalg.eigvalsh((forms + np.swapaxes(forms, -1, -2)) / 2)
    return values[..., 0] / np.abs(values).max(axis=-1)


class Results(NamedTuple):
    p: Parameters
    verdicts: np.ndarray  # the numbers of clouds that hold, fail and leave open each clause, (kinds, clauses, 3)
    leaders: np.ndarray  # the number of leaders, (kinds, clouds)
    # The number of clouds with A of rank one whose leaders are not as proved, coarse clouds with ties included.
    wrong: int
    lattice: int  # the number of coarse clouds
    # The shares of clouds with a generic A that are proved to have no leader, and that are open, (dimensions, 2).
    without: np.ndarray
    small: list[Counterexample]  # the counterexamples
    learnt: Learnt  # sentiment classifiers whose A is trained, and with A = I

    def count(self, kind: str, clause: str, verdict: str) -> int:
        """The number of clouds of this kind with this verdict on the clause."""
        return int(self.verdicts[KINDS.index(kind), CLAUSES.index(clause), VERDICTS.index(verdict)])


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    verdicts, leaders, wrong = np.zeros((len(KINDS), 5, 3), int), np.zeros((len(KINDS), p.clouds), int), 0
    for number, kind in enumerate(KINDS):
        say(f"A {kind}")
        for k in range(p.clouds):
            # A cloud does not depend on the number of clouds.
            rng = np.random.default_rng([settings.seed, number, k])
            tokens, form = np.round(FINE * rng.normal(size=(p.n, p.d))), draw_form(kind, rng, p.d)
            examination = examined(tokens, form)
            verdicts[number] += tally(examination)
            leaders[number, k] = int((examination.first >= 0).sum())
            wrong += kind in RANK_ONE and not _as_proved(kind, tokens, form, examination.first)
    say("rank one, with ties")
    lattice = max(p.clouds // 10, 10)
    wrong += _lattice(settings.seed, lattice)
    say("A generic, by dimension")
    without = np.array([_without(settings.seed, d, p.n, max(p.clouds // 5, 10)) for d in DIMENSIONS])
    say("searching for counterexamples")
    small = search(settings.seed, p.tries, 5)
    learnt = learn(p.trainings, p.reviews, p.examined, settings, say)
    return Results(p, verdicts, leaders, wrong, lattice, without, small, learnt)


def proved_leaders(projections: np.ndarray) -> list[int]:
    """The tokens that lead with A = u u^T, from the products with u, by the proposition at the head of this file."""
    p = np.asarray(projections)
    top, bottom = np.flatnonzero(p == p.max()), np.flatnonzero(p == p.min())
    alone = {int(top[0])} if p.max() > 0 and len(top) == 1 else set()
    alone |= {int(bottom[0])} if p.min() < 0 and len(bottom) == 1 else set()
    # A single token attends to itself even if its product is zero.
    return sorted(alone) if len(p) > 1 else [0]


def _as_proved(kind: str, tokens: np.ndarray, form: np.ndarray, first: np.ndarray) -> bool:
    led = np.flatnonzero(first >= 0)
    if kind == "rank one, -u u^T":
        return len(led) <= 1 or len(tokens) == 1
    # A column of u u^T that is not zero is a multiple of u, and the sign of u does not matter.
    column = form[:, int(np.argmax(np.abs(np.diag(form))))]
    return led.tolist() == proved_leaders(tokens @ column) and not first[led].any()


def _lattice(seed: int, clouds: int) -> int:
    """The number of coarse clouds of the plane, full of ties and of tokens at zero, that are not as proved."""
    wrong = 0
    for k in range(clouds):
        rng = np.random.default_rng([seed, 99, k])
        tokens, u = rng.integers(-2, 3, (int(rng.integers(1, 6)), 2)).astype(float), rng.integers(-2, 3, 2)
        sign = float(rng.choice([1, -1]))
        if u.any():
            form = sign * np.outer(u, u).astype(float)
            wrong += not _as_proved(RANK_ONE[sign < 0], tokens, form, examined(tokens, form, 12).first)
    return wrong


def _without(seed: int, d: int, n: int, clouds: int) -> tuple[float, float]:
    verdicts = []
    for k in range(clouds):
        rng = np.random.default_rng([seed, 77, d, k])
        tokens, form = np.round(FINE * rng.normal(size=(n, d))), draw_form("generic", rng, d)
        verdicts.append(examined(tokens, form).clauses[0].verdict)
    return verdicts.count("failed") / clouds, verdicts.count("open") / clouds


def draw_form(kind: str, rng: np.random.Generator, d: int, unit: int = UNIT) -> np.ndarray:
    """A matrix of this kind, (d, d), of integers; from normal entries in units of 1 / `unit`."""
    while True:
        form = DRAWN[kind](np.round(unit * rng.normal(size=(d, d)))) + 0.0  # + 0.0 makes 0 of -0
        # Rare draws are not of the kind, because a determinant is zero for example, and are repeated.
        if belongs(kind, form):
            return form


def belongs(kind: str, form: np.ndarray) -> bool:
    """True if the matrix is of this kind, exactly."""
    d, exact, symmetric = len(form), rational(form), bool(np.all(form == form.T))
    if kind == "skew":
        return bool(np.all(form == -form.T) and form.any())
    if kind == "generic":
        return rank_of(exact) == d and not symmetric
    if not symmetric:
        return False
    positive, negative = inertia(exact)
    if kind == "symmetric indefinite":
        return positive > 0 and negative > 0 and positive + negative == d
    inertia_of_kind = {"semidefinite, rank d - 1": (max(d - 1, 1), 0), RANK_ONE[0]: (1, 0), RANK_ONE[1]: (0, 1)}
    return (positive, negative) == inertia_of_kind.get(kind, (d, 0)) and (
        kind != "identity" or bool(np.all(form == np.eye(d)))
    )


def learn(trainings: int, most: int, examined: int, settings: Settings, say: Say) -> Learnt:
    """Trains the classifiers on at most `most` reviews, and examines `examined` reviews of each kind."""
    source = ReviewSource.of(settings)
    split, recipe = reviews(source).split, recipe_of(source, DIM)
    vocabulary = Vocabulary.build(split.train.texts, TextOptions(), min_count=recipe.min_count)
    training, test = (encode_reviews(part, vocabulary, length=recipe.length) for part in (split.train, split.test))
    training, some = sample(training, most), sample(test, TESTED)
    rows, verdicts = [], np.zeros((len(FORMS), 5, 3), int)
    for number, key in enumerate(keys_of(settings.seed, trainings)):
        first, form, batches = jr.split(key, 3)
        begun = start(training, vocabulary.size, recipe, key=first)
        drawn = np.asarray(draw_normal(form, (1, DIM, DIM), jnp.float32))
        for kind, before in enumerate((np.eye(DIM)[None], np.eye(DIM)[None], drawn)):
            say(f"training a classifier, {FORMS[kind]}, {number + 1} of {trainings}")
            with_form = eqx.tree_at(
                lambda tree: tree.A, begun, jnp.asarray(before, jnp.float32), is_leaf=lambda leaf: leaf is None
            )
            model = train(with_form, training, recipe, batches, learn_form=kind > 0)
            logits = predict_logits(model, test.ids, test.counts)
            led = leaders_of(model, some)
            assert model.A is not None
            rows.append((accuracy(logits, test.labels), float(led.counts.mean()), before[0], np.asarray(model.A[0])))
            verdicts[kind] += examine(model, some, -(-examined // trainings))
    # (trainings, kinds) to (kinds, trainings).
    right, leaders, before, forms = (
        np.swapaxes(np.array(column, float).reshape(trainings, len(FORMS), *np.shape(column[0])), 0, 1)
        for column in zip(*rows, strict=True)
    )
    return Learnt(right, leaders, before, forms, verdicts, measured(settings, (DIM,)), source.words)


def train(
    model: HardmaxClassifier, data: Encoded, recipe: Recipe, key: PRNGKeyArray, *, learn_form: bool
) -> HardmaxClassifier:
    """The classifier after all epochs of the recipe, trained through the softmax."""
    size = min(recipe.batch_size, len(data))
    num_batches = len(data) // size
    steps = recipe.epochs * num_batches
    rate = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, min(recipe.warm_up, steps // 2), steps, recipe.learning_rate / 50
    )
    optimiser = optax.chain(optax.clip_by_global_norm(recipe.clip), optax.adam(rate, b2=0.99))
    spec = jtu.tree_map(eqx.is_inexact_array, model)
    spec = eqx.tree_at(lambda tree: tree.A, spec, learn_form)
    learnt, fixed = eqx.partition(model, spec)
    state = optimiser.init(learnt)
    arrays = jnp.asarray(data.ids), jnp.asarray(data.counts, jnp.float32), jnp.asarray(data.labels, jnp.float32)
    for epoch in range(recipe.epochs):
        order_key, epoch_key = jr.split(jr.fold_in(key, epoch))
        order = jr.permutation(order_key, len(data))[: num_batches * size].reshape(num_batches, size)
        betas = SOFT * (HARD / SOFT) ** (
            (epoch * num_batches + jnp.arange(num_batches, dtype=jnp.float32)) / max(steps - 1, 1)
        )
        keys = jr.split(epoch_key, num_batches)
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
    """Cross entropy with words left out and labels smoothed, as in the training through the hardmax."""
    ids, counts, labels = batch
    if recipe.drop:
        ids, counts = thinned(ids, counts, recipe.drop, key)
    logits = soft_logits(eqx.combine(learnt, fixed), ids, counts, beta)
    targets = labels * (1 - recipe.label_smoothing) + recipe.label_smoothing / 2
    return jnp.mean(jax.nn.softplus(logits) - targets * logits)


def soft_logits(model: HardmaxClassifier, ids: Array, counts: Array, beta: Array) -> Array:
    """`HardmaxClassifier.softmax_logits` of a batch; a review without words has one word of id 0."""
    counts = counts.at[:, 0].add(jnp.where(jnp.sum(counts, axis=1) > 0, 0.0, 1.0).astype(counts.dtype))

    def of_review(ids: Array, counts: Array) -> Array:
        layer = SoftmaxTwin(model.layer(0, counts), beta)
        tokens = iterate(layer, model.embedding[ids, 0], model.depth).x1
        return jnp.dot(model.w[0], counts / jnp.sum(counts) @ tokens) + model.v

    return jax.vmap(of_review)(ids, counts)


def examine(model: HardmaxClassifier, some: Encoded, many: int) -> np.ndarray:
    """The numbers of `many` reviews, each word counted once, that hold, fail and leave open each clause, (clauses,
    3)."""
    short = np.flatnonzero(some.lengths <= WORDS)
    verdicts = np.zeros((5, 3), int)
    assert model.A is not None
    form = np.round(LEARNT_UNIT * np.asarray(model.A[0], float))
    alpha = float(model.alpha[0])
    share = Fraction(round(LEARNT_UNIT * alpha / (1 + alpha)), LEARNT_UNIT)
    for row in short[np.linspace(0, len(short) - 1, min(many, len(short))).astype(int)]:
        words = np.asarray(model.embedding, float)[some.ids[row, : some.lengths[row]], 0]
        examination = examine_exactly(rational(np.round(LEARNT_UNIT * words)), rational(form), share, LEARNT_DEPTH)
        verdicts += tally(examination)
    return verdicts


def tally(examination: Examination) -> np.ndarray:
    """1 for the verdict on each clause, (clauses, 3)."""
    return np.array([[clause.verdict == verdict for verdict in VERDICTS] for clause in examination.clauses], int)


def examined(tokens: np.ndarray, form: np.ndarray, depth: int = DEPTH) -> Examination:
    """The proved verdicts on tokens and an A of whole numbers."""
    return examine_exactly(rational(tokens), rational(form), SHARE, depth)


def search(seed: int, tries: int, n: int) -> list[Counterexample]:
    """The smallest counterexample to each clause for each kind of A, where one is found.

    A few failing clouds of each pair are made smaller as long as the clause fails, which is proved each time.
    """
    out = []
    for number, kind in enumerate(KINDS):
        rng = np.random.default_rng([seed, number])
        best: dict[int, Counterexample] = {}
        failures: dict[int, int] = {}
        for _ in range(tries):
            tokens, form = np.round(COARSE * rng.normal(size=(n, 2))) + 0.0, draw_form(kind, rng, 2, unit=1)
            if not _distinct(tokens):
                continue
            for clause in _failed(examined(tokens, form)):
                failures[clause] = failures.get(clause, 0) + 1
                # Shrinking a cloud takes a hundred times as long as examining one.
                if failures[clause] <= 4:
                    small = shrink(kind, clause, tokens, form)
                    best[clause] = min(best.get(clause, small), small, key=lambda example: example.size)
        out += [best[clause] for clause in sorted(best)]
    return out


def shrink(kind: str, clause: int, tokens: np.ndarray, form: np.ndarray) -> Counterexample:
    """Leaves out tokens and brings numbers nearer to zero, as long as the clause fails for an A of this kind."""

    def fails(x: np.ndarray, a: np.ndarray) -> bool:
        return _distinct(x) and belongs(kind, a) and clause in _failed(examined(x, a))

    shrunk = True
    while shrunk:
        shrunk = False
        for x, a in _smaller(tokens, form):
            if fails(x, a):
                tokens, form, shrunk = x, a, True
                break
    return Counterexample(kind, clause, form, tokens, examined(tokens, form))


def _smaller(tokens: np.ndarray, form: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(len(tokens)):
        if len(tokens) > 1:
            yield np.delete(tokens, i, axis=0), form
    for rounded, part in ((np.trunc, 2), (np.round, 4)):
        if np.abs(form).max() > 1:
            yield tokens, rounded(form / part) + 0.0
        if np.abs(tokens).max() > 1:
            yield rounded(tokens / part) + 0.0, form
    for place in np.ndindex(tokens.shape):
        for value in _nearer(float(tokens[place])):
            yield _with(tokens, [place], [value]), form
    for a, b in np.ndindex(form.shape):
        for value in _nearer(float(form[a, b])):
            # A symmetric or skew form remains so if both entries change.
            yield tokens, _with(form, [(a, b)], [value])
            if a < b:
                yield tokens, _with(form, [(a, b), (b, a)], [value, value])
                yield tokens, _with(form, [(a, b), (b, a)], [value, -value])


def _nearer(value: float) -> list[float]:
    """Whole numbers nearer to zero, the nearest first."""
    size, sign = abs(value), np.sign(value)
    return sorted({sign * smaller for smaller in (0.0, 1.0, size // 2, size - 1) if 0 <= smaller < size}, key=abs)


def _with(array: np.ndarray, places: list[tuple[int, ...]], values: list[float]) -> np.ndarray:
    array = array.copy()
    for place, value in zip(places, values, strict=True):
        array[place] = value + 0.0  # + 0.0 makes 0 of -0
    return array


def _distinct(tokens: np.ndarray) -> bool:
    """True if the theorem allows these tokens: nonzero and distinct."""
    return bool(tokens.any(axis=1).all()) and len(np.unique(tokens, axis=0)) == len(tokens)


def _failed(examination: Examination) -> list[int]:
    """The clauses that fail; where there is no leader at all, the first clause alone."""
    failed = [number for number, clause in enumerate(examination.clauses) if clause.verdict == "failed"]
    return [0] if 0 in failed else failed


@claim("none fails, and 99 % or more are proved to hold", source=HARDMAX_THEOREM)
def definite(m: Results) -> Found:
    """For a symmetric positive definite A all five clauses of the theorem hold."""
    held = min(m.count(kind, clause, "held") for kind in ("identity", "positive definite") for clause in CLAUSES)
    fails = m.verdicts[:2, :, 1].sum()
    return Found(
        f"each is proved, in exact arithmetic, on {held} of {m.p.clouds} clouds at least; {fails} fail",
        fails == 0 and held >= 0.99 * m.p.clouds, held / m.p.clouds,
    )  # fmt: skip


@claim("on none, as is proved", kind="identity")
def any_form(m: Results) -> Found:
    """Whatever A is, limits are stationary: a limit s has the largest <A s, .> of all points of the limit polytope."""
    known, fails = m.verdicts[:, 4, :2].sum(axis=0)
    return Found(
        f"on {known} clouds of {len(KINDS)} kinds of A the limits are known, and the clause fails on {fails}",
        fails == 0, fails,
    )  # fmt: skip


@claim("no exception, as is proved", kind="identity")
def rank_one(m: Results) -> Found:
    """With A = u u^T the token of the largest <u, z> leads if this product is above zero and attained once, the token
    of the smallest <u, z> leads if this product is below zero and attained once, and no other token leads; with A = -u
    u^T at most one token leads."""
    return Found(
        f"{m.wrong} exceptions among {2 * m.p.clouds} normal clouds and {m.lattice} coarse clouds full of ties",
        m.wrong == 0, m.wrong,
    )  # fmt: skip


@claim("within 4 standard errors of it")
def two_leaders(m: Results) -> Found:
    """With A = u u^T there are two leaders where tokens lie on both sides of <u, z> = 0, and not always."""
    counts = m.leaders[KINDS.index("rank one, u u^T")]
    share, expected = float(np.mean(counts == 2)), 1 - 2.0 ** (1 - m.p.n)
    error = float(np.sqrt(expected * (1 - expected) / len(counts)))
    return Found(
        f"in {percent(share, error, 2)} of clouds; {100 * expected:.2f} % of normal clouds of {m.p.n} tokens have some "
        "on both sides",
        abs(share - expected) < 4 * error, share, error,
    )  # fmt: skip


@claim(f"{MOST_TOKENS} tokens and numbers up to {MOST_REACH} at most, and 3 counterexamples or more")
def small_counterexamples(m: Results) -> Found:
    """Clauses fail for other A on at most {MOST_TOKENS} tokens with whole coordinates of at most {MOST_REACH}."""
    pairs = {(example.kind, example.clause) for example in m.small}
    failing = {(KINDS[k], c) for k, c in zip(*np.nonzero(m.verdicts[:, :, 1]), strict=True)}
    tokens = max((len(example.tokens) for example in m.small), default=0)
    reach = max((example.reach for example in m.small), default=0)
    return Found(
        f"{len(m.small)} counterexamples in the plane, of {tokens} tokens and numbers up to {reach} at most; of "
        f"{len(failing)} pairs of a kind of A and a clause that fail on the normal clouds {len(failing & pairs)} have "
        "one",
        3 <= len(m.small) and tokens <= MOST_TOKENS and reach <= MOST_REACH, tokens,
    )  # fmt: skip


@claim(f"from {100 * NEAR[0]:g} to {100 * NEAR[1]:g} %")
def generic(m: Results) -> Found:
    """For an A with normal entries about one cloud in ten has no leader."""
    failed = m.count("generic", "leaders", "failed")
    share, error = share_and_error(np.arange(m.p.clouds) < failed)
    by_d = ", ".join(f"{100 * share:.1f} in dimension {d}" for d, (share, _) in zip(DIMENSIONS, m.without, strict=True))
    return Found(
        f"{percent(share, error, 2)} of {m.p.clouds} clouds of {m.p.n} tokens in dimension {m.p.d} are proved to have "
        f"none; {by_d}",
        NEAR[0] < share < NEAR[1], share, error,
    )  # fmt: skip


@claim(f"a mean difference of less than {SAME:g}")
def as_accurate(m: Results) -> Found:
    """A sentiment classifier whose A is trained from the identity is as accurate as a classifier with A = I."""
    right = m.learnt.accuracy
    fixed, learnt, random = (Few.of(values).words() for values in right)
    more, num_trainings = Few.of(right[1] - right[0]), right.shape[1]
    return Found(
        f"test accuracy {learnt} and {fixed}, difference {more.words()} over {num_trainings} trainings; trained from a "
        f"random A {random} (± over {num_trainings} trainings)",
        abs(more.mean) < SAME, more.mean, more.error, m.learnt.on,
    )  # fmt: skip


def _each(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


@claim(f"a skew part of less than {SKEW:g} and a positive least eigenvalue in each training")
def stays_definite(m: Results) -> Found:
    """An A that is trained from the identity stays positive definite and nearly symmetric."""
    skew, least = m.learnt.skewness[1], m.learnt.least[1]
    return Found(
        f"its skew part over the symmetric one: {_each(skew)}; the least eigenvalue of the symmetric part over the "
        f"largest: {_each(least)}",
        skew.max() < SKEW and least.min() > 0, skew.max(), on=m.learnt.on,
    )  # fmt: skip


@claim("a positive least eigenvalue after each training")
def becomes_definite(m: Results) -> Found:
    """An A that is trained from a random matrix is positive definite after the training."""
    before, after = least_of(m.learnt.before[2]), m.learnt.least[2]
    return Found(
        f"the least eigenvalue of its symmetric part over the largest: {_each(before)} before training, "
        f"{_each(after)} after; the skew part over the symmetric one {_each(m.learnt.skewness[2])}",
        after.min() > 0, after.min(), on=m.learnt.on,
    )  # fmt: skip


@claim(f"each clause on {100 * SURVIVES:g} % or more")
def clauses_survive(m: Results) -> Found:
    """The A that is trained from the identity keeps all clauses of the theorem, each on 99 % of the reviews or more."""
    by_kind = "; ".join(
        f"{kind}: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in zip(CLAUSES, shares, strict=True))
        for kind, shares in zip(FORMS, m.learnt.shares, strict=True)
    )
    least, num_reviews = m.learnt.shares[1].min(), m.learnt.verdicts[1, 0].sum()
    return Found(
        f"proved to hold, of {num_reviews} reviews of each kind: {by_kind}", least >= SURVIVES, least, on=m.learnt.on
    )


@claim(f"a mean difference of less than {FEW:g}")
def as_few_leaders(m: Results) -> Found:
    """With the A that is trained from the identity about as few words of a review lead as with A = I."""
    leaders = m.learnt.leaders
    fixed, learnt, random = (Few.of(values).words(2) for values in leaders)
    more = Few.of(leaders[1] - leaders[0])
    return Found(
        f"leaders per review {learnt} and {fixed}; trained from a random A {random} (± over {leaders.shape[1]} "
        "trainings)",
        abs(more.mean) < FEW, more.mean, more.error, m.learnt.on,
    )  # fmt: skip


@claim("on none, as is proved", kind="identity")
def stationary(m: Results) -> Found:
    """Whatever A the training finds, the limits of the reviews are stationary."""
    fails, known = m.learnt.verdicts[:, 4, 1].sum(), m.learnt.verdicts[:, 4, :2].sum()
    measured = f"the limits of {known} reviews are known, and the clause fails on {fails}"
    return Found(measured, fails == 0, fails, on=m.learnt.on)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Hardmax layers with alpha = 1 and an A that need not be positive definite: {m.p.clouds} clouds of {m.p.n} "
        f"tokens in dimension {m.p.d} for each kind of A, in exact arithmetic. (a) The share of clouds, in per cent, "
        "on which each clause of the theorem is proved to hold. A leader stays at a vertex of its own whatever A is, "
        "and limits are stationary; the clauses that fail state that there are leaders and that each vertex has one. "
        "(b) The number of leaders. (c) The smallest counterexamples of the search: tokens, their way to limits "
        f"(squares) and leaders (stars). (d-f) Sentiment classifiers, d = 2, on {m.learnt.words}, trained through a "
        "softmax of rising beta and tested with the hardmax, A fixed at the identity, trained from it, or trained "
        "from a random matrix: accuracy, leaders, and the least eigenvalue of the symmetric part of A over the "
        "largest in size; one point for each training."
    )


def series(m: Results) -> dict:
    shares_held = m.verdicts[:, :, 0] / m.p.clouds
    by_training = {"accuracy": m.learnt.accuracy, "leaders": m.learnt.leaders, "least eigenvalue": m.learnt.least,
                   "skewness": m.learnt.skewness}  # fmt: skip
    return {
        "clause": np.arange(1, 6), **{f"held, {kind}": shares for kind, shares in zip(KINDS, shares_held, strict=True)},
        **{f"{name}_by_training, {kind}": values[k] for k, kind in enumerate(FORMS)
           for name, values in by_training.items()},
        "dimension_by_dimension": np.array(DIMENSIONS), "no_leader_by_dimension": m.without[:, 0],
    }  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    figure = Figure(figsize=(WIDTH, 6.8), layout="constrained")
    top, bottom, last = figure.subfigures(3, 1, height_ratios=(2.9, 2.0, 1.9))  # pyright: ignore
    table, counts = top.subplots(1, 2, width_ratios=(1.45, 1))
    _table(table, m)
    _counts(counts, m)
    # The counterexamples without a leader come first.
    chosen = sorted(m.small, key=lambda example: (example.clause, KINDS.index(example.kind)))[:5]
    panels = bottom.subplots(1, max(len(chosen), 1), squeeze=False)[0]
    for ax, example in zip(panels, chosen, strict=False):
        _counterexample(ax, example)
    below = last.subplots(1, 3)
    _learnt(below, m.learnt)
    letter((table, counts, panels[0], *below))
    if not chosen:
        panels[0].set_axis_off()
    return figure


def _table(ax: Axes, m: Results) -> None:
    shares = 100 * m.verdicts / m.p.clouds
    ax.imshow(shares[:, :, 0], cmap="Blues", vmin=0, vmax=180, aspect="auto")
    for (k, c), proved in np.ndenumerate(shares[:, :, 0]):
        # The share of clouds on which the clause is neither proved nor refuted.
        unknown = shares[k, c, 2]
        ax.text(c, k, _percent(proved) + (f"\n({_percent(unknown)} open)" if unknown else ""), ha="center", va="center",
                fontsize=6.5)  # fmt: skip
    ax.set_xticks(range(5), CLAUSES, fontsize=7)
    ax.set_yticks(range(len(KINDS)), [kind.replace("u u^T", "$uu^T$") for kind in KINDS], fontsize=7)
    ax.tick_params(length=0)


def _percent(value: float) -> str:
    return "100" if value == 100 else f"{value:.1f}" if value >= 0.1 or value == 0 else "< 0.1"


def _counts(ax: Axes, m: Results) -> None:
    most = int(m.leaders.max())
    left = np.zeros(len(KINDS))
    for number in range(most + 1):
        width = np.mean(m.leaders == number, axis=1)
        colour = OKABE_ITO[number % len(OKABE_ITO)]
        ax.barh(range(len(KINDS)), width, left=left, color=colour, label=str(number), height=0.75)
        left += width
    ax.set(xlim=(0, 1), ylim=(len(KINDS) - 0.5, -0.5), xlabel="share of clouds")
    ax.set_yticks([])
    ax.set_title("leaders", fontsize=7)
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=6.5, handlelength=1, columnspacing=0.8)


def _counterexample(ax: Axes, example: Counterexample) -> None:
    tokens, limits = example.tokens, example.examination.limits
    if limits is not None:
        corners = np.unique(limits, axis=0)
        if len(corners) > 1:
            middle = corners.mean(axis=0)
            order = np.argsort(np.arctan2(*(corners - middle).T[::-1]))
            ax.add_patch(Polygon(corners[order], closed=True, facecolor="0.85", edgecolor="0.6", lw=0.8))
        for start, end in zip(tokens, limits, strict=True):
            if np.any(start != end):
                ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "lw": 0.7, "color": "0.4"})
        ax.scatter(*corners.T, marker="s", s=14, facecolors="none", edgecolors=OKABE_ITO[1], linewidths=0.9, zorder=2)
    led = example.examination.first >= 0
    ax.scatter(*tokens[~led].T, s=14, color=OKABE_ITO[0], zorder=3)
    ax.scatter(*tokens[led].T, s=45, marker="*", color=OKABE_ITO[5], zorder=3)
    ax.scatter([0], [0], s=12, marker="+", color="k", linewidths=0.6)
    reach = np.abs(tokens).max() + 0.6
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    rows = ", ".join("(" + ", ".join(f"{entry:.0f}" for entry in row) + ")" for row in example.form)
    ax.set_title(f"{example.kind.replace('u u^T', '$uu^T$')}\nA = {rows}", fontsize=6.5)
    ax.set_xlabel("no leader" if example.clause == 0 else f"{CLAUSES[example.clause]} fail", fontsize=7)


def _learnt(axes: np.ndarray, m: Learnt) -> None:
    values = {"test accuracy": m.accuracy, "leaders per review": m.leaders, "least eigenvalue / largest": m.least}
    aside = np.linspace(-0.15, 0.15, m.accuracy.shape[1])
    for ax, (label, rows) in zip(axes, values.items(), strict=True):
        for kind, (row, marker) in enumerate(zip(rows, "osD", strict=True)):
            ax.plot(kind + aside, row, marker, ms=4, color=OKABE_ITO[kind], mfc="none")
        names = [kind.replace("trained from", "trained\nfrom").replace("a random", "a\nrandom") for kind in FORMS]
        ax.set_xticks(range(len(FORMS)), names, fontsize=6.5)
        ax.set(ylabel=label, xlim=(-0.6, len(FORMS) - 0.4))
    axes[1].set_ylim(0, 1.1 * float(np.max(m.leaders)))
    axes[2].axhline(0, color="0.6", lw=0.6, zorder=0)


def recorded(m: Results) -> dict:
    counterexamples = [
        {"A is": case.kind, "fails": case.examination.clauses[case.clause].says, "A": case.form.astype(int).tolist(),
         "tokens": case.tokens.astype(int).tolist()} for case in m.small
    ]  # fmt: skip
    return {"alpha": 1, "A": ", ".join(KINDS), "starts": m.p.clouds, "counterexamples": counterexamples}


FIGURE = figure(
    __name__,
    on=lambda m: Measured(HARDMAX_LAYERS, CLOUDS, {"tokens": m.p.n, "d": m.p.d, "starts": m.p.clouds}),
    over=lambda m: f"{m.p.clouds} clouds",
)  # fmt: skip
