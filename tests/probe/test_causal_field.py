"""The particles of causal networks and the bridge to them: masks, rotation and grouped heads equal double loops."""

import json

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import safetensors.numpy
import scipy.linalg
from safetensors import safe_open

import clusterjax as cjx
from clusterjax import probe, transformer
from clusterjax.probe.measures.survey import _FILE, _sizes_said, fingerprint
from clusterjax.probe.particle_bridge.bridge import UNIFORM, Particles, _marks, fit_scales
from tests.helpers import as_a_user, sphere_tokens
from tests.probe_cases import GPT2, LLAMA, SHARED, many_texts, tensors_of, write
from tests.reference import fields as reference, networks, probes


N, D = 6, 12
TEXTS = many_texts(3, N)
RADII = np.array([4.0, 6.0, 5.0])
CAUSAL = lambda i, j: j <= i
WINDOW = lambda i, j: i - 3 < j <= i
X = sphere_tokens(11, N, D)
# Repeated and opposite tokens, where other tokens coincide with the first token.
HEAPS = jnp.stack([X[0], X[0], -X[0], X[1], X[1], X[0]])
CONFIGS = {
    # Windows in some layers, which the particles ignore; windows in all layers, which the particles have; no windows.
    "llama, some windows": (LLAMA, CAUSAL),
    "llama, windows": (LLAMA | {"layer_types": ["sliding_attention"] * 3}, WINDOW),
    "gpt2": (GPT2, CAUSAL),
}
ROTATED = "llama, some windows"


def tensors_of_small(config):
    """The maps are so small that a layer rotates the particles only a little."""
    kept = lambda name: "norm" in name or "ln_" in name or "embed" in name or name.startswith("w")
    return {name: array if kept(name) else 0.5 * array for name, array in tensors_of(config).items()}


def velocity_of(config, tensors, allowed, beta=1.0, turned=True, radii=RADII):
    """velocity(t, x) of the particles of a network, by loops over its tensors; layer k acts from t = k on."""

    def velocity(t, x):
        block = min(int(t), 2)
        if config["model_type"] == "gpt2":
            at = lambda name: np.asarray(tensors[f"h.{block}.{name}.weight"], float)
            maps = (*np.split(at("attn.c_attn").T, 3), at("attn.c_proj").T)
            return reference.block_of_decoder(x, at("ln_1"), *maps, 3, 3, allowed, radii[block], beta)
        at = lambda name: np.asarray(tensors[f"model.layers.{block}.{name}.weight"], float)
        maps = [at(f"self_attn.{name}_proj") for name in "qkvo"]
        turn = (lambda rows: networks.rotated(rows, 6, LLAMA["rope_parameters"])) if turned else None
        return reference.block_of_decoder(x, at("input_layernorm"), *maps, 4, 2, allowed, radii[block], beta, turn)

    return velocity


@pytest.fixture(scope="module")
def networks_by_name(tmp_path_factory):
    found = {}
    for name, (config, allowed) in CONFIGS.items():
        tensors = tensors_of_small(config)
        model = probe.load(write(tmp_path_factory.mktemp("causal"), config, tensors), dtype=jnp.float64)
        found[name] = model, config, tensors, allowed
    return found


@pytest.fixture(params=CONFIGS)
def network(request, networks_by_name):
    return networks_by_name[request.param]


@pytest.fixture
def rotated(networks_by_name):
    return networks_by_name[ROTATED]


moved = jax.jit(lambda field, t, x: field(t, x))


@pytest.mark.exhaustive_cases("gpt2", "llama, some windows")
def test_velocities_are_double_loops(network):
    """Velocities equal loops in each layer, for several inverse temperatures, on generic tokens and on heaps."""
    model, config, tensors, allowed = network
    for beta, layers in ((1.0, (0, 1, 2)), (0.0, (1,)), (4.0, (2,))):
        field = probe.particle_field(model, RADII, beta=beta, n=N)
        expected = velocity_of(config, tensors, allowed, beta)
        for layer in layers:
            for x in (X, HEAPS):
                found = moved(field, layer + 0.5, x)
                np.testing.assert_allclose(found, expected(layer, np.asarray(x)), rtol=0, atol=1e-12)
    # Attention is not uniform, so that the test would notice another mask or rotation.
    other = velocity_of(config, tensors, lambda i, j: True)(1, np.asarray(X))
    assert np.abs(velocity_of(config, tensors, allowed)(1, np.asarray(X)) - other).max() > 1e-2


