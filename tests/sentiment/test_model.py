"""The classifier: shares, paths, its softmax twin, its logits in batches, and parameters that it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import iterate
from clusterjax.hardmax import HardmaxLayer
from clusterjax.sentiment import HardmaxClassifier, predict_logits
from tests.helpers import as_a_user, assert_close, normal
from tests.reference import sentiment as reference


WORDS, HEADS, D, DEPTH, REVIEWS, N = 30, 2, 2, 4, 5, 12


def classifier(seed=0, A=None, d=D, depth=DEPTH, **options):
    given = {"embedding": normal(seed, WORDS, HEADS, d), "w": normal(seed + 1, HEADS, d), "v": jnp.asarray(-0.5)}
    return HardmaxClassifier(**(given | {"alpha": jnp.asarray([0.5, 1.5])} | options), A=A, depth=depth)


def batch(seed=0):
    """Reviews whose words are all different; the last review has none."""
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(WORDS)[:N] for _ in range(REVIEWS)])
    counts = rng.integers(1, 4, ids.shape) * (np.arange(N) < np.array([12, 7, 3, 1, 0])[:, None])
    return jnp.asarray(ids, jnp.int32), jnp.asarray(counts, float)


MODEL = classifier()
logits_of = jax.jit(HardmaxClassifier.logits)
SKEW = normal(9, HEADS, D, D)


def reference_of(model, ids, counts):
    given = [np.asarray(one) for one in (model.embedding, model.w, model.v, model.alpha)]
    A = None if model.A is None else np.asarray(model.A)
    return [
        reference.logit(*given, A, model.depth, i, c) for i, c in zip(np.asarray(ids), np.asarray(counts), strict=True)
    ]


@pytest.mark.exhaustive_cases("A", "plain")
@pytest.mark.parametrize("model", (MODEL, classifier(A=SKEW), classifier(d=6)), ids=("plain", "A", "six dimensions"))
def test_shares_are_those_of_loops_and_give_the_logit(model):
    ids, counts = batch()
    logits, shares = (jax.jit(type(model).logits)(model, ids, counts), jax.jit(type(model).shares)(model, ids, counts))
    expected = reference_of(model, ids, counts)
    present = np.asarray(counts) > 0
    assert_close(np.asarray(shares)[present], np.stack([u for _, u in expected])[present])
    assert_close(logits, np.array([logit for logit, _ in expected]))
    np.testing.assert_allclose((np.asarray(shares) * present[:, :, None]).sum(axis=1)[:-1], 1, rtol=1e-12)
    again = jnp.einsum("rnh,rnhd,hd->r", shares, model.embedding[ids], model.w) + model.v
    assert_close(again, logits, "identity")


@pytest.mark.exhaustive_cases("plain")
@pytest.mark.parametrize("A", (None, SKEW), ids=("plain", "A"))
def test_path_is_that_of_the_layers(A):
    """The words move as the definition, ties included, and as `iterate` moves them; no word is repeated."""
    model = classifier(A=A)
    ids, counts = batch(2)
    head = 1
    path = eqx.filter_jit(model.path)(ids[0], counts[0], head)
    layer = HardmaxLayer(model.alpha[head], None if A is None else A[head], masses=counts[0])
    np.testing.assert_array_equal(path, iterate(layer, model.embedding[ids[0], head], DEPTH).xs)
    form = None if A is None else np.asarray(A[head])
    start = list(np.asarray(model.embedding)[np.asarray(ids[0]), head])
    assert_close(path, np.array(reference.walk(start, float(model.alpha[head]), form, counts[0] > 0, DEPTH)[0]))


def test_no_layers_have_a_path_of_one_place():
    model, (ids, counts) = classifier(depth=0), batch()
    path, soft, hard = jax.jit(
        lambda: (
            model.path(ids[0], counts[0], 1),
            model.softmax_logits(ids, counts, 3.0),
            model.logits(ids, counts),
        )
    )()
    np.testing.assert_array_equal(path, model.embedding[ids[0], 1][None])
    assert_close(soft, hard, "identity")


def test_softmax_comes_to_the_hardmax_as_beta_grows():
    ids, counts = batch(3)
    softmax = jax.jit(lambda beta: MODEL.softmax_logits(ids, counts, beta))
    hardmax = np.asarray(logits_of(MODEL, ids, counts))
    gaps = [np.abs(np.asarray(softmax(jnp.asarray(beta))) - hardmax).max() for beta in (1.0, 100.0, 1e5)]
    assert gaps[0] > 0.01 and gaps[1] < gaps[0] / 2 and gaps[2] < 1e-9


def test_softmax_is_that_of_loops():
    ids, counts = batch(4)
    beta, total = 2.0, np.zeros(REVIEWS)
    for row in range(REVIEWS):
        for head in range(HEADS):
            z, m = np.asarray(MODEL.embedding)[np.asarray(ids[row]), head], np.asarray(counts[row])
            for _ in range(DEPTH):
                weights = m * np.exp(beta * z @ z.T)
                z = (z + MODEL.alpha[head] * weights @ z / weights.sum(axis=1, keepdims=True)) / (1 + MODEL.alpha[head])
                z = np.asarray(z)
            total[row] += (m @ z / m.sum()) @ np.asarray(MODEL.w[head]) if m.sum() else 0
        total[row] -= 0.5
    assert_close(eqx.filter_jit(MODEL.softmax_logits)(ids[:-1], counts[:-1], beta), total[:-1])


@pytest.mark.exhaustive
def test_shares_are_the_derivative():
    """The derivative of a logit in the embedding of a word is the word's share times w."""
    ids, counts = batch(1)
    grad = jax.jit(jax.grad(lambda model: model.logits(ids[:1], counts[:1])[0]))(MODEL)
    shares = MODEL.shares(ids[:1], counts[:1])[0]
    assert_close(grad.embedding[ids[0]], shares[:, :, None] * MODEL.w[None], "identity")


