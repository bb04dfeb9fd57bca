"""Networks without one of their parts, the heads of a network as particles, and the fit of particles to a network."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import clusterjax as cjx
from clusterjax import probe
from clusterjax.probe.particle_bridge.bridge import Particles, fit_scales
from tests.helpers import as_a_user
from tests.probe_cases import ALBERT, SHARED, T5, assert_refused, many_texts, tensors_of, write
from tests.reference import networks, probes as reference


TEXTS = many_texts(3, 8)
LAYER = "encoder.albert_layer_groups.0.albert_layers.0."


@pytest.fixture(scope="module")
def tensors():
    """Weights so small that a layer rotates tokens only a little, and particles follow with few steps."""
    return {name: 0.4 * array if "norm" not in name.lower() else array for name, array in tensors_of(SHARED).items()}


@pytest.fixture(scope="module")
def model(tensors, tmp_path_factory):
    return probe.load(write(tmp_path_factory.mktemp("m"), SHARED, tensors), dtype=jnp.float64)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """A T5 of three blocks that is deepened to four: its first block is applied again as the fourth."""
    with pytest.warns(UserWarning, match="is deepened to 4"):
        return probe.load(write(tmp_path_factory.mktemp("t5"), T5, tensors_of(T5)), dtype=jnp.float64, depth=4)


@pytest.fixture(scope="module")
def particles(model):
    return Particles.make(model, TEXTS, 9.0, 2, 2)


moved = jax.jit(lambda field, t, x: field(t, x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", (SHARED, ALBERT), ids=("shared", "groups"))
def test_a_step_of_the_particles_is_a_layer_on_the_sphere(config, tmp_path):
    """Without biases, feed-forward and norms a layer is x + v(x), retracted to the sphere, with the field v."""
    tensors = {name: 0 * array if name.endswith("bias") else array for name, array in tensors_of(config).items()}
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    hidden = np.asarray(probe.trace(probe.on_sphere(probe.without_feed_forward(model), 2.5), TEXTS.token_ids).hidden)
    np.testing.assert_allclose(np.linalg.norm(hidden[:, 1:], axis=-1), 2.5, rtol=1e-12)
    field = probe.particle_field(model, 2.5)
    flat = eqx.tree_at(lambda field: field.space, field, cjx.Euclidean())
    for layer in (1, 2):
        for text in hidden[:2]:
            x = jnp.asarray(text[layer] / 2.5)
            after = np.asarray(x) + moved(flat, layer + 0.5, x)
            after = after / np.linalg.norm(after, axis=1, keepdims=True)
            np.testing.assert_allclose(after, text[layer + 1] / 2.5, rtol=0, atol=1e-12)


def test_parts_are_removed(model, tensors):
    """The network equals loops over words without feed-forward but with both norms, and without norms."""
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden[2])
    silent = tensors | {
        f"{LAYER}ffn_output.{name}": 0 * tensors[f"{LAYER}ffn_output.{name}"] for name in ("weight", "bias")
    }
    expected, _ = networks.albert_layer(hidden[0], silent, LAYER, 3, [True] * 8, "gelu_new", 1e-12)
    found = np.asarray(probe.trace(probe.without_feed_forward(model), *TEXTS).hidden[2])
    np.testing.assert_array_equal(found[0], hidden[0])
    np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-12)
    map_ = lambda name, x: networks.linear(x, tensors[f"{LAYER}{name}.weight"], tensors[f"{LAYER}{name}.bias"])
    x = hidden[0]
    heads = networks.attention(
        *(map_(f"attention.{name}", x) for name in ("query", "key", "value")), 3, 0.5, [True] * 8
    )
    x = x + map_("attention.dense", heads[0])
    x = x + map_("ffn_output", np.vectorize(lambda v: networks.act("gelu_new", v))(map_("ffn", x)))
    found = np.asarray(probe.trace(probe.without_norms(model), *TEXTS).hidden[2])
    np.testing.assert_allclose(found[1], x, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(probe.trace(model, *TEXTS).hidden[2], hidden)  # the original model is unchanged


@pytest.mark.exhaustive
def test_parts_of_t5_are_removed(tmp_path):
    """The network equals loops over words, for a block whose feed-forward is zero and for a block without norms."""
    tensors = tensors_of(T5)
    model = probe.load(write(tmp_path, T5, tensors), dtype=jnp.float64)
    bias = networks.t5_bias(8, tensors["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"], 8, 10)
    before = np.asarray(probe.trace(model, TEXTS.token_ids[:1]).hidden[0])[0]
    silent = {name: 0 * array if ".wo." in name else array for name, array in tensors.items()}
    for changed, arrays, normed in (
        (model, tensors, True),
        (probe.without_feed_forward(model), silent, True),
        (probe.without_norms(model), tensors, False),
    ):
        expected, _ = networks.t5_block(
            before, arrays, "encoder.block.0.", 2, [True] * 8, bias, "gelu_new", True, 1e-6, normed
        )
        found = np.asarray(probe.trace(changed, TEXTS.token_ids[:1]).hidden[0])[1]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-11)
    lengths = np.array([2.0, 3.0, 2.5])
    with as_a_user():
        for call in (lambda radius: probe.on_sphere(model, radius), lambda radius: probe.particle_field(model, radius)):
            with pytest.raises(ValueError, match="radius must be a number, or one for each of 3 blocks"):
                call(np.ones(2))
            with pytest.raises(ValueError, match="radius must be positive"):
                call(lengths - 2)


@pytest.mark.exhaustive
def test_a_step_of_the_particles_is_a_block_of_t5_on_the_sphere(t5):
    """With position bias, one norm per block and more depth than trained, a block is x / r + v(x / r)."""
    lengths, order = np.array([2.0, 3.0, 2.5]), [0, 1, 2, 0]
    held = probe.on_sphere(probe.without_feed_forward(t5), lengths)
    hidden = np.asarray(probe.trace(held, TEXTS.token_ids).hidden)
    field = probe.particle_field(t5, lengths, n=8)
    flat = eqx.tree_at(lambda field: field.space, field, cjx.Euclidean())
    unbiased = eqx.tree_at(lambda field: field.factors.bias, flat, None)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    for text in hidden[:2]:
        for layer, block in enumerate(order):
            x = jnp.asarray(unit(text[layer]))
            after = np.asarray(x + flat(layer + 0.5, x, None))
            if layer < 3:
                np.testing.assert_allclose(after * lengths[block], text[layer + 1], rtol=0, atol=1e-5)
                assert np.abs(after - np.asarray(x + unbiased(layer + 0.5, x, None))).max() > 1e-3
            else:  # the last norm scales the output
                scale = np.asarray(t5.network.norm.scale[...])
                np.testing.assert_allclose(unit(after * scale), unit(text[4]), rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_what_is_fitted_to_other_texts_is_measured_on_these(model):
    """Time and beta equal a fit to the other texts, and the curves belong to the given texts."""
    other = many_texts(2, 8, seed=8)
    options = {"fit_steps": 3, "batch_size": 2, "steps_per_layer": 2}
    apart = probe.bridge(model, TEXTS, fit_on=other, **options)
    there = probe.bridge(model, other, **options)
    np.testing.assert_allclose((apart.time_per_layer, apart.beta), (there.time_per_layer, there.beta), rtol=3e-2)
    particles = Particles.make(model, TEXTS, apart.radius, 2, 2)
    expected = curves(particles, np.log([apart.time_per_layer, apart.beta]))
    np.testing.assert_allclose(apart.curves["fitted"].values, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(apart.curves["particles"].values, curves(particles, np.zeros(2)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(particles.predicted(np.array([0.3, -0.1])), curves(particles, [0.3, -0.1]), atol=1e-12)
    assert len(apart.losses) == 4 and not apart.converged


@pytest.mark.exhaustive
def test_a_killed_bridge_goes_on_bit_for_bit(model, tmp_path):
    """A fit that was killed or ended after fewer steps resumes with the same bits; other settings are refused."""

    class Killed(Exception):
        pass

    def stops(line):
        if line.startswith("step 2 of"):
            raise Killed

    options = {"fit_on": many_texts(2, 8, seed=8), "batch_size": 2, "steps_per_layer": 2}
    whole = probe.bridge(model, TEXTS, fit_steps=4, **options)
    with pytest.raises(Killed):
        probe.bridge(model, TEXTS, fit_steps=4, store=tmp_path, say=stops, **options)
    for steps, said in ((2, []), (4, [])):
        again = probe.bridge(model, TEXTS, fit_steps=steps, store=tmp_path, say=said.append, **options)
        assert "resuming the fit after step 2" in said
        np.testing.assert_array_equal(again.losses, whole.losses[: steps + 1])
    assert (again.time_per_layer, again.beta) == (whole.time_per_layer, whole.beta)
    for name, curve in whole.curves.items():
        np.testing.assert_array_equal(again.curves[name].values, curve.values)
    with as_a_user(), pytest.raises(ValueError, match="store must be of this run with first_step = 0.2"):
        probe.bridge(model, TEXTS, fit_steps=4, first_step=0.2, store=tmp_path, **options)


def curves(particles, log_scales):
    return particles.curves(np.asarray(log_scales))[0]


@pytest.mark.exhaustive
def test_the_derivative_is_that_of_the_curve(particles):
    """The exact derivative equals central differences of fourth order, over batches of which the last is padded."""
    at, step = np.array([0.1, -0.2]), 1e-3
    there, slopes = particles.curves(at)
    assert slopes.shape == (*there.shape, 2) == (3, 5, 2)
    for k in range(2):
        move = step * np.eye(2)[k]
        near, far = ((curves(particles, at + s * move) - curves(particles, at - s * move)) for s in (1, 2))
        np.testing.assert_allclose(slopes[..., k], (8 * near - far) / (12 * step), rtol=1e-7, atol=1e-10)


@pytest.mark.exhaustive
def test_what_was_planted_is_found(particles):
    """The fit recovers the time and beta of a curve of particles; its loss falls, and its best step is kept."""
    planted = np.array([-0.4, 0.3])
    target = curves(particles, planted)
    fit = fit_scales(particles, target, 30, 0.5, lambda line: None)
    assert fit.converged and len(fit.losses) < 12 and fit.losses.min() < 1e-6 * fit.losses[0]
    np.testing.assert_allclose(fit.log_scales, planted, atol=1e-3)
    np.testing.assert_array_equal(fit.best, curves(particles, fit.log_scales))
    assert np.mean((fit.best - target) ** 2) == fit.losses.min()
    np.testing.assert_array_equal(fit.start, curves(particles, np.zeros(2)))
    few = fit_scales(particles, target, 2, 0.5, lambda line: None)
    assert not few.converged and len(few.losses) == 3
    bold = fit_scales(particles, target, 30, 50.0, lambda line: None)
    assert bold.converged and len(bold.losses) < len(fit.losses)
    np.testing.assert_allclose(bold.log_scales, planted, atol=1e-3)


class _Drawn:
    """A substitute for particles: its curves are 1 + time + beta, and not finite at large times."""

    steps_per_layer = 1

    def curves(self, log_scales):
        time, beta = np.exp(log_scales)
        if time > 1.5:
            return np.full((2, 3), np.nan), np.full((2, 3, 2), np.nan)
        curves = np.stack([np.full((2, 3), beta), np.full((2, 3), time)], axis=-1)
        return 1 + curves.sum(axis=-1), curves[..., ::-1]


def test_the_fit_ends_at_the_edge_and_turns_back_from_infinity():
    """Curves above their target drive time and beta to zero; overflowing steps are undone, without convergence."""
    fit = fit_scales(_Drawn(), np.full((2, 3), 0.5), 60, 0.5, lambda line: None)
    assert fit.converged and len(fit.losses) < 20 and 0.25 < fit.losses.min() < 0.251
    fit = fit_scales(_Drawn(), np.full((2, 3), 6.0), 30, 3.0, lambda line: None)
    assert np.isinf(fit.losses).any() and not fit.converged and 4 < fit.losses.min() < 0.6 * fit.losses[0]
    assert np.exp(fit.log_scales[0]) < 1.5


def test_the_bridge(model):
    """All curves start at the same number and have errors over texts, and the fit is better than its start."""
    said = []
    found = probe.bridge(model, TEXTS, fit_steps=5, batch_size=3, steps_per_layer=1, say=said.append)
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden)
    each = np.array(
        [[np.mean(reference.cosines(x, mask)) for x in text] for text, mask in zip(hidden, TEXTS.mask, strict=True)]
    )
    np.testing.assert_allclose(found.network.values, each, rtol=0, atol=1e-12)
    squares = [
        [(x[mask] ** 2).sum(-1).mean() for x in text[:-1]] for text, mask in zip(hidden, TEXTS.mask, strict=True)
    ]
    assert found.radius == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-12)
    assert set(found.curves) == {"without feed-forward", "without norms", "on the sphere", "particles", "fitted"}
    for curve in found.curves.values():
        assert curve.values is not None and curve.values.shape == (3, 5)
        np.testing.assert_allclose(curve.values[:, 0], each[:, 0], rtol=0, atol=1e-12)
    difference = found.curves["fitted"].values - each
    np.testing.assert_allclose(found.difference("fitted").mean, difference.mean(axis=0), rtol=0, atol=1e-14)
    apart = found.curves["fitted"].mean - found.network.mean
    assert found.rmse("fitted") == pytest.approx(np.sqrt(np.mean(apart**2)))
    assert found.correlation("fitted") == pytest.approx(
        np.corrcoef(found.curves["fitted"].mean, found.network.mean)[0, 1]
    )
    assert len(said) == len(found.losses) + 2 <= 8 and found.losses.min() < found.losses[0]
    np.testing.assert_allclose(np.mean(difference**2), found.losses.min(), rtol=1e-9)


def test_bad_arguments(model):
    ones = jnp.ones((2, 5, 3))
    wild = dataclasses.replace(model, network=nnx.clone(model.network))
    for block in wild.network.blocks():
        block.attention.value.kernel[...] = 1e200 * block.attention.value.kernel[...]
        block.attention.output.kernel[...] = 1e200 * block.attention.output.kernel[...]
    fit = lambda: fit_scales(Particles.make(wild, TEXTS, 9.0, 3, 2), np.zeros((3, 5)), 1, 0.5, lambda line: None)
    bridge = lambda **options: lambda: probe.bridge(model, TEXTS, **options)
    factored = lambda **more: cjx.MultiHeadField.factored(1.0, ones, ones, ones, jnp.ones((2, 3, 5)), **more)
    field, wrong = factored(masses=jnp.ones(4)), factored(bias=jnp.ones((2, 4, 4)))
    assert_refused(
        (bridge(fit_steps=-1), "fit_steps must be an integer from 0 to 2147483647, but it is -1"),
        (bridge(steps_per_layer=0), "steps_per_layer must be an integer from 1 to 2147483647, but it is 0"),
        (bridge(first_step=0.0), "first_step must be a finite number above 0 and at most 10, but it is 0.0"),
        (fit, "particles must stay finite, .* larger steps_per_layer than 2, or load"),
        (lambda: probe.on_sphere(model, 0.0), "radius must be positive, but it is 0.0"),
        (lambda: wrong.check(6, 5), r"bias must be \(2, 6, 6\) for 2 heads and 6 tokens"),
        (lambda: field.check(4, 4), r"query must be \(h, 4, k\) .*; pass tokens of the hidden size"),
        (lambda: field.check(6, 5), "masses must hold one mass for each of the 6 tokens"),
    )


@pytest.mark.exhaustive
def test_a_block_that_is_applied_twice_has_one_radius(t5):
    """The radius is the root mean, over texts and over the layers of a block, of the median squared norm of inputs."""
    found = probe.bridge(t5, TEXTS, fit_steps=1, batch_size=3, steps_per_layer=1)
    hidden = np.asarray(probe.trace(t5, *TEXTS).hidden)
    squares = [[np.median((x[m] ** 2).sum(-1)) for x in text[:4]] for text, m in zip(hidden, TEXTS.mask, strict=True)]
    first, second, third, again = np.mean(squares, axis=0)
    np.testing.assert_allclose(found.radius, np.sqrt([(first + again) / 2, second, third]), rtol=1e-12)
