"""The places of heads on the phase diagram, and recorded weights instead of a network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import probe
from clusterjax.probe.particle_bridge.bridge import Particles
from tests.helpers import as_a_user
from tests.probe_cases import (
    CONFIGS,
    GPT2,
    IDS,
    WORDS,
    assert_refused,
    assert_same,
    kinds,
    tensors_of,
    tiny,
    tiny_tensors,
    write,
)


TEXTS = probe.Encoded(IDS.astype(np.int32), WORDS)
FIELDS = ("beta", "eigenvalue", "rotation", "layer_beta", "layer_eigenvalue", "layer_rotation", "radius")
# Words keep their order; padding is placed between and before words.
PLACES = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [5, 0, 1, 6, 2, 7, 3, 4], [3, 4, 5, 6, 0, 1, 7, 2]])


def moved(array, axis):
    """The array with the tokens of text k, along `axis`, in the order `PLACES[k]`."""
    return np.stack([np.take(array[k], PLACES[k], axis=axis - 1) for k in range(3)])


def maps_of(kind, layer):
    """W_Q, W_K, W_V and W_O of a layer as (d, heads k) and (heads k, d), its scale of scores, and the scale of the norm
    before its attention, from the tensors.
    """
    tensors = {name: array.astype(float) for name, array in tiny_tensors(kind).items()}
    if kind == "gpt2":
        whole, output = tensors[f"h.{layer}.attn.c_attn.weight"], tensors[f"h.{layer}.attn.c_proj.weight"]
        return *np.split(whole, 3, axis=1), output, 0.5, tensors[f"h.{layer}.ln_1.weight"]
    if kind == "t5":
        part = f"encoder.block.{layer}.layer.0."
        maps = [tensors[f"{part}SelfAttention.{name}.weight"].T for name in "qkvo"]
        return *maps, 1.0, tensors[f"{part}layer_norm.weight"]
    # The eight layers are two groups of two layers, and each group is applied twice in a row.
    group = layer // 4
    part = f"encoder.albert_layer_groups.{group}.albert_layers.{layer % 2}.attention."
    return *(tensors[f"{part}{name}.weight"].T for name in ("query", "key", "value", "dense")), 0.5, None


def leading(matrix, rank):
    """The eigenvalue of largest real part among the `rank` largest; a complex pair has positive imaginary part."""
    values = np.linalg.eigvals(matrix)
    kept = values[np.argsort(-np.abs(values))][:rank]
    best = kept[np.argmax(kept.real)]
    return best.real, abs(best.imag)


def expected(kind):
    """All numbers of every text, layer and head by name, by loops over pairs of coordinates."""
    model, heads = tiny(kind), tiny(kind).num_heads
    hidden, d = np.asarray(probe.trace(model, *TEXTS).hidden), 12
    found = {name: np.zeros((3, model.num_layers, heads)) for name in FIELDS[:3]}
    found |= {name: np.zeros((3, model.num_layers)) for name in FIELDS[3:]}
    for text in range(3):
        for layer in range(model.num_layers):
            query, key, value, output, scale, norm = maps_of(kind, layer)
            lengths = [sum(x * x for x in hidden[text, layer, i]) for i in range(8) if WORDS[text, i]]
            r = np.sqrt(np.median(lengths) if norm is not None else np.mean(lengths))
            read, write_ = (np.full(d, r), np.ones(d)) if norm is None else (np.sqrt(d) * norm, np.sqrt(d) * norm / r)
            k, whole = query.shape[1] // heads, np.zeros((d, d))
            for head in range(heads):
                part = slice(head * k, head * k + k)
                form, total = scale * (query[:, part] @ key[:, part].T), 0.0
                for a in range(d):
                    for b in range(d):
                        total += (read[a] * read[b] * (form[a, b] + form[b, a]) / 2) ** 2
                own = (write_[:, None] * (value[:, part] @ output[part])).T
                whole += own
                found["beta"][text, layer, head] = np.sqrt(total / d)
                found["eigenvalue"][text, layer, head], found["rotation"][text, layer, head] = leading(own, k)
            found["layer_beta"][text, layer] = sum(found["beta"][text, layer]) / heads
            found["layer_eigenvalue"][text, layer], found["layer_rotation"][text, layer] = leading(whole, heads * k)
            found["radius"][text, layer] = r
    return found


@pytest.mark.parametrize("kind", kinds("gpt2", "albert", every=("gpt2", "albert", "t5")))
def test_places_are_those_of_the_whole_matrices(kind):
    """The values, their means and their standard errors over texts agree."""
    found = probe.place(tiny(kind), TEXTS)
    for name, values in expected(kind).items():
        average = getattr(found, name)
        np.testing.assert_allclose(average.values, values, rtol=1e-9, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(average.mean, values.mean(0), rtol=1e-9, atol=1e-9, err_msg=name)
        error = values.std(0, ddof=1) / np.sqrt(3)
        np.testing.assert_allclose(average.error, error, rtol=1e-9, atol=1e-9, err_msg=name)
    assert found.checkpoint is None and (found.rotation.mean > 0).any()
    # Numbers that do not depend on the norms of tokens have no error.
    fixed, other = (found.eigenvalue, found.beta) if kind == "albert" else (found.beta, found.eigenvalue)
    assert fixed.error.max() < 1e-12 < 1e-4 < other.error.max()


def test_texts_of_one_unit_are_one():
    found = probe.place(tiny("gpt2"), TEXTS, units=np.array([4, 4, 7]))
    values = found.eigenvalue.values - found.eigenvalue.mean
    error = np.sqrt(2 * ((values[0] + values[1]) ** 2 + values[2] ** 2)) / 3
    np.testing.assert_allclose(found.eigenvalue.error, error, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", (False, True))
def test_a_head_of_the_model_of_the_diagram_is_where_its_numbers_are(norm):
    """For B = beta I and V = lambda I on unit vectors the place is (beta, lambda), as in the flow of the diagram."""
    d, r, beta, value = 4, 3.0, 2.5, 0.25
    hidden = np.random.default_rng(0).normal(size=(2, 2, 5, d))
    hidden *= r / np.linalg.norm(hidden, axis=-1, keepdims=True)
    read, write_ = (np.sqrt(d), np.sqrt(d) / r) if norm else (r, 1.0)
    maps = {"query": beta / read**2, "key": 1.0, "value": value / write_, "output": 1.0}
    weights = {name: (number * np.eye(d))[None, None] for name, number in maps.items()} | {"scale": 1.0}
    recorded = probe.from_arrays(hidden, weights=weights | ({"norm": np.ones((1, d))} if norm else {}))
    found = probe.place(recorded)
    np.testing.assert_allclose(found.beta.mean, [[beta]], rtol=1e-12)
    np.testing.assert_allclose(found.eigenvalue.mean, [[value]], rtol=1e-12)
    np.testing.assert_allclose(found.rotation.mean, 0, atol=1e-12)
    x = jnp.asarray(hidden[0, 0]) / r
    flow = value * cjx.AttentionField(cjx.SoftmaxAttention(beta))(0.0, x, None)
    np.testing.assert_allclose(probe.particle_field(recorded, r)(0.5, x, None), flow, rtol=0, atol=1e-12)


def recorded_of(model, shuffled=False):
    """The trace of the network with its weights, and meaningless numbers at padding."""
    trace = probe.trace(model, *TEXTS)
    hidden = np.where(WORDS[:, None, :, None], trace.hidden, np.nan)
    attention = np.where(WORDS[:, None, None, :, None] & WORDS[:, None, None, None], trace.attention, 7.0)
    mask, causal = WORDS, model.network.sizes.causal
    if shuffled:
        hidden, attention, mask = moved(hidden, 2), moved(moved(attention, 3), 4), moved(WORDS, 1)
    weights = probe.head_matrices(model)
    return probe.from_arrays(hidden, attention, mask, weights=weights, causal=causal, name=model.name)


MEASURES = {
    "place": lambda model, texts: probe.place(model, texts),
    "spectra": lambda model, texts: probe.value_spectra(model),
    "signs": lambda model, texts: probe.head_signs(model),
    "directions": lambda model, texts: probe.value_directions(model, 1, block=1, top=2).eigenvalues,
    "matrices": lambda model, texts: probe.head_matrices(model),
}


@pytest.mark.parametrize("kind", kinds("gpt2", "albert", every=("gpt2", "albert", "t5", "bert", "llama")))
@pytest.mark.parametrize("name", MEASURES)
def test_recorded_weights_are_those_of_the_network(kind, name):
    """The measures agree for recorded weights, wherever the padding is."""
    other = MEASURES[name](tiny(kind), TEXTS)
    for shuffled in (False, True):
        assert_same(MEASURES[name](recorded_of(tiny(kind), shuffled), None), other)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ("gpt2", "albert", "bert"))
def test_the_bridge_of_recorded_arrays(kind):
    """The curves of the network, its particles and the fit agree; networks without parts cannot be run."""
    options = {"fit_steps": 1, "steps_per_layer": 1, "uniform": True, "batch_size": 2}
    network = probe.bridge(tiny(kind), TEXTS, **options)
    found = probe.bridge(recorded_of(tiny(kind), True), **options)
    assert list(found.curves) == ["particles", "fitted", "uniform"]
    kept = network._replace(curves={name: network.curves[name] for name in found.curves})
    assert_same(found, kept)


def test_the_particles_of_arrays_have_the_last_norm():
    """Both kinds of model take the last norm from the file; without a last norm the particles have none."""
    scale = tiny_tensors("gpt2")["ln_f.weight"].astype(float)
    recorded, texts = recorded_of(tiny("gpt2")), probe.Encoded(np.full(WORDS.shape, -1), WORDS)
    make = lambda model, texts: Particles.make(model, texts, np.ones(3), 3, 1)
    for particles in (make(recorded, texts), make(tiny("gpt2"), TEXTS)):
        np.testing.assert_array_equal(particles.last_scale, scale)
    bare = dataclasses.replace(recorded, weights=recorded.weights._replace(last_norm=None))
    assert make(bare, texts).last_scale is None


def test_padding_anywhere_changes_no_place():
    other = probe.Encoded(moved(TEXTS.token_ids, 1), moved(WORDS, 1))
    assert_same(probe.place(tiny("gpt2"), other, batch_size=1), probe.place(tiny("gpt2"), TEXTS))


def test_heads_that_share_keys_and_values():
    """Two keys serve four queries, each two queries in a row; the scale is 1 / sqrt(k)."""
    rng = np.random.default_rng(1)
    hidden, query, output = (rng.normal(size=shape) for shape in ((2, 3, 4, 6), (2, 4, 6, 3), (2, 4, 3, 6)))
    shared = rng.normal(size=(2, 2, 2, 6, 3))
    few = {"query": query, "key": shared[0], "value": shared[1], "output": output}
    every = few | {name: few[name][:, [0, 0, 1, 1]] for name in ("key", "value")} | {"scale": 3**-0.5}
    found, other = (probe.place(probe.from_arrays(hidden, weights=weights)) for weights in (few, every))
    assert_same(found, other)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three checkpoints with names like those of Pythia."""
    root = tmp_path_factory.mktemp("run")
    return [write(root / f"step{step}", GPT2, tensors_of(GPT2, seed)) for seed, step in enumerate((0, 512, 1000))]


