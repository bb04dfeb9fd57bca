"""One step of `Rodas5P` and its parts: the linearised field, the stages, the order, a batch."""

import functools

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax._term import WrapTerm
from scipy.integrate import solve_ivp

import clusterjax as cjx
from clusterjax._dynamics.rodas5p import Equation, has_velocity_jacobian, linearise
from tests.dynamics.test_rodas5p_coefficients import METHOD
from tests.reference import rosenbrock
from tests.rodas5p_cases import CLOSED, CLOUDS, FIELDS, FLAT, flow, tokens


def equation_of(field, direction=1):
    """The equation as diffrax wraps it for a run forwards, or backwards if `direction` is -1."""
    return Equation(WrapTerm(dfx.ODETerm(field), direction))


@pytest.mark.exhaustive_cases(
    *(
        f"{name}-{cloud}"
        for cloud in CLOUDS
        for name in ("full", "heads", "jumps", "perceptron", "repulsive", "rescaled", "sum", "unnormalised causal")
        if (name, cloud) != ("sum", "repeats")
    )
)
@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("name", FIELDS)
def test_linearised_field_is_that_of_central_differences(name, cloud):
    """Derivatives along the tangent space and along time agree, and the intended fields have closed forms."""
    field, x, h = FIELDS[name](), CLOUDS[cloud], 1e-5
    # Where time matters, the run is backwards.
    direction = -1 if name in ("time", "rescaled") else 1
    t = jnp.asarray(0.4 * direction)
    assert has_velocity_jacobian(field) == (name in CLOSED | {"euclidean"})
    equation = equation_of(field, direction)
    rng = np.random.default_rng(1)
    size = x.size if name in FLAT else x.size - x.shape[0]
    u, r, c = jnp.asarray(rng.normal(size=size)), jnp.asarray(rng.normal(size=x.shape)), 0.3

    @jax.jit
    def compute(x):
        linear = linearise(equation, t, x, None)
        v, k = linear.vector(u), linear.solver(c)[0](r)
        # If k has a norm above one, differences are along k / |k|, since their error is of third order in the step.
        length = jnp.maximum(jnp.linalg.norm(k), 1.0)
        w = k / length
        at = jax.vmap(lambda t, x: equation(t, x, None))(
            jnp.stack([t, t, t, t, t + h, t - h]), jnp.stack([x + h * v, x - h * v, x + h * w, x - h * w, x, x])
        )
        along, push, by_time = (at[0::2] - at[1::2]) / (2 * h)
        push = length * push
        return linear.jacobian @ u - linear.coordinates(along), v, linear.by_time - by_time, k - c * push

    error, v, error_by_time, solved = compute(x)
    np.testing.assert_allclose(error, 0, rtol=0, atol=2e-8)
    np.testing.assert_allclose(error_by_time, 0, rtol=0, atol=2e-8)
    if name not in FLAT:
        np.testing.assert_allclose(jnp.sum(v * x, axis=1), 0, atol=1e-12)
    # (I - c J) k = r also for an r with a part along the tokens, with J by differences in all directions.
    np.testing.assert_allclose(solved, r, rtol=0, atol=1e-7)


@functools.cache
def stepping(name, direction=1, max_growth=1.0):
    """Compiles `steps` steps of length h that return the end, start, error, interpolant and growth rate of the last."""
    solver, term = cjx.Rodas5P(max_growth), WrapTerm(dfx.ODETerm(FIELDS[name]()), direction)

    def one(t, y, h):
        start = solver.init(term, t, t + h, y, None)
        y1, error, dense, state, _ = solver.step(term, t, t + h, y, None, start, False)
        return y1, (y, error, dense["polynomial"], state[1])

    @jax.jit
    def run(y, t, h, steps):
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, t, y, h)[1])
        body = lambda number, carry: one(t + number.astype(y.dtype) * h, carry[0], h)
        return jax.lax.fori_loop(0, steps, body, (y, nothing))

    return run


