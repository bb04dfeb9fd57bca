"""The cosines of orthogonal tokens under any mask: against simulated tokens, quadrature, and the exact curve."""

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

import clusterjax as cjx
from clusterjax import orthogonal_cosines, orthogonal_time
from tests import oracles
from tests.helpers import as_a_user
from tests.reference import coarsening as reference


MASKS = (cjx.FullMask(), cjx.CausalMask(), cjx.WindowMask(2, causal=True), cjx.SinkMask(2, kept=1),
         cjx.FunctionMask(lambda i, j: (i + j) % 3 != 1))  # fmt: skip
TS = np.array([0.0, 0.7, 2.0, 5.0])


@pytest.mark.parametrize("unnormalised", (False, True))
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
def test_cosines_are_those_of_the_double_loop(mask, unnormalised):
    """Unit vectors of R^n are moved by the double loop over tokens, also at beta = 0."""
    n, permitted = 5, np.asarray(mask.matrix(5))
    for beta in (0.0, 2.5):

        def rate(t, flat, beta=beta):
            x = flat.reshape(n, n) / np.linalg.norm(flat.reshape(n, n), axis=1, keepdims=True)
            return reference.velocity(x, beta, normalised=not unnormalised, permitted=permitted).ravel()

        run = solve_ivp(rate, (0, TS[-1]), np.eye(n).ravel(), "DOP853", t_eval=TS, rtol=1e-8, atol=1e-10)
        exact = run.y.T.reshape(-1, n, n)
        exact = exact / np.linalg.norm(exact, axis=2, keepdims=True)
        cosines = orthogonal_cosines(TS, beta, n, mask=mask, unnormalised=unnormalised)
        np.testing.assert_allclose(cosines, exact @ np.swapaxes(exact, 1, 2), atol=2e-7)
        np.testing.assert_array_equal(cosines, np.swapaxes(cosines, 1, 2))


@pytest.mark.parametrize("unnormalised", (False, True))
def test_with_a_full_mask_it_is_the_curve_of_equiangular_tokens(unnormalised):
    for n, beta in ((2, 0.0), (5, 1.0), (16, 4.0), (3, 9.0)):
        for gamma in (0.5, 0.999):
            exact = oracles.equiangular_time(gamma, n, beta, softmax=not unnormalised)
            times = orthogonal_time(np.array([0.01, 0.5, 1.0]), beta, n, gamma, unnormalised=unnormalised)
            np.testing.assert_allclose(times, exact, rtol=1e-6)


def test_two_causal_tokens_take_the_integral():
    for beta in (0.0, 4.0, 9.0):
        exact, _ = quad(
            lambda c, beta=beta: (np.exp(beta * (1 - c)) + 1) / (1 - c * c), 0, 0.999, epsrel=1e-11, epsabs=0
        )
        assert orthogonal_time(np.array([1.0]), beta, 2, mask=cjx.CausalMask())[0] == pytest.approx(exact, rel=1e-6)


def test_shares_are_those_of_the_cosines():
    """Just before its time a share is not reached, and just after it is; the order of shares does not matter."""
    shares, n = np.array([0.9, 0.0, 1 / 28, 0.1, 0.5, 1.0, 2 / 28 + 1e-9]), 8
    times = orthogonal_time(shares, 2.0, n, 0.99, mask=cjx.CausalMask())
    assert times[1] == 0 and times[6] > times[2] and (np.diff(times[np.argsort(shares)]) >= 0).all()
    upper = np.triu_indices(n, 1)
    for share, t in zip(shares[[0, 2, 3, 4, 5]], times[[0, 2, 3, 4, 5]], strict=True):
        before, after = orthogonal_cosines(np.array([t * (1 - 1e-5), t * (1 + 1e-5)]), 2.0, n, mask=cjx.CausalMask())
        close = lambda c: np.mean(c[upper] >= 0.99)
        assert close(before) < share - 1e-12 <= close(after)


def test_later_tokens_have_no_effect_on_earlier_ones():
    few, many = (orthogonal_cosines(np.array([0.0, 8.0]), 2.0, n, mask=cjx.CausalMask()) for n in (4, 7))
    np.testing.assert_allclose(many[:, :4, :4], few, atol=1e-8)
    # The times need not begin at zero.
    np.testing.assert_allclose(orthogonal_cosines(np.array([8.0]), 2.0, 4, mask=cjx.CausalMask())[0], few[1], atol=1e-8)
    full = orthogonal_cosines(np.array([8.0]), 2.0, 4)
    assert not np.allclose(full, few[1], atol=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    (
        (lambda: orthogonal_cosines(np.array([1.0, 0.5]), 1.0, 3), "ts must increase"),
        (lambda: orthogonal_cosines(np.array([-1.0]), 1.0, 3), "ts must be from 0 to"),
        (
            lambda: orthogonal_cosines(np.array([1.0]), 1.0, 3, mask=cjx.MatrixMask(np.eye(2, dtype=bool))),
            "mask must be of as many",
        ),
        (lambda: orthogonal_time(np.array([1.1]), 1.0, 3), "share must be .*at most 1|share must be from 0 to 1"),
    ),
)
def test_what_it_refuses(call, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^({words})"):
        call()


def test_tokens_that_never_meet_are_no_time():
    with pytest.raises(
        RuntimeError, match="the cosines of 3 orthogonal tokens (stay below 0.999 for ever|need more than 100,000)"
    ):
        orthogonal_time(np.array([0.5]), 1.0, 3, mask=cjx.WindowMask(1))
