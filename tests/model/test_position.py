"""Weights that depend on place: ALiBi, decay, tables and rotary positions against plain double loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.rodas5p import has_velocity_jacobian, velocity_jacobian
from clusterjax._summation.recorder import Names, recorded
from tests import clouds
from tests.attention_cases import BETA, FORM, KERNEL, KINDS as ATTENTIONS, MASSES, VALUES, X, masks_of, outcome
from tests.helpers import DTYPES, CountTraces, as_a_user, assert_close, assert_same, normal, sphere_tokens, tolerance
from tests.model.derivatives_and_maps import assert_maps, assert_slopes
from tests.reference import attention as loops, positions as reference


N, D = X.shape
SLOPE, RATE, CLIP, THETA = 0.35, 4.0, 3, (0.8,)
TABLE = np.random.default_rng(7).normal(size=2 * CLIP + 1)

# Each position, and the arguments of its double loop.
POSITIONS = {
    "alibi": (cjx.ALiBi(SLOPE), lambda n: {"log_weight": reference.slope(SLOPE)}),
    "growth": (cjx.ALiBi(-SLOPE), lambda n: {"log_weight": reference.slope(-SLOPE)}),
    "decay": (cjx.Decay(RATE), lambda n: {"log_weight": reference.slope(RATE / n)}),
    "table": (cjx.RelativeBias(TABLE, CLIP), lambda n: {"log_weight": reference.table(TABLE)}),
    "rotary": (cjx.Rotary(THETA), lambda n: {"turned": reference.turn(THETA)}),
}
KINDS = {kind: build for kind, (build, _) in ATTENTIONS.items() if kind not in ("distance", "cosine")}
SUMS = {"dense": cjx.Dense(), "blocked": cjx.Blocked(4, 3)}
every_position = pytest.mark.parametrize("position", POSITIONS)
every_kind = pytest.mark.parametrize("kind", KINDS)


of_tokens = eqx.filter_jit(lambda attention, masses: attention.average(X, None, masses=masses))


def expected(kind, position, x, allowed, masses=None, form=None):
    of = POSITIONS[position][1](len(x))
    return reference.weights(kind, np.asarray(x, float), allowed, masses, beta=BETA, form=form, kernel=KERNEL,
                             offset=0.4, **of)  # fmt: skip


@pytest.mark.exhaustive_cases("table-kernel", "growth-unnormalised")
@every_kind
@every_position
def test_weights_and_averages_equal_the_double_loop(kind, position):
    """Weights and averages equal the double loop for all masks, densely or in blocks, with and without masses of
    zero."""
    for index, (mask, allowed) in enumerate(masks_of(N).values()):
        masses = MASSES if index % 3 else None
        wanted = expected(kind, position, X, allowed, masses, FORM)
        more = {} if kind.startswith("kernel") else {"summation": (cjx.Dense(), cjx.Blocked(4, 3))[index % 2]}
        attention = KINDS[kind](query_key=FORM, mask=mask, position=POSITIONS[position][0], **more)
        weights, average, *log_partition = outcome(attention, masses=masses)
        assert_close(weights, wanted)
        assert_close(average, loops.average(wanted, VALUES))
        # The values are the tokens themselves, which rotary positions do not turn.
        assert_close(of_tokens(attention, masses), loops.average(wanted, np.asarray(X)))
        for found in log_partition:
            logs = _log_partition(position, allowed, masses)
            assert_same(np.isneginf(found), np.isneginf(logs))
            assert_close(np.asarray(found)[np.isfinite(logs)], logs[np.isfinite(logs)])


def _log_partition(position, allowed, masses):
    of = POSITIONS[position][1](N)
    score = BETA * reference.scores(X, FORM, of.get("turned"))
    b, mass = of.get("log_weight", lambda i, j: 0.0), np.ones(N) if masses is None else np.asarray(masses)
    of_row = lambda i: sum(mass[j] * np.exp(score[i, j] + b(i, j)) for j in range(N) if allowed(i, j))
    with np.errstate(divide="ignore"):
        logs = np.log([of_row(i) for i in range(N)])
    return logs


@pytest.mark.parametrize("dtype", DTYPES)
@every_position
def test_degenerate_clouds(position, dtype):
    """Heaps, ties, lines, antipodes and a far token: sums by blocks, by a matrix and by the double loop agree."""
    allowed = loops.causal
    for name in clouds.CLOUDS:
        x = jnp.asarray(clouds.cloud(name, N, D, seed=3), dtype)
        # Scores of nearly equal tokens differ by about the tolerance of ties, so that hardmax is not compared.
        for kind in ("softmax", "hardmax") if name != "nearly heaps" else ("softmax",):
            wanted = expected(kind, position, x, allowed)
            for summation in SUMS.values():
                attention = KINDS[kind](mask=cjx.CausalMask(), position=POSITIONS[position][0], summation=summation)
                weights, average, *_ = outcome(attention, x, x)
                # The rounding of scores is relative to their size.
                size = float(BETA * jnp.max(jnp.sum(x * x, axis=1)) + 1)
                close = tolerance(dtype, "definition") * size
                if kind == "softmax" or dtype == jnp.float64:
                    np.testing.assert_allclose(weights, wanted, atol=close, err_msg=name)
                scale = float(jnp.abs(x).max())
                np.testing.assert_allclose(average, np.asarray(weights) @ np.asarray(x), atol=close * scale)


@pytest.mark.exhaustive_cases("table", "alibi")
@pytest.mark.parametrize("position", ["alibi", "decay", "table"])
def test_places_of_no_effect_change_nothing(position):
    """A position with parameters zero changes nothing, and neither does a constant added to a whole table."""
    zero = {"alibi": cjx.ALiBi(0.0), "decay": cjx.Decay(0.0), "table": cjx.RelativeBias(np.zeros(3))}[position]
    for kind, build in KINDS.items():
        plain, placed = (outcome(build(query_key=FORM, position=p), masses=MASSES) for p in (None, zero))
        for one, other in zip(plain, placed, strict=True):
            assert_close(other, one, "identity")
        if position == "table" and kind in ("softmax", "kernel"):
            raised = outcome(build(query_key=FORM, position=cjx.RelativeBias(np.full(5, 2.0))), masses=MASSES)
            assert_close(raised[0], plain[0], "identity")


def test_rotary_of_frequency_zero_changes_no_bit():
    for build in KINDS.values():
        plain, turned = (outcome(build(position=p)) for p in (None, cjx.Rotary([0.0])))
        for one, other in zip(plain, turned, strict=True):
            assert_close(other, one, "exact")


def test_rotary_leaves_the_other_coordinates():
    """An odd last coordinate and pairs without a frequency are not turned; whole turns change nothing."""
    x = normal(4, 6, 5)
    for frequencies in ([0.3], [0.3, 1.1]):
        turned = cjx.Rotary(frequencies).turn(x, 0.0)
        wanted = [reference.turn(frequencies)(x[i], i) for i in range(6)]
        assert_close(turned, np.array(wanted))
        assert_same(turned[:, 2 * len(frequencies) :], x[:, 2 * len(frequencies) :])
    assert_close(cjx.Rotary([0.3 + 4 * np.pi, 1.1]).turn(x, 0.0), cjx.Rotary([0.3, 1.1]).turn(x, 0.0), "composed")


@pytest.mark.exhaustive_cases("growth", "table", "rotary", "alibi")
@every_position
def test_the_first_token_is_alone_and_later_ones_change_nothing(position):
    placed = POSITIONS[position][0]
    if position == "decay":  # the slope depends on n
        placed = cjx.ALiBi(RATE / N)
    for kind, build in KINDS.items():
        attention = build(mask=cjx.CausalMask(), position=placed)
        whole, first = attention.weights(X), attention.weights(X[:5])
        assert_close(whole[:5, :5], first, "identity")
        if "not" not in kind and kind != "unnormalised":
            assert_close(whole[0], np.eye(N)[0], "identity")


@every_position
def test_weights_depend_on_the_difference_of_places(position):
    """The weights of equal tokens depend on i - j alone: rows of a causal window are shifts of one another."""
    same = jnp.tile(X[:1], (N, 1))
    attention = cjx.SoftmaxAttention(BETA, mask=cjx.WindowMask(3, causal=True), position=POSITIONS[position][0])
    weights = np.asarray(attention.weights(same))
    for i in range(3, N):
        assert_close(weights[i, i - 2 : i + 1], weights[2, :3], "identity")


def test_rotary_scores_of_many_places():
    """In float32 the score of neighbours is the same at all places up to 10^6."""
    n, frequencies = 1_000_003, jnp.asarray([0.7], jnp.float32)
    x = jnp.tile(jnp.asarray([[1.0, 0.0]], jnp.float32), (n, 1))
    turned = np.asarray(cjx.Rotary(frequencies).turn(x, 0.0), float)
    scores = np.sum(turned[1:] * turned[:-1], axis=1)
    assert np.max(np.abs(scores - np.cos(0.7))) < 1e-5


def test_hardmax_is_the_limit_of_softmax():
    """Hardmax with log-weights b is the limit of softmax with log-weights beta b."""
    for name, (mask, _) in masks_of(N).items():
        for make in (lambda k: cjx.ALiBi(k * SLOPE), lambda k: cjx.RelativeBias(k * TABLE)):
            soft = cjx.SoftmaxAttention(1e5, mask=mask, position=make(1e5)).weights(X)
            assert_close(soft, cjx.HardmaxAttention(mask=mask, position=make(1.0)).weights(X), "composed"), name


def test_ties_of_hardmax_are_decided_by_place():
    """With a slope equal tokens attend to themselves alone; entries of a large table that differ by rounding tie."""
    x = jnp.ones((5, 2))
    assert_close(cjx.HardmaxAttention(position=cjx.ALiBi(0.1)).weights(x), np.eye(5), "exact")
    tied = cjx.RelativeBias(np.array([1e6, 1e6 + 1e-9, 1e6]))
    for summation in SUMS.values():
        attention = cjx.HardmaxAttention(position=tied, summation=summation)
        assert_close(attention.weights(x), np.full((5, 5), 0.2), "exact")
        assert_close(attention.average(x, jnp.eye(5)), np.full((5, 5), 0.2), "exact")


@pytest.mark.exhaustive_cases("table", "rotary", "alibi", "decay")
@every_position
def test_gradients_by_parameters_and_tokens(position):
    arrays, static = eqx.partition(POSITIONS[position][0], eqx.is_array)
    (parameter,), structure = jax.tree.flatten(arrays)
    for kind in ("softmax", "unnormalised", "kernel"):
        for more in ({},) if kind == "kernel" else ({"summation": summation} for summation in SUMS.values()):

            def average(parameter, x, kind=kind, more=more):
                placed = eqx.combine(jax.tree.unflatten(structure, [parameter]), static)
                return KINDS[kind](mask=cjx.CausalMask(), position=placed, **more).average(x, None)

            assert_slopes(average, parameter, X)


def test_slopes_are_mapped_over_and_compile_once():
    body = CountTraces(lambda slope: cjx.SoftmaxAttention(BETA, position=cjx.ALiBi(slope)).weights(X))
    compiled, slopes = jax.jit(body), jnp.asarray([0.0, 0.2, 3.0])
    for slope in slopes:
        compiled(slope)
    assert body.traces == 1
    assert_maps(body.fn, slopes, kind="identity")


@pytest.mark.exhaustive
def test_parameters_may_be_schedules():
    """A slope, a rate, a table and frequencies may depend on time, within a run too."""
    for of_time, at in (
        (cjx.ALiBi(lambda t: 0.1 + t), cjx.ALiBi(0.6)),
        (cjx.Decay(lambda t: 2 * t), cjx.Decay(1.0)),
        (cjx.RelativeBias(lambda t: t * jnp.asarray(TABLE)), cjx.RelativeBias(TABLE / 2)),
        (cjx.Rotary(lambda t: t * jnp.ones(1)), cjx.Rotary([0.5])),
    ):
        for build in KINDS.values():
            for found, wanted in zip(outcome(build(position=of_time), t=0.5), outcome(build(position=at)), strict=True):
                assert_close(found, wanted, "identity")
    jumps = cjx.PiecewiseConstant([0.0, 0.5], [0.0, 3.0])
    run = lambda position, x, ts: (
        cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(BETA, position=position)), x, jnp.asarray(ts)).x1
    )
    halfway = run(cjx.ALiBi(0.0), X, [0.0, 0.5])
    assert_close(run(cjx.ALiBi(jumps), X, [0.0, 1.0]), run(cjx.ALiBi(3.0), halfway, [0.0, 0.5]), "composed")


@pytest.mark.exhaustive_cases("table", "alibi", "rotary")
@pytest.mark.parametrize("position", ["alibi", "decay", "table", "rotary"])
def test_heads_have_positions_of_their_own(position):
    """The field of several heads is the sum of fields, with the parameters of each head or with shared ones."""
    stacks = {
        "alibi": (cjx.ALiBi, np.array([0.2, 1.5])),
        "decay": (cjx.Decay, np.array([0.2, 5.0])),
        "table": (cjx.RelativeBias, np.stack([TABLE, -TABLE])),
        "rotary": (cjx.Rotary, np.array([[0.2], [1.5]])),
    }
    kind, parameters = stacks[position]
    forms, values = normal(21, 2, D, D), normal(22, 2, D, D)
    for of_heads, each in ((parameters, parameters), (parameters[0], parameters[[0, 0]])):
        field = cjx.MultiHeadField(BETA, forms, values, mask=cjx.CausalMask(), position=kind(of_heads))
        alone = [
            cjx.AttentionField(
                cjx.SoftmaxAttention(BETA, query_key=forms[h], mask=cjx.CausalMask(), position=kind(each[h])), values[h]
            )
            for h in range(2)
        ]
        assert_close(field(0.0, X), (alone[0] + alone[1])(0.0, X), "identity")
    with pytest.raises(ValueError, match="^position must have parameters of 3 heads, or of one, but it has those of 2"):
        cjx.MultiHeadField(np.ones(3), None, None, position=kind(parameters))


def test_factored_heads_have_positions():
    """Rotary positions turn the queries and keys of each head; log-weights, divided by beta, add to a bias."""
    q, k, v = (normal(s, 2, D, 2) for s in (31, 32, 33))
    out = jnp.swapaxes(normal(34, 2, D, 2), 1, 2)
    turned = cjx.MultiHeadField.factored(BETA, q, k, v, out, position=cjx.Rotary([0.4]))
    angles = 0.4 * np.arange(N)[:, None]
    older = cjx.MultiHeadField.factored(BETA, q, k, v, out, rotation=(np.cos(angles), np.sin(angles)))
    assert_close(turned(0.0, X), older(0.0, X), "identity")
    far = -np.abs(np.subtract.outer(np.arange(N), np.arange(N))) * SLOPE / BETA
    bias = normal(35, 2, N, N)
    sloped = cjx.MultiHeadField.factored(BETA, q, k, v, out, bias=bias, position=cjx.ALiBi(SLOPE))
    assert_close(
        sloped(0.0, X), cjx.MultiHeadField.factored(BETA, q, k, v, out, bias=bias + far[None])(0.0, X), "identity"
    )


@every_position
def test_the_implicit_solver_has_the_jacobian(position):
    """The Jacobian in closed form is right; rotary positions have no closed form, and forward mode takes its place."""
    attention = cjx.SoftmaxAttention(BETA, query_key=FORM, mask=cjx.CausalMask(), position=POSITIONS[position][0])
    field = cjx.AttentionField(attention, normal(12, D, D))
    assert has_velocity_jacobian(field) == (position != "rotary")
    if position == "rotary":
        return
    velocity = lambda x: attention.average(x, None) @ field.value.T
    found, wanted = jax.jit(lambda x: (velocity_jacobian(field, 0.0, x), (velocity(x), jax.jacfwd(velocity)(x))))(X)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, "identity")


@pytest.mark.exhaustive
def test_the_implicit_solver_runs_rotary():
    field, ts = cjx.AttentionField(cjx.SoftmaxAttention(BETA, position=cjx.Rotary(THETA))), jnp.asarray([0.0, 2.0])
    implicit, explicit = (cjx.simulate(field, X, ts, **how).x1 for how in ({"solver": cjx.Rodas5P()}, {}))
    assert float(jnp.abs(implicit - explicit).max()) < 1e-4


@pytest.mark.exhaustive
def test_far_tokens_lose_their_weight_gracefully():
    """Slopes so large that all factors underflow except a token's own leave each token alone, with finite
    derivatives."""
    for dtype in DTYPES:
        x = X.astype(dtype)
        for kind, build in KINDS.items():
            attention = build(position=cjx.ALiBi(1e30), mask=cjx.CausalMask())
            weights = attention.weights(x)
            assert_same(weights - jnp.diag(jnp.diag(weights)), jnp.zeros((N, N), dtype)), kind
            assert bool(jnp.isfinite(jax.grad(lambda x, a=attention: jnp.sum(a.average(x, None)))(x)).all())
    # Only the first token has mass and gets all weight, in spite of its distance.
    masses = jnp.zeros(N).at[0].set(1.0)
    for kind in ("softmax", "kernel", "hardmax"):
        attention = KINDS[kind](position=cjx.ALiBi(500.0), mask=cjx.CausalMask())
        assert_close(attention.weights(X, masses=masses), np.eye(N)[:, [0] * N].T * 0 + np.eye(N)[0], "exact")


def test_half_precision_holds_the_places():
    for position in (cjx.ALiBi(1e-3), cjx.Decay(1.0), cjx.Rotary([0.5])):
        x = sphere_tokens(1, 200, 2, jnp.float16)
        attention = cjx.SoftmaxAttention(1.0, position=position)
        exact = np.asarray(attention.average(x.astype(jnp.float64), None))
        found = attention.average(x, None)
        assert found.dtype == jnp.float16
        assert np.abs(np.asarray(found, float) - exact).max() < 0.02


@pytest.mark.exhaustive_cases("summation0", "summation2")
@pytest.mark.parametrize(
    "summation", [cjx.Harmonic(1e-6), cjx.Sharded(cjx.Blocked(), "tokens"), cjx.Fused(interpret=True)]
)
def test_fast_sums_take_rotary_and_refuse_a_table(summation):
    """`Sharded` refuses slopes as well."""
    sloped = (cjx.ALiBi(1.0), cjx.Decay(1.0))
    for position in (*(sloped if isinstance(summation, cjx.Sharded) else ()), cjx.RelativeBias(np.zeros(3))):
        with pytest.raises(ValueError, match=f"^position of {type(summation).__name__} must be None or Rotary"):
            cjx.SoftmaxAttention(1.0, position=position, summation=summation)
        with pytest.raises(ValueError, match=f"^position of {type(summation).__name__} must be None or Rotary"):
            cjx.MultiHeadField(1.0, None, np.eye(2)[None], position=position, summation=summation)
    if isinstance(summation, cjx.Sharded):
        mesh = jax.sharding.Mesh(jax.devices()[:1], ("tokens",))
        summation = cjx.Sharded(cjx.Blocked(), "tokens", mesh)
    x = sphere_tokens(2, 60, 2, jnp.float32 if isinstance(summation, cjx.Fused) else jnp.float64)
    for mask in (cjx.FullMask(), cjx.CausalMask()):
        turned = lambda s, mask=mask: cjx.SoftmaxAttention(3.0, mask=mask, position=cjx.Rotary([0.7]), summation=s)
        found, wanted = turned(summation).average(x, None), turned(cjx.Dense()).weights(x) @ x
        assert float(jnp.abs(found - wanted).max()) < (1e-6 if x.dtype == jnp.float64 else 1e-5)


def test_the_hull_takes_rotary():
    x = sphere_tokens(2, 60, 2)
    found, wanted = (
        cjx.HardmaxAttention(position=cjx.Rotary([0.7]), summation=s).average(x, None)
        for s in (cjx.Hull(), cjx.Dense())
    )
    assert_close(found, wanted, "identity")
    with pytest.raises(ValueError, match="^position of Hull must be None or Rotary, but it is an ALiBi"):
        cjx.HardmaxAttention(position=cjx.ALiBi(1.0), summation=cjx.Hull())


@pytest.mark.exhaustive_cases("None-Harmonic", "position2-Harmonic", "position1-Harmonic")
@pytest.mark.parametrize(
    ("position", "name"),
    [
        (None, "Harmonic"),
        (cjx.Rotary([0.1]), "Harmonic"),
        (cjx.ALiBi(0.1), "Harmonic"),
        (cjx.Decay(1.0), "Harmonic"),
        (cjx.RelativeBias(np.zeros(3)), "Blocked"),
    ],
)
def test_auto_chooses_what_takes_the_position(position, name):
    """A run records the names of the summations that `Auto` chooses."""
    x = sphere_tokens(3, 5000, 2)
    for mask, attention in ((cjx.CausalMask(), cjx.SoftmaxAttention), (cjx.FullMask(), cjx.UnnormalisedAttention)):
        names = Names()
        field = recorded(cjx.AttentionField(attention(1.0, position=position, mask=mask)), names)
        jax.eval_shape(field, 0.0, x)
        assert list(names.used) == [name]
    names = Names()
    hard = recorded(cjx.AttentionField(cjx.HardmaxAttention(position=position)), names)
    jax.eval_shape(hard, 0.0, sphere_tokens(3, 9000, 2))
    assert list(names.used) == ["Hull" if position is None or isinstance(position, cjx.Rotary) else "Blocked"]


def test_what_has_no_places_refuses_positions():
    placed = cjx.SoftmaxAttention(2.0, position=cjx.ALiBi(1.0))
    with pytest.raises(ValueError, match=r"^attention\.position must be None, but it is an ALiBi"):
        cjx.MeanField(placed, d=2, degree=16)
    with pytest.raises(ValueError, match=r"^attention\.position must be None, but it is an ALiBi"):
        cjx.phase.branch(placed, d=2, degree=16)
    with pytest.raises(ValueError, match=r"^field\.attention\.position must be None, but it is an ALiBi"):
        cjx.coarsen(cjx.AttentionField(placed), X, 10.0, tolerance=1e-2)


@every_position
def test_limit_shape_says_which_theorems_hold(position):
    """Theorems on causal attention and on an open hemisphere need positive weights alone; the others exclude
    positions."""
    placed, near = POSITIONS[position][0], cjx.Sphere().retract(X[:1] + 1e-9 * X)
    held = lambda field, x, **at: {h.says: h.held for h in cjx.limit_shape(x, field, **at).hypotheses}
    for mask in (cjx.CausalMask(), cjx.FullMask()):
        field = cjx.AttentionField(cjx.SoftmaxAttention(BETA, query_key=FORM, mask=mask, position=placed))
        shape = cjx.limit_shape(near, field)
        assert shape.hypotheses and all(h.held for h in shape.hypotheses)
        assert any(type(placed).__name__ in h.measured for h in shape.hypotheses)
    # Opposite tokens are in no open hemisphere.
    field = cjx.AttentionField(cjx.SoftmaxAttention(BETA, position=placed))
    assert not held(field, jnp.concatenate([X[:1], -X[:1]]))["Attention is a softmax, normalised or not."]
    flat = cjx.AttentionField(cjx.SoftmaxAttention(BETA, position=placed), space=cjx.Euclidean())
    assert not held(flat, X, t=0.0)["Attention is a softmax."]
    moving = cjx.AttentionField(cjx.SoftmaxAttention(BETA, mask=cjx.CausalMask(), position=cjx.ALiBi(lambda t: t)))
    assert not held(moving, near, t=1.0)["beta, Q, K, V and the masses are constant."]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cjx.ALiBi(None), "^slope must be one number, or a stack of one for each head, but it is None"),
        (lambda: cjx.ALiBi(np.nan), "^slope must be finite"),
        (lambda: cjx.ALiBi(np.ones((2, 2))), "^slope must be one number"),
        (lambda: cjx.Decay(1j), "^rate must be real"),
        (lambda: cjx.RelativeBias(np.ones(4)), "^table must hold an odd number of entries, but it holds 4"),
        (lambda: cjx.RelativeBias(np.ones(5), 3), "^table must hold 7 entries, but it holds 5"),
        (lambda: cjx.RelativeBias(np.ones(5), -1), "^clip must be"),
        (lambda: cjx.RelativeBias.from_function(lambda k: k[0], 3), r"^function\(k\) must be an array"),
        (lambda: cjx.RelativeBias.from_function(3, 3), "^function must be a function of i - j"),
        (lambda: cjx.Rotary(0.5), "^frequencies must be a vector of angles"),
        (lambda: cjx.Rotary([]), "^frequencies must be a vector of angles"),
        (lambda: cjx.SoftmaxAttention(1.0, position=2.0), "^position must be a position of clusterjax, but it is 2.0"),
        (lambda: cjx.KernelAttention(KERNEL, position=cjx.ALiBi), "^position must be .* the class ALiBi itself"),
        (
            lambda: cjx.SoftmaxAttention(1.0, position=cjx.ALiBi([1.0, 2.0])),
            "^position must have the parameters of one attention, but it is an ALiBi of 2 heads",
        ),
        (
            lambda: cjx.SoftmaxAttention(1.0, position=cjx.Rotary([0.1, 0.2])).weights(X),
            "^frequencies must hold at most 1 for queries of dimension 3, one for each pair of coordinates, but it",
        ),
        (lambda: cjx.MultiHeadField(1.0, None, np.eye(3)[None], position="alibi"), "^position must be .*pass ALiBi"),
    ],
)
def test_errors(build, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        build()


def test_a_table_of_a_function():
    position = cjx.RelativeBias.from_function(lambda k: -jnp.sqrt(jnp.abs(k) + 0.0), N - 1)
    assert position.clip == N - 1
    wanted = reference.weights("softmax", np.asarray(X), loops.full, log_weight=lambda i, j: -np.sqrt(abs(i - j)))
    assert_close(cjx.SoftmaxAttention(1.0, position=position).weights(X), wanted)