def interpolant(solver, t0, t1, y0, y1, polynomial):
    return solver.interpolation_cls(t0=t0, t1=t1, y0=y0, y1=y1, polynomial=polynomial)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("time", 1),
        pytest.param("time", -1, marks=pytest.mark.exhaustive),
        pytest.param("euclidean", 1, marks=pytest.mark.exhaustive),
        pytest.param("function", 1, marks=pytest.mark.exhaustive),
        pytest.param("rescaled", -1, marks=pytest.mark.exhaustive),
    ],
)
def test_one_step_is_that_of_the_book(name, direction):
    """The step is that of the published coefficients with J in all directions; tokens of any norm keep their norms."""
    field, x, start, h = FIELDS[name](), np.asarray(CLOUDS["off the sphere"]), 0.3 * direction, 0.5
    flat, shape = x.reshape(-1), x.shape
    velocity = jax.jit(lambda t, y: direction * field(direction * t, y.reshape(shape)).reshape(-1))
    by_time, jacobian = jax.jit(jax.jacfwd(velocity, argnums=(0, 1)))(start, flat)
    numpy_velocity = lambda t, y: np.asarray(velocity(t, y))
    y, error, inner = rosenbrock.step(METHOD, numpy_velocity, start, flat, h, np.asarray(jacobian), np.asarray(by_time))
    end = y.reshape(shape)
    if name not in FLAT:
        end = end * (np.linalg.norm(x, axis=1) / np.linalg.norm(end, axis=1))[:, None]
    # The growth is not bounded, since a bound would reject this step for one of the fields.
    found, (before, found_error, polynomial, _) = stepping(name, direction, None)(jnp.asarray(x), start, h, 1)
    np.testing.assert_array_equal(before, x)
    np.testing.assert_allclose(found, end, rtol=0, atol=1e-12)
    assert np.max(np.abs(error)) > 1e-5
    np.testing.assert_allclose(found_error, error.reshape(shape), rtol=0, atol=1e-12)
    run = interpolant(cjx.Rodas5P(), jnp.asarray(start), jnp.asarray(start + h), jnp.asarray(x), found, polynomial)
    for share in (0.0, 0.3, 0.8, 1.0):
        expected = inner(share).reshape(shape) + share * (end - y.reshape(shape))
        np.testing.assert_allclose(run.evaluate(start + share * h), expected, rtol=0, atol=1e-12)
    increment = run.evaluate(start + 0.3 * h, start + 0.8 * h)
    np.testing.assert_allclose(increment, run.evaluate(start + 0.8 * h) - run.evaluate(start + 0.3 * h), atol=1e-14)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["time", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("causal", "euclidean", "perceptron"))],
)
def test_order_five_and_interpolant_of_order_four(name):
    """Errors are those to SciPy's eighth-order method; norms of tokens stay one, however many steps there are."""
    field, x = FIELDS[name](), tokens()
    velocity = jax.jit(lambda t, y: field(t, y.reshape(x.shape)).reshape(-1))
    precise = solve_ivp(
        lambda t, y: np.asarray(velocity(t, y)),
        *((0.0, 1.2), np.asarray(x).reshape(-1)),
        method="DOP853",
        rtol=1e-13,
        atol=1e-14,
        t_eval=[1.2 * (1 - 0.6 / steps) for steps in (4, 8, 16)] + [1.2],
    ).y.T.reshape(-1, *x.shape)
    errors, between = [], []
    for number, steps in enumerate((4, 8, 16)):
        h = 1.2 / steps
        end, (before, _, polynomial, _) = stepping(name)(x, 0.0, h, steps)
        errors.append(np.max(np.abs(end - precise[-1])))
        run = interpolant(cjx.Rodas5P(), jnp.asarray(1.2 - h), jnp.asarray(1.2), before, end, polynomial)
        between.append(np.max(np.abs(run.evaluate(1.2 - 0.6 * h) - precise[number])))
        if name not in FLAT:
            np.testing.assert_allclose(jnp.linalg.norm(end, axis=1), 1, rtol=0, atol=1e-14)
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    # The perceptron turns tokens by several radians in this time.
    assert np.all(slopes > 4.4) and errors[-1] < (1e-4 if name == "perceptron" else 1e-6), (errors, slopes)
    slopes = np.log2(np.array(between[:-1]) / np.array(between[1:]))
    assert np.all(slopes > 4.0), (between, slopes)


