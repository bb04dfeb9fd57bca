import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.helpers import DTYPES, as_a_user, assert_close, assert_derivatives, assert_same, name_of, normal
from tests.reference import attention as reference


N = 9
GRAPH = np.random.default_rng(5).random((N, N)) < 0.4
np.fill_diagonal(GRAPH, True)

RULES = (
    (cjx.FullMask(), reference.full),
    (cjx.CausalMask(), reference.causal),
    (cjx.WindowMask(1), reference.window(1)),
    (cjx.WindowMask(3), reference.window(3)),
    (cjx.WindowMask(N), reference.full),
    (cjx.WindowMask(1000), reference.full),
    (cjx.WindowMask(4, causal=True), reference.causal_window(4)),
    (cjx.WindowMask(1000, causal=True), reference.causal),
    (cjx.SinkMask(3, kept=2), reference.sink(3, 2)),
    (cjx.SinkMask(1, kept=1), reference.sink(1, 1)),
    (cjx.SinkMask(3, kept=0), reference.causal_window(3)),
    (cjx.SinkMask(2, kept=1000), reference.causal),
    (cjx.MatrixMask(GRAPH), reference.permitted(GRAPH)),
)
IDS = [f"{number}-{name_of(mask)}" for number, (mask, _) in enumerate(RULES)]
rules = pytest.mark.parametrize(("mask", "allowed"), RULES, ids=IDS)


def table(allowed, n):
    return np.array([[allowed(i, j) for j in range(n)] for i in range(n)])


# --- definition


@rules
def test_matrix_is_the_rule(mask, allowed):
    for n in (N,) if isinstance(mask, cjx.MatrixMask) else (1, 2, N):
        assert mask.matrix(n).dtype == bool
        assert_same(mask.matrix(n), table(allowed, n))


@rules
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_attended_mass_is_the_mass_of_the_allowed(mask, allowed, dtype):
    masses = jnp.asarray([0.5, 0.0, 2.0, 0.0, 1.0, 0.3, 0.0, 7.0, 0.1], dtype)
    expected = [sum(float(masses[j]) for j in range(N) if allowed(i, j)) for i in range(N)]
    attended = eqx.filter_jit(mask.attended_mass)
    assert attended(masses).dtype == dtype
    assert_close(attended(masses), np.array(expected))
    assert_same(attended(np.ones(N, masses.dtype)), table(allowed, N).sum(axis=1))


@rules
def test_blocks_are_skipped_only_where_nobody_may_attend(mask, allowed):
    """`reaches` and `covers` are exact for each rectangle of the matrix, and conservative for a MatrixMask."""
    spans = list(itertools.combinations_with_replacement(range(N), 2))
    corners = np.array([(*rows, *columns) for rows, columns in itertools.product(spans, spans)])
    matrix = table(allowed, N)
    some, every = (
        np.array([fn(matrix[i : last_i + 1, j : last_j + 1]) for i, last_i, j, last_j in corners])
        for fn in (np.any, np.all)
    )
    reaches, covers = (
        np.broadcast_to(jax.jit(jax.vmap(lambda c, fn=fn: jnp.asarray(fn(*c))))(corners), some.shape)
        for fn in (mask.reaches, mask.covers)
    )
    if isinstance(mask, cjx.MatrixMask):
        assert reaches.all() and not covers.any()
    else:
        assert_same(reaches, some)
        assert_same(covers, every)


# --- contract


@pytest.mark.parametrize("mask", (cjx.WindowMask(4, causal=True), cjx.SinkMask(3, kept=2), cjx.MatrixMask(GRAPH)))
def test_attended_mass_maps_and_differentiates(mask):
    masses = abs(normal(3, 4, N))
    mass = lambda masses: mask.attended_mass(masses)
    alone = jax.jit(mass)
    for together, row in zip(jax.jit(jax.vmap(mass))(masses), masses, strict=True):
        assert_close(together, alone(row), "exact")
    assert_derivatives(mask.attended_mass, masses[0])


def test_a_matrix_may_be_traced_and_mapped_over():
    """One compiled program serves all graphs of one size."""
    graphs = np.stack([GRAPH, GRAPH.T, np.eye(N, dtype=bool)])
    degrees = jax.jit(jax.vmap(lambda graph: cjx.MatrixMask(graph).attended_mass(jnp.ones(N))))(graphs)
    assert_same(degrees, graphs.sum(axis=2))


@pytest.mark.parametrize(
    ("permitted", "what"),
    (
        (np.ones((3, 4), bool), r"its shape is \(3, 4\) and its dtype is bool"),
        (np.ones((3, 3)), r"its shape is \(3, 3\) and its dtype is float64"),
        (np.ones(3, bool), r"its shape is \(3,\)"),
        (np.ones((3, 3), np.int64), "its dtype is int64"),
    ),
)
def test_permitted_must_be_a_square_boolean_matrix(permitted, what):
    with as_a_user(), pytest.raises(ValueError, match=f"^permitted must be a square boolean matrix, .*{what}.*pass"):
        cjx.MatrixMask(permitted)


def test_permitted_must_hold_its_diagonal():
    graph = GRAPH.copy()
    graph[4, 4] = False
    with pytest.raises(ValueError, match=r"^permitted .* but permitted\[4, 4\] is False; set its diagonal to True\.$"):
        cjx.MatrixMask(graph)


@pytest.mark.parametrize("wrap", (lambda fn: fn, eqx.filter_jit), ids=("eager", "jit"))
def test_a_matrix_of_another_size_is_refused(wrap):
    """The matrix is refused also while compiling, since shapes are known then."""
    mask = cjx.MatrixMask(GRAPH)
    message = r"^mask must be of as many tokens as x, but it is of 9 and x has 5; pass a MatrixMask of shape \(n, n\)\."
    with pytest.raises(ValueError, match=message):
        mask.matrix(5)
    for attention in (
        cjx.SoftmaxAttention(1.0, mask=mask),
        cjx.UnnormalisedAttention(1.0, mask=mask),
        cjx.HardmaxAttention(mask=mask),
    ):
        for use in (attention.weights, lambda x, a=attention: a.average(x, x), cjx.AttentionField(attention).enter):
            with pytest.raises(ValueError, match=message):
                wrap(use)(jnp.ones((5, 2)))