def test_without_a_number_of_tokens_places_are_left_out(rotated):
    model, config, tensors, _ = rotated
    found = np.asarray(moved(probe.particle_field(model, RADII), 1.5, X))
    expected = velocity_of(config, tensors, CAUSAL, turned=False)(1, np.asarray(X))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(found - moved(probe.particle_field(model, RADII, n=N), 1.5, X)).max() > 1e-2


@pytest.mark.exhaustive_cases("gpt2", "llama, some windows")
def test_a_mask_that_was_given_is_that_of_the_particles(network):
    """`with_mask` replaces the windows of all layers, both in the particles and in the network."""
    model, config, tensors, _ = network
    for mask, allowed in (
        (cjx.SinkMask(2, 1), lambda i, j: j <= i and (i - j < 2 or j < 1)),
        (cjx.FullMask(), lambda i, j: True),
    ):
        field = probe.particle_field(probe.with_mask(model, mask), RADII, n=N)
        expected = velocity_of(config, tensors, allowed)(2, np.asarray(X))
        np.testing.assert_allclose(moved(field, 2.5, X), expected, rtol=0, atol=1e-12)


def test_a_step_of_the_particles_is_a_layer_of_the_network(tmp_path):
    """Without feed-forward and biases a layer is r (x + v), with v the velocity before its projection."""
    config = CONFIGS["llama, windows"][0]
    # The norm adds eps to the mean square of an entry, which is r^2 / d; the particles have no eps.
    config = config | {"rms_norm_eps": 1e-14}
    tensors = {key: 0 * part if key.endswith("bias") else part for key, part in tensors_of_small(config).items()}
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    held = probe.on_sphere(probe.without_feed_forward(model), RADII)
    hidden = np.asarray(probe.trace(held, TEXTS.token_ids[2:]).hidden[0])
    field = probe.particle_field(model, RADII, n=N)
    flat = eqx.tree_at(lambda field: field.space, field, cjx.Euclidean())
    for layer in (0, 1):
        x = jnp.asarray(hidden[layer] / np.linalg.norm(hidden[layer], axis=1, keepdims=True))
        after = RADII[layer] * (np.asarray(x) + moved(flat, layer + 0.5, x))
        np.testing.assert_allclose(after, hidden[layer + 1], rtol=0, atol=1e-10)


@pytest.mark.exhaustive
def test_the_language_model_of_the_package():
    """In a model with rotary positions and pre-norm blocks the particles have the mask and the angles of the model."""
    model = transformer.LanguageModel.random(
        jr.key(0), 30, D, 2, 20, 2, positions=None, relative=transformer.RotaryPositions(6, 100.0), scale=0.5,
        dtype=jnp.float64,
    )  # fmt: skip
    found = probe.from_language_model(model, name="ours")
    radii = np.array([2.0, 3.0])
    matrices = probe.head_matrices(found)
    side = lambda part: np.concatenate(list(part), axis=1).T
    turn = lambda rows: networks.rotated(rows, 6, {"rope_type": "default", "rope_theta": 100.0})
    for layer in (0, 1):
        # The queries contain the scale 1 / sqrt(k), which the loops apply themselves.
        query = np.sqrt(6) * matrices.scale * side(matrices.query[layer])
        expected = reference.block_of_decoder(
            np.asarray(X), np.ones(D), query, side(matrices.key[layer]), side(matrices.value[layer]),
            matrices.output[layer].reshape(D, D).T, 2, 2, CAUSAL, radii[layer], turn=turn,
        )  # fmt: skip
        velocity = probe.particle_field(found, radii, n=N)(layer + 0.5, X)
        np.testing.assert_allclose(velocity, expected, rtol=0, atol=1e-12)


def curve_of(velocity, start, steps, last):
    """The mean cosines of one text at each level, from particles by loops; the last norm scales the last level."""
    xs = reference.bogacki_shampine(start, velocity, 3, steps)
    xs[-1] = xs[-1] * last
    return [np.mean(probes.cosines(x, np.ones(len(x), bool))) for x in xs]


OPTIONS = {"fit_steps": 3, "batch_size": 3, "steps_per_layer": 2, "uniform": True}