def test_a_batch_is_each_run_alone_in_both_forms(monkeypatch):
    """Runs of a batch are solved one by one, as on a CPU, or by batched decompositions; one run is at its end."""
    solver, field = cjx.Rodas5P(), flow(4.0)
    x = jnp.stack([tokens(3, 2, seed) for seed in range(3)])
    t1 = jnp.array([0.7, 0.3, 0.0])

    def step(t1, y):
        term = dfx.ODETerm(field)
        # The direction that grows and its rate, as after the first step.
        state = (jnp.ones_like(y), jnp.asarray(0.1))
        y1, error, dense, state, _ = solver.step(term, jnp.zeros(()), t1, y, None, state, False)
        return y1, error, dense["polynomial"], state

    def compiled():
        # This function is new, so that jax has not traced it.
        traced = jax.jit(jax.vmap(lambda t1, y: step(t1, y))).trace(t1, x)
        return "cond[" in str(traced.jaxpr), traced.lower().compile()(t1, x)

    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    skips, mapped = compiled()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    skips_elsewhere, plain = compiled()
    assert skips and not skips_elsewhere
    for one, other in zip(jax.tree.leaves(mapped), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one[:2], other[:2], rtol=0, atol=1e-12)
    # The run at its end stays where it is, and all its numbers are finite.
    for form in (mapped, plain):
        np.testing.assert_allclose(form[0][2], x[2], rtol=0, atol=1e-15)
        np.testing.assert_allclose(form[1][2], 0, rtol=0, atol=1e-15)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(form))
    np.testing.assert_allclose(mapped[3][0][2], 1)


@pytest.mark.exhaustive
def test_a_step_is_rejected_where_a_perturbation_would_grow_by_more_than_allowed():
    """The rate is at most about that of the largest eigenvalue of J; beyond one e-folding the error is infinite."""
    x = tokens()
    linear = linearise(equation_of(FIELDS["time"]()), jnp.asarray(0.0), x, None)
    largest = np.max(np.linalg.eigvals(linear.jacobian).real)
    assert largest > 0.1
    for efolds, rejected in ((0.5, False), (3.0, True)):
        _, (_, error, _, rate) = stepping("time")(x, 0.0, efolds / largest, 1)
        assert np.all(np.isinf(error)) if rejected else np.all(np.isfinite(error))
        assert 0 < rate < 1.05 * largest
    assert rate > 0.8 * largest


def test_derivatives_of_a_step_are_those_of_differences():
    """In reverse mode derivatives with respect to beta and the start agree with differences."""
    x0, h, solver = tokens(3, 2), 1e-5, cjx.Rodas5P()
    weights = jnp.asarray(np.random.default_rng(3).normal(size=x0.shape))

    def loss(beta, x0):
        term = dfx.ODETerm(flow(beta))
        state = solver.init(term, jnp.zeros(()), jnp.asarray(0.7), x0, None)
        return jnp.sum(weights * solver.step(term, jnp.zeros(()), jnp.asarray(0.7), x0, None, state, False)[0])

    beta, tangent = jnp.asarray(3.0), jnp.roll(weights, 1, axis=0)
    slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    change = lambda by_beta, by_start: slopes(beta + h * by_beta, x0 + h * by_start * tangent)[0]
    by_beta, by_start = slopes(beta, x0)[1]
    np.testing.assert_allclose(by_beta, (change(1, 0) - change(-1, 0)) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(jnp.sum(by_start * tangent), (change(0, 1) - change(0, -1)) / (2 * h), rtol=1e-6)


class Untidy(cjx.AbstractField):
    """A user's field whose velocity is not projected onto the tangent space."""

    @property
    def space(self):
        return cjx.Sphere()

    def __call__(self, t, x, args=None):
        return jnp.cumsum(jnp.tanh(2 * x), axis=0)

    def check(self, n, d):
        pass


def test_a_velocity_out_of_the_tangent_space_is_made_tangent():
    x, time = CLOUDS["off the sphere"], jnp.asarray(0.0)
    found = equation_of(Untidy())(time, x, None)
    np.testing.assert_allclose(found, equation_of(FIELDS["function"]())(time, x, None), rtol=0, atol=1e-12)
    np.testing.assert_allclose(jnp.sum(found * x, axis=1), 0, rtol=0, atol=1e-12)
