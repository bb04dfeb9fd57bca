"""Results convert to tables with named axes, and to files that return the same results."""

import numpy as np
import pytest

import clusterjax.probe.measures.table as table
from clusterjax import probe
from tests.probe_cases import IDS, MASK, WORDS, assert_refused, tiny


TEXTS = probe.Encoded(IDS.astype(np.int32), WORDS)


NAMES = (
    "Activation", "AttentionSinks", "Average", "Bridge", "CausalTrace", "Comparison", "Controls", "Directions",
    "EnergyBudget", "FirstToken", "Generated", "HeadClusters", "HeadCorrelations", "HeadSigns", "NextWords",
    "ParameterCounts", "Place", "PositionHeads", "Similarity", "Survey", "Trace", "ValueSpectra",
)  # fmt: skip


def results():
    """A result of every kind, each with its number of rows, and a field with the axes of that field."""
    model = tiny("gpt2")
    similarity = probe.similarity_histograms(model, TEXTS, bins=4, quantiles=(0.5,))
    heads = probe.head_correlations(model, TEXTS, clusters=1, replicates=2)
    comparison = probe.Comparison(np.zeros(4), np.ones(4), np.full(4, np.inf), 2.0)
    average = similarity.cosine
    return {
        "Similarity": (similarity, 4, ("density", ("level", "bin"))),
        "FirstToken": (probe.first_token(model, TEXTS), 4, ("ratio_error", ("level",))),
        "AttentionSinks": (
            probe.attention_sinks(model, TEXTS), 9, ("mass_of_texts", ("target", "text", "layer", "head"))
        ),
        "PositionHeads": (probe.position_heads(model, TEXTS), 36, ("excess", ("target", "layer", "head"))),
        "HeadCorrelations": (heads, 3, ("correlation", ("layer", "head", "head_2"))),
        "HeadClusters": (heads.clusters, 9, ("labels", ("layer", "head"))),
        "HeadSigns": (probe.head_signs(model), 9, ("case", ("block", "head"))),
        "ValueSpectra": (probe.value_spectra(model), 9, ("beta", ("block", "head"))),
        "Directions": (probe.value_directions(model, 0, top=2), 2, ("vectors", ("direction", "dim"))),
        "Place": (
            probe.place_checkpoints([model, model], TEXTS), 18,
            ("beta_of_texts", ("text", "checkpoint", "layer", "head")),
        ),
        "Activation": (
            probe.token_activation(model, probe.Encoded(IDS[:1], MASK[:1])), 72,
            ("received", ("layer", "head", "token")),
        ),
        "EnergyBudget": (probe.energy_budget(model, TEXTS, margin=True), 3, ("margin", ("level",))),
        "CausalTrace": (probe.CausalTrace(np.zeros((4, 8)), -1.0, -2.0), 32, ("restored", ("level", "token"))),
        "Trace": (probe.trace(model, *TEXTS), 1728, ("attention", ("text", "layer", "head", "token", "token_2"))),
        "ParameterCounts": (probe.parameter_counts(model), 1, ("norms", ())),
        "Comparison": (comparison, 4, ("z", ("level",))),
        "Controls": (
            probe.Controls(similarity, similarity, (similarity, similarity), comparison, comparison, -1, 2.0, None,
                           np.arange(3)),
            4, ("random.1.cosine", ("level",)),
        ),
        "Survey": (
            probe.survey(model, TEXTS, probe.Measure(level=lambda hidden, mask: {"size": abs(hidden).sum((1, 2))})), 4,
            ("levels.size", ("level",)),
        ),
        "Bridge": (
            probe.Bridge(average, {"fitted": average}, 1.0, 2.0, np.zeros(2), np.ones(3)), 4, ("network", ("level",))
        ),
        "Average": (average, 1, ("values", ("text", "values_axis_0"))),
        "NextWords": (probe.NextWords(["a", "b"], np.array([1, 2]), np.array([0.5, 0.25])), 2, ("words", ("rank",))),
        "Generated": (
            probe.Generated(["ab"], np.array([[1, 2]]), np.array([[-0.5, -1.0]]), np.array([2])), 1,
            ("log_probs", ("text", "new_token")),
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def every():
    assert probe.causal_trace  # the class is registered when the function is imported
    return results()


def assert_equal(found, expected):
    """The classes are the same, and the numbers equal bit for bit."""
    assert type(found) is type(expected)
    if hasattr(expected, "_fields") or hasattr(expected, "__dataclass_fields__"):
        for name, value in table._fields(expected):
            assert_equal(getattr(found, name), value)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype


def test_every_result_has_a_table(every):
    assert set(every) == set(table._TABLED) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_axes_rows_and_files(every, name, tmp_path):
    result, rows, (field, axes) = every[name]
    data = result.to_xarray()
    assert data.attrs["result"] == name and data[field].dims == axes
    frame = result.to_pandas()
    assert len(frame) == rows and len(frame.columns) > 0
    file = tmp_path / "result.safetensors"
    result.save(file)
    found = type(result).load(file)
    assert_equal(found, result)


def test_numbers_of_a_table_are_those_of_the_result(every):
    sinks = every["AttentionSinks"][0]
    data, frame = sinks.to_xarray(), sinks.to_pandas()
    expected = sinks.excess["first"].mean[2, 1]
    assert data["excess"].sel(target="first", layer=2, head=1) == expected == frame.loc[("first", 2, 1), "excess"]
    assert data["excess_error"].sel(target="first", layer=2, head=1) == sinks.excess["first"].error[2, 1]
    np.testing.assert_array_equal(data["mass_of_texts"].sel(target="first"), sinks.mass["first"].values)
    first = every["FirstToken"][0]
    for name, expected in (("ratio", first.ratio.mean), ("ratio_error", first.ratio.error)):
        np.testing.assert_array_equal(first.to_xarray()[name], expected)
        np.testing.assert_array_equal(first.to_pandas()[name], expected)


def test_files_that_are_none(every, tmp_path):
    first, file = every["FirstToken"][0], tmp_path / "first"
    first.save(file)
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    (tmp_path / "foreign").write_text("notes")
    assert_refused(
        (lambda: probe.Similarity.load(file), "path must be a result of Similarity, but '.*' is of FirstToken"),
        (lambda: probe.FirstToken.load(tmp_path / "damaged"), "path must be as it was written, but .* is damaged"),
        (lambda: probe.FirstToken.load(tmp_path / "nowhere"), "path must be a result of this library, but"),
        (lambda: first.save(tmp_path / "foreign"), "path must"),
        (lambda: first.save(3), "path must be"),
    )
    assert (tmp_path / "foreign").read_text() == "notes"