@pytest.mark.exhaustive
def test_the_bridge_of_a_causal_network(rotated):
    """Radii and the curves of the particles, as given, fitted and at beta 0, equal loops from the embedded tokens."""
    model, config, tensors, allowed = rotated
    found = probe.bridge(model, TEXTS, **OPTIONS)
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden)
    each = [[np.mean(probes.cosines(x, word)) for x in text] for text, word in zip(hidden, TEXTS.mask, strict=True)]
    np.testing.assert_allclose(found.network.values, each, rtol=0, atol=1e-12)
    squares = [
        [np.median((x[word] ** 2).sum(axis=1)) for x in text[:3]] for text, word in zip(hidden, TEXTS.mask, strict=True)
    ]
    np.testing.assert_allclose(found.radius, np.sqrt(np.mean(squares, axis=0)), rtol=1e-12)
    last = np.asarray(tensors["model.norm.weight"], float)
    made = {
        "particles": (1.0, 1.0), "fitted": (found.time_per_layer, found.beta), "uniform": (found.time_uniform, 0.0),
    }  # fmt: skip
    for name, (time, beta) in made.items():
        # The time multiplies the velocity, which is proportional to 1 / radius.
        velocity = velocity_of(config, tensors, allowed, beta, radii=found.radius / time)
        for text, word in enumerate(TEXTS.mask):
            start = np.array([reference.unit(x) for x in hidden[text, 0][word]])
            expected = curve_of(velocity, start, 2, last)
            np.testing.assert_allclose(found.curves[name].values[text], expected, rtol=0, atol=1e-10)
    loss = np.mean((found.curves["fitted"].values - np.array(each)) ** 2)
    np.testing.assert_allclose(loss, found.losses.min(), rtol=1e-9)
    assert 0 < found.time_uniform != 1 and found.losses.min() < found.losses[0]


@pytest.mark.exhaustive
def test_beta_stays_zero_where_it_begins(rotated):
    """A fit of the time at beta = 0 recovers the time of such a curve."""
    particles = Particles.make(rotated[0], TEXTS, RADII, 3, 2)
    target = particles.curves(np.array([0.4, -np.inf]))[0]
    fit = fit_scales(particles, target, 20, 0.5, lambda line: None, begin=UNIFORM)
    assert fit.converged and fit.log_scales[1] == -np.inf
    np.testing.assert_allclose(fit.log_scales[0], 0.4, rtol=0, atol=1e-3)


def settings_of(file):
    with safe_open(file, "np") as opened:
        (header,) = opened.metadata().values()
    return json.loads(header)["settings"]


@pytest.mark.exhaustive
def test_the_file_of_a_fit_says_mask_and_rotation(rotated, tmp_path):
    """A file without these marks, such as a file of an earlier version, is refused."""
    options = OPTIONS | {"fit_steps": 1}
    first = probe.bridge(rotated[0], TEXTS, store=tmp_path, **options)
    again = probe.bridge(rotated[0], TEXTS, store=tmp_path, **options)
    assert (again.beta, again.time_uniform) == (first.beta, first.time_uniform)
    file = tmp_path / "fit.safetensors"
    settings, arrays = settings_of(file), safetensors.numpy.load_file(file)
    assert settings["mask"] == "CausalMask" and len(settings["rotated"]) == 64
    assert settings_of(tmp_path / "fit-uniform.safetensors") == settings | {"beta": 0}
    for mark in ("mask", "rotated"):
        _FILE.write(file, arrays, {name: value for name, value in settings.items() if name != mark}, texts=2)
        with as_a_user(), pytest.raises(ValueError, match=f"store must be of this run with {mark} = .*, but"):
            probe.bridge(rotated[0], TEXTS, store=tmp_path, **options)
    with as_a_user(), pytest.raises(ValueError, match="uniform must be True or False, but it is 1"):
        probe.bridge(rotated[0], TEXTS, uniform=1)


def test_marks_of_a_field(networks_by_name, tmp_path):
    """An ALBERT, whose particles are neither causal nor rotated, has no marks, so that older files can be read."""
    albert = probe.load(write(tmp_path, SHARED, tensors_of(SHARED)), dtype=jnp.float64)
    assert _marks(probe.particle_field(albert, 2.0, n=N)) == {}
    model = lambda name: networks_by_name[name][0]
    assert _marks(probe.particle_field(model("gpt2"), RADII, n=N)) == {"mask": "CausalMask"}
    windows, other = (_marks(probe.particle_field(model("llama, windows"), RADII, n=n)) for n in (N, N + 1))
    assert windows["mask"] == "MatrixMask" and windows["rotated"] != other["rotated"]


