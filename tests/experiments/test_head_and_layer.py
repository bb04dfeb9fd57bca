"""The head, layer and depth of a network that a figure shows: chosen ones are taken, and missing ones are refused."""

from dataclasses import replace

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments import reproduce
from clusterjax.experiments.figures import albert_spectra
from clusterjax.experiments.figures.albert_spectra import Parameters, caption, spectra_of
from clusterjax.experiments.figures.figure1 import with_depth
from clusterjax.experiments.framework.figure import claims_of, stated
from clusterjax.experiments.framework.verdict import Subject
from clusterjax.experiments.shared.networks import further, network_of
from clusterjax.experiments.shared.trained_values import TrainedValues, leading_block, trained_values
from tests.network_cases import CONFIG, checkpoint
from tests.probe_cases import T5


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """A network whose three layers have weights of their own, with two heads of five dimensions each."""
    return checkpoint(tmp_path_factory.mktemp("t5"), T5 | {"vocab_size": 70})


@pytest.fixture(scope="module")
def albert(tmp_path_factory):
    """A network whose four heads have five dimensions each, so that some eigenvalue is real."""
    return checkpoint(tmp_path_factory.mktemp("albert"), CONFIG | {"hidden_size": 20})


def eigenvalues(settings, layer, head):
    """The eigenvalues of the whole map of one head of one layer that need not be zero, from the factors of the map."""
    maps = network_of(settings).model.network.attention_maps()[layer - 1]
    found = np.linalg.eigvals((maps.value[head - 1] @ maps.output[head - 1]).T)
    return found[np.argsort(-np.abs(found))][: maps.value.shape[2]]


@pytest.mark.parametrize(("layer", "head"), [(1, 1), (2, 2), (3, 1)])
def test_the_value_is_that_of_the_head_and_the_layer(layered, layer, head):
    found = trained_values(layered, layer, head)
    wanted = eigenvalues(layered, layer, head)
    assert found.head == head - 1 and found.provenance.startswith(f"layer {layer} of the network")
    np.testing.assert_allclose(found.raw[found.head], leading_block(wanted), rtol=1e-6, atol=1e-9)
    assert abs(found.scale * np.real(wanted).max()) == pytest.approx(1)


def test_no_head_in_particular_is_the_one_with_the_largest_real_part(layered, albert):
    for settings, layer in ((layered, 3), (albert, 1)):
        found = trained_values(settings, layer)
        assert found.head == int(np.argmax(found.top))
        assert trained_values(settings, layer, found.head + 1).matrices.tolist() == found.matrices.tolist()


def test_the_layers_of_an_albert_have_one_value(albert):
    first, last = trained_values(albert, 1, 2), trained_values(albert, 3, 2)
    assert first.matrices.tolist() == last.matrices.tolist() and "layer" not in first.provenance


def test_the_depth_of_figure_1_is_that_of_its_parameter(albert):
    assert with_depth(albert) is albert
    deep = with_depth(replace(albert, parameters={"depth": 7}))
    assert deep.depth == 7 and further(network_of(deep).model, deep).num_layers == 7
    assert with_depth(replace(albert, depth=5)).depth == 5, "as `probe --num-layers` sets it"


@pytest.mark.parametrize(
    ("figure", "parameters", "words"),
    [
        (
            "figure1",
            {"depth": 3},
            "depth must be an integer from 4 to 1000000, but it is 3; give more than the 3 layers",
        ),
        ("figure2", {"layer": 4}, "layer must be an integer from 0 to 3, but it is 4"),
        ("figure7", {"head": 5}, "head must be an integer from 0 to 4, but it is 5"),
        ("figure8", {"layer": 9}, "layer must be an integer from 1 to 3, but it is 9"),
        ("albert-spectra", {"layer": 4}, "layer must be an integer from 1 to 3, but it is 4"),
    ],
)
def test_what_the_network_has_not_is_refused_before_anything_is_computed(albert, tmp_path, figure, parameters, words):
    with pytest.raises(ValueError, match=words):
        reproduce([figure], tmp_path / "out", replace(albert, parameters=parameters), say=lambda line: None)
    assert not (tmp_path / "out").exists()


def test_spectra_of_another_layer(layered):
    """Each number belongs to the chosen layer, and the identities hold for this layer."""
    found = network_of(layered)
    spectra, block = probe.value_spectra(found.model), 2
    m = spectra_of(found, 0, Parameters(layer=3))
    np.testing.assert_array_equal(m.value, spectra.value[block])
    np.testing.assert_array_equal(m.forms, spectra.query_key[block])
    np.testing.assert_array_equal(m.beta, spectra.beta[block])
    assert not np.allclose(m.value, spectra_of(found, 0).value)
    assert m.readings, "words along real eigenvalues of that layer"
    for reading in m.readings:
        assert np.isclose(m.value[reading.head], reading.eigenvalue, rtol=1e-6).any()
    assert all(claim.holds for claim in stated(claims_of(vars(albert_spectra)), m) if claim.kind == "identity")
    assert "in layer 3 of 3 with weights of their own" in caption(m, ())


def test_cases_of_heads():
    """A pair turns unless it repels, in either order of its two eigenvalues."""
    spectra = [np.array([0.1 - 2j, 0.1 + 2j, 0.05]), np.array([-0.1 + 2j, -0.1 - 2j, -1.0]), np.array([0.2, 0.1, -9.0])]
    matrices = np.stack([leading_block(one) for one in spectra])
    some = TrainedValues(matrices, spectra, 0, "a network", 4.0, Subject("it", "a network"))
    assert some.cases.tolist() == ["rotating", "repulsive", "attractive"]
    np.testing.assert_array_equal(some.cases == "repulsive", some.repelling)


def test_leading_block_has_the_leading_eigenvalues():
    block = leading_block(np.array([2 + 1j, 2 - 1j, 3.0, -4.0, 1.0]))
    np.testing.assert_allclose(block, [[3, 0, 0], [0, 2, -1], [0, 1, 2]])
    np.testing.assert_allclose(leading_block(np.array([5.0, 4.0, 2 + 1j, 2 - 1j, 1.0])), np.diag([5.0, 4.0, 1.0]))
    with pytest.raises(ValueError, match="must fill 3 rows"):
        leading_block(np.array([1.0, 2.0]))