def test_positive_definite_form_is_absorbed_by_the_embedding():
    """A form A = L L^T with E and w equals the identity with E L and L^-1 w."""
    S = normal(5, HEADS, D, D)
    A = np.einsum("hab,hcb->hac", S, S)
    root = np.linalg.cholesky(A)
    moved = classifier(
        embedding=np.einsum("whd,hde->whe", MODEL.embedding, root),
        w=np.einsum("hde,he->hd", np.linalg.inv(root), MODEL.w),
    )
    assert_close(logits_of(moved, *batch(6)), logits_of(classifier(A=A), *batch(6)), "composed")


@pytest.mark.parametrize("size", (2, 1024))
def test_batches_do_not_matter(size):
    ids, counts = batch()
    found = predict_logits(MODEL, np.asarray(ids), np.asarray(counts, int), batch_size=size)
    assert isinstance(found, np.ndarray)
    assert_close(found, np.asarray(logits_of(MODEL, ids, counts)), "identity")
    assert predict_logits(MODEL, np.asarray(ids)[:0], np.asarray(counts)[:0]).shape == (0,)


def test_one_head_may_leave_its_axis_out():
    plain = HardmaxClassifier(normal(0, WORDS, D), normal(1, D), 0.0, 1.0, np.eye(D))
    full = HardmaxClassifier(normal(0, WORDS, 1, D), normal(1, 1, D), jnp.zeros(()), jnp.ones(1), np.eye(D)[None])
    assert plain.embedding.shape == (WORDS, 1, D) and plain.depth == 8
    assert eqx.tree_equal(plain, full)
    np.testing.assert_allclose(plain.alpha, 1, rtol=1e-15)


@pytest.mark.parametrize("alpha", (1e-6, 0.5, 1.0, 30.0, 1000.0))
def test_alpha_comes_back(alpha):
    np.testing.assert_allclose(classifier(alpha=alpha).alpha, alpha, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    (
        ({"embedding": np.zeros(4)}, "embedding must be of shape"),
        ({"embedding": np.zeros((0, 1, 2))}, "embedding must be of shape"),
        ({"w": np.zeros((1, D))}, "w must be of shape"),
        ({"v": np.zeros(2)}, "v must be of shape"),
        ({"alpha": 0.0}, "alpha must be a finite number above 0"),
        ({"alpha": [1.0, -1.0]}, "alpha must be at least 0"),
        ({"alpha": [1.0, 0.0]}, "alpha must be positive"),
        ({"A": np.zeros((HEADS, D, 3))}, "A must be of shape"),
        ({"A": np.eye(D)}, "A must be of shape"),
    ),
    ids=str,
)
def test_parameters_that_cannot_be(options, words):
    with as_a_user(), pytest.raises(ValueError, match=words):
        classifier(**options)
