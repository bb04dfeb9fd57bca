"""`steer`: tokens end at their targets, as a separate run confirms; targets that are not reached are reported."""

import functools
import operator

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, Euclidean, PerceptronField, PiecewiseConstant, SoftmaxAttention, Sphere, design
from clusterjax.design._steer import along, passes
from clusterjax.transformer import Block, PreNorm, Standardised, as_field
from tests.design import cases
from tests.helpers import as_a_user, assert_close, normal, sphere_tokens
from tests.reference import design as reference


KEY = jax.random.key(3)
PICK = lambda field: (field.attention.query_key, field.value)


distance = eqx.filter_jit(lambda space, x, y: space.distance(x, y))
compiled = eqx.filter_jit(along)


def way(space, x, goal, share):
    return compiled(space, x, goal, jnp.asarray(share))


@pytest.mark.exhaustive
def test_two_tokens_reach_what_a_loop_confirms():
    """In one piece the parameters lead the tokens to their targets, by Heun's method in plain loops too."""
    x0, targets = sphere_tokens(1, 2, 2), sphere_tokens(2, 2, 2)
    assert not passes(Sphere(), np.asarray(x0), np.asarray(targets))
    field = cases.guess()
    found = design.steer(field, x0, targets, key=KEY, pieces=1, which=PICK, attempts=20)
    assert found.reached and found.missed.max() <= 1e-2 and found.reason == "every token comes within the tolerance"
    form, value = (np.asarray(part[0]) for part in found.values)
    end = reference.heun(x0, [0.0, 1.0], 100, 1.0, form, value)[-1]
    assert np.abs(end - found.end).max() < 1e-3
    assert np.linalg.norm(end - np.asarray(targets), axis=1).max() < 1.1e-2
    assert "all reached" in found.summary() and len(repr(found)) < 600
    again = design.steer(field, x0, targets, key=KEY, pieces=1, which=PICK, attempts=20)
    assert (again.values[0] == found.values[0]).all() and again.attempts == found.attempts


@pytest.mark.exhaustive
def test_pieces_are_fitted_together():
    """Four tokens of the sphere come to two clusters in four pieces; the schedule steps at the times of the pieces."""
    x0 = sphere_tokens(5, 4, 3)
    found = design.steer(cases.guess(3), x0, jnp.eye(3)[:2], labels=[0, 0, 1, 1], key=KEY, pieces=4, t_end=2.0,
                         which=PICK, attempts=10)  # fmt: skip
    assert found.reached
    assert_close(found.field.value.ts, [0.0, 0.5, 1.0, 1.5])
    assert np.linalg.norm(found.end[:2] - np.eye(3)[0], axis=1).max() < 1e-2


def in_space(n):
    """Tokens and targets in the plane, and attention with a perceptron of eight neurons beside it."""
    field = AttentionField(SoftmaxAttention(1.0, query_key=jnp.eye(2)), jnp.zeros((2, 2)), Euclidean())
    field = field + PerceptronField(jnp.zeros((8, 2)), jnp.zeros((2, 8)), jnp.tanh, bias_in=jnp.zeros(8),
                                    space=Euclidean())  # fmt: skip
    pick = lambda f: (f.fields[0].value, f.fields[1].w_in, f.fields[1].bias_in, f.fields[1].w_out)
    return normal(6, n, 2), normal(7, n, 2), field, pick


@pytest.mark.exhaustive
def test_in_space_with_a_perceptron():
    """Five tokens of R^2 reach their targets by attention with a perceptron of eight neurons beside it."""
    x0, targets, field, pick = in_space(5)
    found = design.steer(field, x0, targets, key=KEY, pieces=3, which=pick, spread=(0.1, 2.0, 2.0, 0.1))
    assert found.reached and found.names == ("value", "w_in", "bias_in", "w_out")


@pytest.mark.exhaustive
def test_errors_of_coarse_runs_do_not_add_up():
    """With two steps of Heun's method a piece, each piece begins where an accurate run ends, not a coarse one."""
    x0, targets, field, pick = in_space(4)
    coarse = {"solver": dfx.Heun(), "stepsize_controller": dfx.PIDController(rtol=1e9, atol=1e9, dtmax=0.5)}
    for seed in (0, 1):
        found = design.steer(field, x0, targets, key=jax.random.key(seed), pieces=8, which=pick,
                             spread=(0.1, 2.0, 2.0, 0.1), attempts=1, **coarse)  # fmt: skip
        # The errors would be 0.09 and 0.16 otherwise.
        assert found.reached and found.missed.max() < 2e-3


def test_the_way_to_the_target_is_a_geodesic():
    """A third of the way is at a third of the angle, in the plane of both; antipodes and equal points stay finite."""
    x, goal = sphere_tokens(8, 6, 3), sphere_tokens(9, 6, 3)
    part = way(Sphere(), x, goal, 1 / 3)
    assert_close(distance(Sphere(), x, part), distance(Sphere(), x, goal) / 3, "composed")
    assert_close(distance(Sphere(), part, goal), 2 * distance(Sphere(), x, goal) / 3, "composed")
    assert_close(way(Sphere(), x, goal, 1.0), goal, "composed")
    for share in (0.3, 0.5, 1.0):
        assert np.isfinite(way(Sphere(), x, -x, share)).all()
        assert_close(way(Sphere(), x, x, share), x)
    assert_close(way(Euclidean(), x, goal, 0.25), x + (goal - x) / 4)