def test_the_hash_of_a_network_is_that_of_another_process(rotated):
    """The hash depends on the name of the activation of a language model, and not on the address of the function."""
    said = repr(_sizes_said(probe.load("language-model").network.sizes))
    assert "gelu" in said and " at 0x" not in said
    assert _sizes_said(rotated[0].network.sizes) is rotated[0].network.sizes


@pytest.mark.exhaustive
def test_networks_that_differ_in_masks_and_parts_have_files_of_their_own(rotated, tmp_path):
    """The hash of a network also depends on its masks and its knocked-out parts, which are not weights."""
    model = rotated[0]
    texts = probe.Encoded(TEXTS.token_ids, TEXTS.mask)
    changed = [
        model,
        *(probe.with_mask(model, mask) for mask in (cjx.FullMask(), cjx.WindowMask(2), cjx.WindowMask(2, causal=True),
                                                    cjx.SinkMask(2, 1), cjx.MatrixMask(np.tri(N, dtype=bool).T))),
        probe.without(model, "attention"), probe.without(model, "feed_forward"),
        probe.without(model, "attention", layer=0),
    ]  # fmt: skip
    hashes = {fingerprint(one, N) for one in changed}
    assert len(hashes) == len(changed) and fingerprint(model, N) == fingerprint(model, N)
    store = tmp_path / "store"
    measure = probe.Measure(level=lambda hidden, mask: {"sum": jnp.sum(hidden, axis=(1, 2))})
    probe.survey(changed[-2], texts, measure, store=store)
    with as_a_user(), pytest.raises(ValueError, match="store must be of this run with model = "):
        probe.survey(changed[-3], texts, measure, store=store)


@pytest.mark.exhaustive
def test_runs_are_steps_of_double_loops(rotated):
    """`simulate` with the normalised Euler scheme equals loops over all three layers."""
    model, config, tensors, allowed = rotated
    ts = np.array([0.0, 1.0, 2.0, 3.0])
    run = cjx.simulate(
        probe.particle_field(model, RADII, n=N), X, jnp.asarray(ts), solver=cjx.Retract(dfx.Euler()),
        stepsize_controller=dfx.ConstantStepSize(), dt0=0.25,
    )  # fmt: skip
    expected = reference.euler(np.asarray(X), velocity_of(config, tensors, allowed), ts, 0.25)
    np.testing.assert_allclose(run.xs, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 0.1


@pytest.mark.exhaustive
def test_the_first_particle_moves_by_itself(rotated):
    """The first particle follows e^{tV} x / |e^{tV} x| in each layer, V the sum over heads, for any other tokens."""
    model, config, tensors, allowed = rotated
    field, ts = probe.particle_field(model, RADII, n=N), jnp.arange(4.0)
    runs = [
        cjx.simulate(
            field, jnp.concatenate([X[:1], others]), ts,
            stepsize_controller=dfx.PIDController(rtol=1e-10, atol=1e-12, jump_ts=jnp.arange(1.0, 3.0)),
        ).xs[:, 0]
        for others in (X[1:], -2 * X[1:])
    ]  # fmt: skip
    expected = [np.asarray(X[0])]
    for block in range(3):
        # V follows from the tensors: it is (W_O W_V s) sqrt(d) / r, and acts on columns.
        part, output, scale = (
            np.asarray(tensors[f"model.layers.{block}.{name}.weight"], float)
            for name in ("self_attn.v_proj", "self_attn.o_proj", "input_layernorm")
        )
        # Heads 0 and 1 use the first of the two heads of values, heads 2 and 3 the second.
        value = output @ part.reshape(2, 6, D)[[0, 0, 1, 1]].reshape(24, D) * scale
        value = np.sqrt(D) / RADII[block] * value
        moved = velocity_of(config, tensors, allowed)(block, expected[-1][None])[0]
        np.testing.assert_allclose(moved, reference.tangent(expected[-1], value @ expected[-1]), rtol=0, atol=1e-12)
        expected.append(reference.unit(scipy.linalg.expm(value) @ expected[-1]))
    for run in runs:
        np.testing.assert_allclose(run, expected, rtol=0, atol=1e-7)
    # The second particle does depend on others.
    x = jnp.concatenate([X[:1], -2 * X[1:]])
    assert np.abs(np.asarray(field(0.0, X) - field(0.0, x)))[1].max() > 1e-2