def test_along_checkpoints(folders):
    """The first axis contains the checkpoints in order, in arrays and tables."""
    found = probe.place_checkpoints(folders, TEXTS)
    assert found.checkpoint.tolist() == ["step0", "step512", "step1000"]
    models = [probe.load(folder) for folder in folders]
    for k, model in enumerate(models):
        alone = probe.place(model, TEXTS)
        for name in FIELDS:
            one, other = getattr(found, name), getattr(alone, name)
            np.testing.assert_array_equal(one.mean[k], other.mean)
            np.testing.assert_array_equal(one.error[k], other.error)
            np.testing.assert_array_equal(one.values[:, k], other.values)
    assert np.abs(found.eigenvalue.mean[0] - found.eigenvalue.mean[1]).max() > 1e-3
    data, frame = found.to_xarray(), found.to_pandas()
    assert data["beta"].dims == ("checkpoint", "layer", "head")
    assert data["beta_of_texts"].dims == ("text", "checkpoint", "layer", "head")
    assert data["layer_beta"].dims == data["radius_error"].dims == ("checkpoint", "layer")
    assert data["beta"].sel(checkpoint="step512", layer=2, head=1) == found.beta.mean[1, 2, 1]
    assert frame.loc[("step1000", 2, 0), "eigenvalue"] == found.eigenvalue.mean[2, 2, 0] and len(frame) == 27
    assert probe.place_checkpoints([models[1]], TEXTS).beta.mean.shape == (1, 3, 3)


