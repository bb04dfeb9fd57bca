"""A and alpha for which given tokens lead: margins and bounds against NumPy, impossible sets, bad input."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.hardmax import HardmaxLayer, certificate, choose_leaders, leaders
from clusterjax.hardmax._choose_leaders import startable
from tests.helpers import as_a_user, normal


N, D, CONDITION = 9, 2, 100.0


def least_cosine(z, A, i):
    """min_j <A z_i, z_i - z_j> / (|z_i| |z_i - z_j|), one pair at a time."""
    terms = []
    for j in range(len(z)):
        if j != i:
            gap = z[i] - z[j]
            terms.append(float((A @ z[i]) @ gap) / (np.linalg.norm(z[i]) * np.linalg.norm(gap)))
    return min(terms)


def random_form(rng, d, condition):
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return (axes * condition ** -rng.uniform(0, 1, d)) @ axes.T


@pytest.fixture(scope="module")
def choices():
    """Choices for pairs of tokens that can lead from the start, in six clouds of one shape."""
    found = []
    for seed in range(6):
        z0 = normal(seed, N, D)
        wanted = np.flatnonzero(startable(np.asarray(z0)))[:2].tolist()
        found.append((np.asarray(z0), wanted, choose_leaders(z0, wanted, condition=CONDITION)))
    return found


def test_wanted_tokens_lead_from_the_start(choices):
    """The search succeeds nearly always; A is definite and within the condition, and `leaders` agrees."""
    for z0, wanted, choice in choices:
        A = np.asarray(choice.layer.A)
        values = np.linalg.eigvalsh(A)
        np.testing.assert_allclose(A, A.T, rtol=0, atol=1e-15)
        assert abs(values[-1] - 1) < 1e-12 and values[0] >= (1 - 1e-9) / CONDITION
        first = leaders(jnp.asarray(z0), choice.layer, 100).first
        assert np.array_equal(np.asarray(first) >= 0, np.asarray(choice.leaders.mask))
        assert choice.succeeded == bool(np.all(np.asarray(first)[wanted] >= 0))
        assert (choice.margin > 0) == bool(np.all(np.asarray(first)[wanted] == 0))
        assert certificate(jnp.asarray(z0), choice.layer).held
        assert choice.succeeded or choice.bound < 0.01, "no form can do much better, so that it may be impossible"
    assert sum(choice.succeeded for *_, choice in choices) >= 5


def test_margin_is_the_least_cosine_and_no_form_beats_the_bound(choices):
    rng = np.random.default_rng(0)
    for z0, wanted, choice in choices:
        A = np.asarray(choice.layer.A)
        np.testing.assert_allclose(choice.margin, min(least_cosine(z0, A, i) for i in wanted), rtol=0, atol=1e-12)
        forms = [random_form(rng, D, CONDITION) for _ in range(150)]
        best = max(min(least_cosine(z0, A / np.linalg.norm(A, 2), i) for i in wanted) for A in forms)
        assert best <= choice.bound + 1e-12
        assert best <= choice.margin + 0.02, "a random form does better than the search"
        assert choice.margin <= choice.bound + 1e-9


def test_exactly_means_no_others():
    """In at least one of five clouds of one shape the pair leads alone, and `succeeded` says where it does."""
    found = []
    for seed in range(5):
        z0 = normal(50 + seed, N, D)
        far = np.argmax(np.linalg.norm(np.asarray(z0), axis=1))
        against = np.argmin(np.asarray(z0) @ np.asarray(z0)[far])
        choice = choose_leaders(z0, [int(far), int(against)], exactly=True)
        led = leaders(z0, choice.layer, 200).indices.tolist()
        assert choice.succeeded == (led == sorted([int(far), int(against)]))
        found.append(choice.succeeded)
        if choice.succeeded:
            assert "found: exactly tokens " in repr(choice)
    assert any(found)


@pytest.mark.exhaustive
def test_token_within_the_hull_cannot_lead_from_the_start():
    """Neither can the shorter of two tokens on one ray; the bound proves one claim, and all but proves the other."""
    z0 = jnp.asarray([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0], [0.5, 0.25], [1.0, 0.0], [0.0, 0.0]])
    assert startable(np.asarray(z0)).tolist() == [True, True, True, False, False, False]
    for wanted, most in (([3], 0.0), ([0, 4], 1e-4)):
        choice = choose_leaders(z0, wanted)
        assert choice.impossible == (wanted[-1],) and choice.margin < 0 and choice.bound < most
        assert not choice.succeeded and "not found: tokens" in repr(choice)
    assert choose_leaders(z0, [5]).impossible == (5,)


@pytest.mark.parametrize("scale", (1e-150, 1e150))
def test_scale_does_not_matter(scale):
    z0 = normal(3, N, D)
    plain, scaled = choose_leaders(z0, [0]), choose_leaders(scale * z0, [0])
    np.testing.assert_allclose(scaled.margin, plain.margin, rtol=1e-9)


Z = normal(4, 5, 2)
REFUSED = {
    "stranger": (lambda: choose_leaders(Z, [5]), r"^wanted must name tokens 0 to 4, each once, but it is \[5\]; mend"),
    "twice": (lambda: choose_leaders(Z, [1, 1]), "^wanted must name tokens 0 to 4, each once"),
    "lonely": (lambda: choose_leaders(Z[:1], [0]), "^z0 must hold at least 2 tokens"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(call, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        call()


@pytest.mark.exhaustive
def test_one_token_may_lead_alone_though_the_origin_is_within():
    """The other tokens turn away from the origin in steps of less than a right angle, towards the one long token."""
    z0 = jnp.asarray([[10.0, 0.0], [0.5, 2.0], [0.5, -2.0], [-0.3, 0.5], [-0.3, -0.5]])
    assert leaders(z0, HardmaxLayer(1.0), 100).indices.tolist() == [0]
    choice = choose_leaders(z0, [0], exactly=True)
    assert choice.succeeded and choice.leaders.indices.tolist() == [0]
