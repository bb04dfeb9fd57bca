"""`recover`: parameters come back with the errors that Fisher's information promises; lost parameters are named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, MultiHeadField, PiecewiseConstant, Sphere, WindowMask, design, simulate
from clusterjax._model.field import AbstractField
from clusterjax.design._parameters import pick_parameters
from clusterjax.design._recover import Fit, _verdict, identify
from tests.design import cases
from tests.helpers import as_a_user, assert_close, normal
from tests.reference import design as reference


@pytest.fixture(scope="module")
def exact():
    x0, true = cases.start(), cases.truth()
    xs = cases.observed(true, x0)
    return true, x0, xs, design.recover(cases.guess(), xs, cases.TS, which=cases.PICK, **cases.SCHEME)


def test_parameters_come_back(exact):
    """Without noise all identifiable parameters come back to 1e-8: V, and the product beta B."""
    true, _, _, found = exact
    assert found.converged and found.residual < 1e-10
    beta, form, value = found.estimate
    assert np.abs(value - np.asarray(true.value)).max() < 1e-8
    assert np.abs(beta * form - np.asarray(true.attention.beta * true.attention.query_key)).max() < 1e-8
    assert abs(beta - cases.BETA) > 1e-3  # beta alone cannot be told, and its guess was 1


def test_beta_against_the_form_is_not_determined(exact):
    """The direction of beta up and B down is reported; its parameters have no bound, and beta B has one."""
    _, _, _, found = exact
    beta, form, _ = found.estimate
    assert found.unidentified == ("the scale of beta against query_key (1 dimension)",)
    direction = np.concatenate([[beta], -form.ravel(), np.zeros(4)])
    assert_close(np.abs(found.null @ direction), [np.linalg.norm(direction)], "difference")
    assert np.isinf(found.bounds[0]) and np.isinf(found.bounds[1]).all() and np.isfinite(found.bounds[2]).all()
    assert np.isfinite(found.bound_of(lambda beta, form, value: beta * form)).all()
    assert "not determined: the scale of beta against query_key" in found.summary()
    assert len(repr(found)) < 700


def test_information_is_that_of_differences(exact):
    """The Fisher information is that of central differences of runs in plain loops; its pseudo-inverse is the bound."""
    _, x0, xs, _ = exact
    noise = 0.02
    found = design.recover(cases.truth(), xs, cases.TS, which=cases.PICK, noise=noise, **cases.SCHEME)
    point = np.concatenate([np.ravel(part) for part in found.estimate])
    run = lambda p: reference.heun(x0, cases.TS, 2, p[0], p[1:5].reshape(2, 2), p[5:].reshape(2, 2))[1:]
    expected = reference.fisher(run, point, noise)
    assert_close(found.fisher, expected, "difference")
    # The pseudo-inverse cuts between the null direction, which is zero to rounding, and the others.
    assert_close(found.covariance, np.linalg.pinv(found.fisher, rcond=1e-12), "difference")
    spread = np.einsum("rp,pq,rq->r", found.combinations, found.covariance, found.combinations)
    assert_close(found.combination_bounds, np.sqrt(spread), "difference")
    assert (np.diff(found.combination_bounds) >= 0).all() and len(found.combinations) == 8
    # A function of the parameters, the trace of V, has a bound by the chain rule.
    ones = np.concatenate([np.zeros(5), np.eye(2).ravel()])
    assert_close(found.bound_of(lambda b, q, v: jnp.trace(v)), np.sqrt(ones @ found.covariance @ ones), "difference")
    for wrong in ("x", np.ma.array([1.0], mask=[True]), [None], 1j, np.inf):
        with pytest.raises(ValueError, match="^what function returns must .+, but .+; .+\\.$"):
            found.bound_of(lambda b, q, v, wrong=wrong: wrong)


def test_errors_over_many_draws_are_as_the_bound_says(exact):
    """For normal errors the squared errors of beta B and V, by the covariance of the bound, are chi-squared."""
    true, x0, xs, _ = exact
    noise, draws, squares = 1e-6, 20, []  # so small that the runs are linear in the errors
    told = lambda beta, form, value: np.concatenate([np.ravel(beta * form), np.ravel(value)])
    sharp = design.recover(true, xs, cases.TS, which=cases.PICK, noise=noise, x0=x0, **cases.SCHEME)
    beta, form, _ = sharp.estimate
    slopes = np.zeros((8, 9))
    slopes[:4, 0], slopes[:4, 1:5], slopes[4:, 5:] = form.ravel(), beta * np.eye(4), np.eye(4)
    precision = np.linalg.inv(slopes @ sharp.covariance @ slopes.T)
    for draw in range(draws):
        seen = np.asarray(xs) + noise * np.asarray(normal(100 + draw, *xs.shape))
        found = design.recover(true, seen, cases.TS, which=cases.PICK, noise=noise, x0=x0, **cases.SCHEME)
        error = told(*found.estimate) - told(*map(np.asarray, cases.PICK(true)))
        squares.append(error @ precision @ error)
        assert found.converged and "explains" in found.reason
    # Each draw has eight degrees of freedom; their mean may be off by four standard deviations.
    assert abs(np.mean(squares) / 8 - 1) < 4 * np.sqrt(2 / (8 * draws))


def test_without_the_noise_it_is_estimated(exact):
    true, x0, xs, _ = exact
    seen = xs + 1e-3 * normal(7, *xs.shape)
    found = design.recover(true, seen, cases.TS, which=cases.PICK, x0=x0, **cases.SCHEME)
    assert 0.5e-3 < found.noise < 2e-3 and found.reason.startswith("a minimum")
    # There are 15 tangent parts, less the eight combinations that were fitted.
    later, ends = np.asarray(seen[1:]), np.asarray(cases.observed(found.field, x0)[1:])
    away = ends - later
    tangent = away - np.sum(away * ends, axis=-1, keepdims=True) * ends
    assert_close(found.noise, np.linalg.norm(tangent) / np.sqrt(15 - 8), "difference")
    assert_close(found.residual, np.sqrt(np.mean(away**2)), "difference")


def jacobian_of(field, parameters, x):
    """The Jacobian of the velocity with respect to the parameters; it has the symmetries of a run and needs no run."""
    point = parameters.vector(parameters.values(field), x.dtype)
    flat = lambda vector: jnp.ravel(parameters.with_vector(field, vector)(0.0, x))
    return np.asarray(jax.jit(jax.jacfwd(flat))(point))


def test_a_change_of_basis_between_query_and_key_is_said():
    """Q -> Q A, K -> K A^{-T} changes no score, for k^2 dimensions of each head, among them the rotations."""
    query, key, value = normal(11, 3, 2, 4, 2)
    field = MultiHeadField.factored(1.0, query, key, value, jnp.swapaxes(value, 1, 2))
    parameters = pick_parameters(field, lambda f: (f.factors.query, f.factors.key))
    leaves = tuple(map(np.asarray, parameters.values(field)))
    x = Sphere().retract(normal(12, 24, 4))
    told = identify(jacobian_of(field, parameters, x), 1.0, parameters, leaves)
    assert len(told.null) == 8
    assert told.words == ("the basis between query and key, rotations among its changes (8 dimensions)",)


class Drifts(AbstractField):
    """A field with a drift that depends on time, and a rate whose name begins with the name of the drift."""

    drift: PiecewiseConstant
    drift_rate: jax.Array
    space = Sphere()

    def __call__(self, t, x, args=None):
        return self.space.tangent(x, self.drift_rate * self.drift(t) * x)

    def check(self, n, d):
        pass


def test_a_name_that_begins_with_the_name_of_a_schedule_is_no_schedule():
    field = Drifts(PiecewiseConstant([0.0, 1.0], [1.0, 2.0]), jnp.ones(()))
    assert pick_parameters(field, lambda f: f.drift_rate, pieces=True).names == ("drift_rate",)
    assert pick_parameters(field, None).names == ("drift", "drift_rate")
    with pytest.raises(ValueError, match="of a schedule"):
        pick_parameters(field, lambda f: f.drift.values, pieces=True)


def test_what_no_token_shows_is_said():
    """Tokens in a plane of R^3 show neither the third row nor the third column of B."""
    x = Sphere().retract(jnp.pad(normal(13, 9, 2), ((0, 0), (0, 1))))
    field = cases.truth(3)
    parameters = pick_parameters(field, lambda f: f.attention.query_key)
    leaves = tuple(map(np.asarray, parameters.values(field)))
    told = identify(jacobian_of(field, parameters, x), 1.0, parameters, leaves)
    assert told.words == ("combinations of query_key that no observed token shows (5 dimensions)",)
    unseen = np.abs(told.null.reshape(-1, 3, 3)).max(axis=0)
    assert unseen[:2, :2].max() < 1e-12 < unseen[2].min()


@pytest.mark.exhaustive
def test_the_width_of_a_window_is_found():
    """Among several fields the field of the least residual is taken, and with it the width of its window."""
    x0 = Sphere().retract(normal(14, 8, 2))
    field = lambda beta, width: AttentionField(cases.SoftmaxAttention(beta, mask=WindowMask(width)))
    xs = cases.observed(field(2.0, 3), x0)
    pick = lambda f: f.attention.beta
    found = design.recover([field(1.0, w) for w in (1, 2, 3, 4)], xs, cases.TS, which=pick, **cases.SCHEME)
    assert found.field.attention.mask.width == 3 and abs(found.estimate[0] - 2) < 1e-8
    assert np.argmin(found.candidates) == 2 and (np.delete(found.candidates, 2) > 1e-3).all()
    assert "candidates" in found.summary()


@pytest.mark.exhaustive
def test_several_runs_and_defaults():
    """Runs from several starts are fitted together, with the default solver; None frees all arrays."""
    x0 = Sphere().retract(normal(15, 3, 6, 2))
    true = cases.truth()
    ts = jnp.asarray(cases.TS)
    xs = jnp.stack([simulate(true, x, ts, stepsize_controller=cases.dfx.PIDController(rtol=1e-9, atol=1e-11)).xs
                    for x in x0])  # fmt: skip
    found = design.recover(cases.guess(), xs, ts)
    assert found.names == ("beta", "query_key", "value") and found.observations == 3 * 3 * 6
    assert np.abs(found.estimate[2] - np.asarray(true.value)).max() < 1e-5
    single = design.recover(cases.guess(), xs.astype(jnp.float32), ts.astype(jnp.float32))
    assert np.abs(single.estimate[2] - np.asarray(true.value)).max() < 1e-2
    assert single.unidentified == found.unidentified


def made_fit(settled, slope, size=1.0, finite=True, started=True):
    jacobian = np.zeros((4, 1))
    jacobian[0] = slope if finite else np.nan
    residual = size * np.array([1.0, 1.0, 1.0, 1.0])
    parts = map(np.asarray, (np.zeros(1), residual, jacobian, settled, 7, started))
    return Fit(*(jnp.asarray(part, part.dtype) for part in parts))


@pytest.mark.parametrize(
    ("made", "noise", "converged", "says"),
    (
        (made_fit(True, 0.0), None, True, "a minimum after 7 steps"),
        (made_fit(False, 0.0), None, True, "a minimum after 7 steps"),
        (made_fit(False, 1.0), None, False, "raise most"),
        (made_fit(True, 0.0, finite=False), None, False, "the run at the last parameters failed"),
        (made_fit(True, 0.0, started=False), None, False, "the run of the first guess failed"),
        (made_fit(True, 0.0), 1.0, True, "that the noise explains"),
        (made_fit(True, 0.0, size=9.0), 1.0, True, "it may be a local minimum"),
    ),
    ids=("settled", "stationary", "neither", "not finite", "never began", "explained", "not explained"),
)
def test_the_reason_is_that_of_the_fit(made, noise, converged, says):
    finite = bool(np.isfinite(np.asarray(made.jacobian)).all())
    misfit = float(np.linalg.norm(made.residual))
    found = _verdict(made, finite, noise, misfit, 3)
    assert found[0] == converged and says in found[1]


SEEN = np.zeros((4, 5, 2)) + [1.0, 0.0]
SCHEDULED = AttentionField(cases.SoftmaxAttention(PiecewiseConstant([0.0], [1.0])))


@pytest.mark.parametrize(
    ("field", "observed", "ts", "options", "message"),
    (
        (cases.guess(), SEEN[:2], cases.TS[:2], {}, "observed must hold at least as many independent numbers as there"),
        (cases.guess(), SEEN[0], cases.TS, {}, r"observed must be \(T, n, d\) or"),
        (cases.guess(), SEEN, cases.TS[:3], {}, "ts has 3 times"),
        (cases.guess(), SEEN, cases.TS, {"x0": SEEN[0, :2]}, "x0 must fit the observed tokens"),
        (cases.guess(), 0 * SEEN, cases.TS, {}, "observed must have no zero row"),
        (cases.guess(), SEEN, cases.TS, {"which": lambda f: f.space}, "but it picks none"),
        (cases.guess(), SEEN, cases.TS, {"which": lambda f: (f.value, f.value)}, "but it picks one twice"),
        (cases.guess(), SEEN, cases.TS, {"which": lambda f: 2.0}, "but one is 2.0; pass such as"),
        (AttentionField(cases.SoftmaxAttention(1.0)), SEEN, cases.TS, {"which": lambda f: f.value}, "one is None"),
        (SCHEDULED, SEEN, cases.TS, {"which": lambda f: f.attention.beta}, "pick its values"),
        (SCHEDULED, SEEN, cases.TS, {"which": lambda f: f.attention.beta.ts}, "which must pick arrays of floats"),
        ([], SEEN, cases.TS, {}, "field must be a field or several"),
        ([cases.guess(), 1], SEEN, cases.TS, {}, r"field\[1\] must be a field"),
        (cases.guess(3), SEEN, cases.TS, {}, "query_key must act on tokens of dimension 2"),
    ),
)  # fmt: skip
def test_bad_input(field, observed, ts, options, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        design.recover(field, observed, ts, **options)