def test_one_network_has_no_axis_of_checkpoints():
    data = probe.place(tiny("gpt2"), TEXTS).to_xarray()
    assert data["beta"].dims == ("layer", "head") and data["layer_rotation"].dims == ("layer",)
    assert data["beta_of_texts"].dims == ("text", "layer", "head") and "checkpoint" not in data


def test_what_does_not_fit_is_refused(folders):
    model = tiny("gpt2")
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden)
    attention, weights = np.asarray(probe.trace(model, *TEXTS).attention), probe.head_matrices(model)._asdict()
    make = lambda **changes: probe.from_arrays(np.nan_to_num(hidden), mask=WORDS, weights=weights | changes)
    bare, whole = probe.from_arrays(hidden, mask=WORDS), make()
    cases = (
        (lambda: probe.place(bare), "model must have the weights of its heads .*; pass weights to from_arrays as well"),
        (lambda: probe.bridge(bare), "model must have the weights of its heads"),
        (lambda: probe.value_spectra(bare), "model must have the weights of its heads"),
        (lambda: probe.particle_field(bare, 1.0), "model must have the weights of its heads"),
        (lambda: probe.bridge(whole, fit_on=TEXTS), "fit_on must be None for recorded arrays"),
        (lambda: probe.place(whole, TEXTS), "texts must be None for recorded arrays"),
        (lambda: probe.place(model), "texts must be"),
        (lambda: probe.place(model, TEXTS, units=[1]), "units must"),
        (lambda: probe.energy_budget(whole, TEXTS), "model must be a Model, .*; pass what load returns"),
        (lambda: probe.on_sphere(whole, 1.0), "model must be a Model"),
        (lambda: probe.particle_field(whole, np.ones(2)), "radius must be a number, or one for each of 3 blocks"),
        (lambda: make(query=np.ones((3, 3, 11, 4))), r"weights\['query'\] must"),
        (lambda: make(key=weights["key"][:2]), r"weights\['key'\] must"),
        (lambda: make(value=weights["value"][:, :2]), r"weights\['value'\] must have heads that queries share evenly"),
        (lambda: make(output=np.full((3, 3, 4, 12), np.nan)), r"weights\['output'\] must be finite"),
        (lambda: make(norm=np.ones(12)), r"weights\['norm'\] must"),
        (lambda: make(scale=0.0), r"weights\['scale'\] must"),
        (lambda: make(order=[0, 1]), r"weights\['order'\] must"),
        (lambda: make(gate=1.0), "weights must have query, key, value, output, but 'gate' is amiss"),
        (lambda: probe.from_arrays(hidden, weights={"query": 1.0}), "weights must have .* 'key' is amiss"),
        (lambda: probe.from_arrays(hidden, weights=3), "weights must be arrays by name"),
        (
            lambda: probe.from_arrays(
                hidden, attention[:, :, :1], WORDS, weights=weights | {"key": weights["key"][:, :1]}
            ),
            r"weights\['query'\] must",
        ),
        (lambda: probe.place_checkpoints([], TEXTS), "checkpoints must be a sequence"),
        (lambda: probe.place_checkpoints(folders[0], TEXTS), "checkpoints must be a sequence"),
        (lambda: probe.place_checkpoints([folders[0], tiny("albert")], TEXTS), "checkpoints must be of one network"),
        (
            lambda: probe.place_checkpoints([folders[0], folders[0] / "nowhere"], TEXTS),
            "checkpoints must each be .*nowhere",
        ),
        (lambda: probe.Place.load(folders[0] / "model.safetensors"), "path must"),
    )
    assert_refused(*cases)


def test_heads_that_no_particle_model_has():
    sizes = {"model_type": "qwen3", "num_hidden_layers": 1} | {
        name: CONFIGS["llama"][name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "head_dim")
    }
    model = probe.from_config(sizes | {"num_key_value_heads": 2, "intermediate_size": 8}, jax.random.key(0))
    with as_a_user(), pytest.raises(ValueError, match="model must have heads that a particle model has, .*norms of q"):
        probe.place(model, TEXTS)


def test_a_store_of_other_weights_is_refused(tmp_path):
    """The weights are part of the identity of a recorded trace."""
    one, store = recorded_of(tiny("gpt2")), tmp_path / "store"
    measure = probe.Measure(level=lambda hidden, mask: {"size": jnp.sum(hidden, axis=(1, 2))})
    probe.survey(one, None, measure, store=store)
    other = probe.from_arrays(
        one.hidden, one.attention, one.mask, weights=one.weights._replace(key=2 * one.weights.key), name=one.name
    )
    with pytest.raises(ValueError, match="store must"):
        probe.survey(other, None, measure, store=store)
