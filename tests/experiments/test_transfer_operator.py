"""The time scales of the attention matrix, against matrices in loops, quadrature and planted results."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm

import clusterjax as cjx
from clusterjax.experiments.figures import transfer_operator as figure
from clusterjax.experiments.framework.figure import claims_of
from tests.oracles import circle_tokens, unit_tokens


def attention(x, beta):
    """The attention matrix, by a double loop."""
    kernel = [[math.exp(beta * sum(a * b for a, b in zip(y, z, strict=True))) for z in x] for y in x]
    return np.array([[weight / sum(row) for weight in row] for row in kernel])


@pytest.mark.parametrize(("n1", "n2", "beta"), [(1, 1, 1.0), (2, 5, 4.0), (7, 1, 9.0)])
def test_second_eigenvalue_of_two_clusters(n1, n2, beta):
    """The eigenvalue is that of the formula, of the matrix in loops, and of the figure; all others but 1 are zero."""
    x = circle_tokens(np.repeat([0.3, 1.7], [n1, n2]))
    near, far = math.exp(beta), math.exp(beta * math.cos(1.4))
    formula = 1 - n2 * far / (n1 * near + n2 * far) - n1 * far / (n2 * near + n1 * far)
    expected = np.array([1, formula] + (n1 + n2 - 2) * [0.0])
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(attention(x, beta)).real)[::-1], expected, atol=1e-14)
    np.testing.assert_allclose(figure.spectrum_of(x, beta)[0], expected, atol=1e-14)
    assert figure.closing_error(n1, n2, 1.4, beta) < 1e-14
    np.testing.assert_allclose(figure.time_scales(expected[:2]), [2.0**53, -1 / math.log(formula)], rtol=1e-3)


CLOUDS = {
    "generic": unit_tokens(0, 6, 3),
    "one token": np.array([[0.6, 0.8]]),
    "all equal": np.tile([0.0, 1.0], (5, 1)),
    "antipodes": circle_tokens(np.array([0.5, 0.5, 0.5 + np.pi])),
}


@pytest.mark.parametrize("name", CLOUDS)
def test_spectrum_is_that_of_the_attention_matrix(name):
    x, beta = CLOUDS[name], 3.0
    values, vectors, roots = figure.spectrum_of(x, beta)
    matrix = attention(x, beta)
    np.testing.assert_allclose(cjx.SoftmaxAttention(beta).weights(jnp.asarray(x)), matrix, atol=1e-14)
    functions = vectors / roots[:, None]
    np.testing.assert_allclose(matrix @ functions, values * functions, atol=1e-14)
    assert values[0] == pytest.approx(1, abs=1e-14) and (np.diff(values) <= 0).all() and values.min() > -1e-15
    assert np.isfinite(figure.time_scales(values)).all()
    singular, sets = figure.coherent_sets(figure.product(x[None], 40.0, beta))
    assert singular[0] == pytest.approx(1) and sets.shape == (len(x),)
    assert len(set(sets)) == {"antipodes": 2}.get(name, 1)


def test_product_has_later_operators_to_the_left():
    states, h, beta = np.stack([unit_tokens(seed, 5, 3) for seed in range(3)]), 0.7, 4.0
    expected = np.eye(5)
    for x in states:
        expected = expm(h * (attention(x, beta) - np.eye(5))) @ expected
    np.testing.assert_allclose(figure.product(states, h, beta), expected, atol=1e-14)
    masses = expected.mean(axis=0)
    singular = np.linalg.svd(np.diag(5 * [5**-0.5]) @ expected @ np.diag(masses**-0.5))[1]
    np.testing.assert_allclose(figure.coherent_sets(expected)[0], singular, atol=1e-13)


def test_coherent_sets_are_blocks():
    """The coherent sets of five tokens are three blocks with weak weights between them, in whatever order."""
    blocks = np.array([2, 0, 1, 0, 2])
    operator = np.where(blocks[:, None] == blocks, 1.0, 0.02)
    singular, sets = figure.coherent_sets(operator / operator.sum(axis=1, keepdims=True))
    assert np.sum(singular > figure.COHERENT) == 3
    np.testing.assert_array_equal(sets[:, None] == sets, blocks[:, None] == blocks)


@pytest.mark.parametrize(("angle", "beta"), [(0.8, 6.0), (2.0, 9.0), (3.1, 6.0)])
def test_duration_of_a_pair_is_that_of_its_equation(angle, beta):
    """The angle closes at the rate exp(beta cos) sin, in units of the rate at the start, down to the merger."""
    slowness = lambda phi: math.exp(beta * (math.cos(angle) - math.cos(phi))) / math.sin(phi)
    end = 2 * math.asin(figure.TOLERANCE / 2)
    assert figure.pair_duration(angle, beta) == pytest.approx(quad(slowness, end, angle, epsabs=0)[0], rel=1e-4)


def test_waits_of_two_and_three_clusters():
    """The clusters at 0 and 1.4 attend to each other most, and merge first, at the predicted time."""
    angles = np.repeat([0.0, 1.4, 3.6], [2, 3, 1])
    field = cjx.AttentionField(cjx.SoftmaxAttention(9.0))
    tree = cjx.coarsen(field, jnp.asarray(circle_tokens(angles)), 1e300, tolerance=figure.TOLERANCE)
    first, second = figure.waits_of(tree, field, 9.0, 4)
    assert (first.start, first.clusters, second.clusters, first.foreseen) == (4, 3, 2, True)
    assert first.waited == pytest.approx(first.predicted, abs=0.05) and first.slowest > first.predicted + 1
    assert second.waited == pytest.approx(second.predicted, abs=0.01)
    assert [first.growth, second.growth] == pytest.approx([1, 1], abs=0.02)
    states = figure.states_of(tree, 9.0, 4)
    assert len(states) > 10 and set(states[states[:, 1] == 1, 2]) == {2, 3}


def planted(**changes):
    """Results of 8 starts for which all claims hold, with `changes`."""
    starts, logs = np.repeat(np.arange(8), 4), np.linspace(0, 5, 32)
    clusters = np.tile([2, 3, 4, 5], 8)
    states = np.concatenate(
        [np.stack([starts, np.full(32, flag), clusters, clusters + 1 - flag], 1) for flag in (0, 1)]
    )
    waits = [figure.Wait(s, m, 99.0, t, t, t + 2, True, 1.0) for s, m, t in zip(starts, clusters, logs, strict=True)]
    moving = 8 * [figure.Window(3, np.array([1, 0.9, 0.6, 0.1]), 1.0, 0.0)]
    resting = 8 * [figure.Window(3, np.array([1, 0.5, 0.1, 0.0]), 0.5, 0.0)]
    p = figure.Parameters()
    return figure.Results(p, 4, 0.0, 0.0, states, waits, moving, resting, (logs, logs[:, None], logs))._replace(
        **changes
    )


def test_claims_refuse_planted_results():
    good = planted()
    assert all(claim(good).holds for claim in claims_of(vars(figure)))
    fewer = np.where(np.arange(4) == 3, good.states - 1, good.states)
    other = lambda **changes: [w._replace(**changes) for w in good.waits]
    late = [w._replace(waited=1.5 * w.waited) for w in good.waits]
    for claim, changes in (
        (figure.two_close, {"closing": 1e-9}),
        (figure.two_mix, {"mixing": 0.01}),
        (figure.counted, {"states": fewer}),
        (figure.counted, {"states": good.states * [1, 1, 0, 0]}),
        (figure.counted, {"states": good.states[:, [0, 1, 2, 2]]}),
        (figure.clock_of_two, {"waits": late}),
        (figure.clock, {"waits": late}),
        (figure.clock, {"waits": [w._replace(slowest=w.predicted) for w in good.waits]}),
        (figure.clock, {"waits": other(waited=1.0)}),
        (figure.foreseen, {"waits": other(foreseen=False)}),
        (figure.growth, {"waits": other(growth=1.2)}),
        (figure.coherent, {"moving": good.resting}),
        (figure.coherent, {"resting": good.moving}),
        (figure.sets, {"moving": good.resting}),
        (figure.sets, {"resting": good.moving}),
    ):
        assert not claim(good._replace(**changes)).holds, (claim.function.__name__, changes.keys())