def test_the_way_on_another_space_stays_on_it():
    """Between antipodes there is no middle: the token stays."""
    space = Standardised()
    retract = jax.jit(space.retract)
    x, goal = retract(normal(8, 6, 4)), retract(normal(9, 6, 4))
    part = way(space, x, goal, 0.4)
    assert_close(retract(part), part, "composed")
    assert (distance(space, x, part) < distance(space, x, goal)).all()
    assert_close(way(space, x, goal, 1.0), goal, "composed")
    assert_close(way(space, x, -x, 0.5), x)


@pytest.mark.exhaustive
def test_a_block_with_layer_norm():
    """Two heads and a perceptron serve on the sphere of layer norm, with steps so long that runs of the search err."""
    block = Block.random(jax.random.key(0), 4, 2, 8, activation=jnp.tanh, bias=True)
    field = as_field(block)
    x0, targets = (field.space.retract(normal(seed, 4, 4)) for seed in (1, 2))
    from_heads, from_perceptron = (operator.attrgetter(*names) for names in (("query_key", "value"), ("w_in", "w_out")))
    pick = lambda f: (*from_heads(f.fields[0]), *from_perceptron(f.fields[1]), f.fields[1].bias_in)
    coarse = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.PIDController(rtol=1e9, atol=1e9, dtmax=0.5)}
    found = design.steer(field, x0, targets, key=KEY, pieces=8, which=pick, spread=0.5, **coarse)
    assert found.reached and found.attempts == 1
    assert_close(field.space.retract(jnp.asarray(found.end)), found.end, "composed")


@pytest.mark.parametrize(
    ("space", "x", "goal", "expected"),
    (
        (Sphere(), (0.0, 1.0, 2.0), (1.0, 2.0, 3.0), False),
        (Sphere(), (0.0, 1.0, 2.0), (2.0, 3.0, 1.0), False),
        (Sphere(), (0.0, 1.0, 2.0), (1.0, 3.0, 2.0), True),
        (Sphere(), (2.0, 0.0, 1.0), (3.0, 1.0, 1.0), False),
        (Euclidean(), (0.0, 1.0, 2.0), (-3.0, 0.0, 0.0), False),
        (Euclidean(), (0.0, 1.0, 2.0), (1.0, 0.0, 5.0), True),
    ),
    ids=("turned", "turned past zero", "crossed", "two meet", "in line", "crossed in line"),
)
def test_whether_tokens_would_have_to_pass(space, x, goal, expected):
    point = (
        (lambda a: np.stack([np.cos(a), np.sin(a)], axis=1)) if isinstance(space, Sphere) else (lambda a: a[:, None])
    )
    assert passes(space, point(np.array(x)), point(np.array(goal))) == expected
    assert not passes(space, np.ones((3, 3)), np.eye(3))


def test_what_is_not_reached_says_why():
    """In one step nothing is reached to 1e-9; neighbours on the circle that change places would have to pass."""
    point = lambda *a: jnp.stack([jnp.cos(jnp.array(a)), jnp.sin(jnp.array(a))], axis=1)
    options = {"key": KEY, "pieces": 1, "which": PICK, "attempts": 1, "most": 1, "tolerance": 1e-9}
    found = design.steer(cases.guess(), point(0.0, 2.0), point(0.5, 2.5), **options)
    assert not found.reached and "pass more pieces" in found.reason and "NOT reached" in found.summary()
    crossed = point(0.0, 1.0, 2.0), point(1.0, 0.0, 2.0)
    assert passes(Sphere(), *map(np.asarray, crossed))


X0 = np.eye(3)
# Each test makes its field, since every process of the tests makes the objects of the module.
FIELD = functools.partial(cases.guess, 3)
BLOCK = lambda: as_field(Block.random(jax.random.key(0), 3, 1, 4))
NORMED = lambda: as_field(Block.random(jax.random.key(0), 3, 1, 4, residual=PreNorm()))
SCHEDULED = lambda: AttentionField(SoftmaxAttention(PiecewiseConstant([0.0], [1.0])))


@pytest.mark.parametrize(
    ("field", "x0", "targets", "options", "message"),
    (
        (FIELD, X0, np.eye(3)[[0, 1, 2, 0]], {}, "targets must be no more than the tokens, but there are 4 for 3"),
        (FIELD, X0, 2 * np.eye(3), {}, "targets must be on the sphere, but row 0 has length 2"),
        (FIELD, X0, np.eye(3)[:2], {}, "targets must be one for each token without labels, but there are 2 for 3"),
        (FIELD, X0, np.eye(2), {}, r"targets must be points of R\^3"),
        (FIELD, X0, np.eye(3)[:2], {"labels": [0, 1, 2]}, "labels must be from 0 to 1"),
        (FIELD, X0, np.eye(3), {"spread": [1.0, 1.0]}, "spread must be a number or 3 of them"),
        (FIELD, 0 * X0, np.eye(3), {}, "x0 must have no zero row"),
        (SCHEDULED, X0, np.eye(3), {"which": lambda f: f.attention.beta.values}, "is of a schedule"),
        (BLOCK, X0, np.eye(3), {}, "targets must be on Standardised, where the tokens of the field are, but row 0 is"),
        (NORMED, X0, np.eye(3), {}, r"which must pick what may depend on time, but \S*norm.gain may not; leave it out"),
    ),
)
def test_bad_input(field, x0, targets, options, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        design.steer(field(), x0, targets, **({"key": KEY, "pieces": 2} | options))
