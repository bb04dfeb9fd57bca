"""The case of the theory to which a head belongs, from planted spectra, from the whole matrix, and with its norm."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import probe
from tests.helpers import as_a_user, rotation
from tests.probe_cases import GPT2, LLAMA, SHARED, tensors_of, write


D, K = 12, 4
TURN = lambda real, imaginary: np.array([[real, -imaginary], [imaginary, real]])
SMALL = -0.3 * np.eye(2)
# W_O W_V of each head, in a basis that `planted` makes non-orthogonal.
PLANTED = {
    "attractive": np.diag([0.5, -3.0, 0.2, 0.0]),
    "repulsive": np.block([[TURN(-0.1, 2.0), np.zeros((2, 2))], [np.zeros((2, 2)), SMALL]]),
    "rotating": np.block([[TURN(0.1, 0.4), np.zeros((2, 2))], [np.zeros((2, 2)), SMALL]]),
    "neutral": np.zeros((K, K)),
}
LEADING = {"attractive": 0.5, "repulsive": -0.1 + 2j, "rotating": 0.1 + 0.4j, "neutral": 0}


def planted(cases, scale):
    """The tensors of a GPT-2 whose first block has heads of these cases, which read through a norm of this scale."""
    tensors = {name: np.array(array, "f8") for name, array in tensors_of(GPT2).items()}
    basis, bend = np.asarray(rotation(5, D)), np.triu(np.ones((K, K)))
    for h, case in enumerate(cases):
        part, form = basis[:, h * K : h * K + K], bend @ PLANTED[case] @ np.linalg.inv(bend)
        tensors["h.0.attn.c_attn.weight"][:, 2 * D + h * K : 2 * D + h * K + K] = part / np.abs(scale)[:, None]
        tensors["h.0.attn.c_proj.weight"][h * K : h * K + K] = form @ part.T
    tensors["h.0.ln_1.weight"] = scale * np.ones(D)
    return tensors


@pytest.mark.parametrize("cases", (("attractive", "repulsive", "rotating"), ("neutral", "rotating", "attractive")))
def test_what_was_planted_is_found(cases, tmp_path):
    scale = np.linspace(0.5, 2.0, D)
    model = probe.load(write(tmp_path, GPT2, planted(cases, scale)), dtype=jnp.float64)
    found = probe.head_signs(model)
    assert found.case[0].tolist() == list(cases) and found.order.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.leading[0], [LEADING[case] for case in cases], rtol=0, atol=1e-6)
    assert [found.count(case) for case in cases] == [int((found.case == case).sum()) for case in cases]
    with as_a_user(), pytest.raises(ValueError, match="case must be one of 'attractive', .* but it is 'real'"):
        found.count("real")


def test_the_norm_may_turn_the_sign(tmp_path):
    """A scale of -1 turns attraction into repulsion; `value_spectra` ignores the scale."""
    plain = planted(("attractive", "repulsive", "rotating"), np.ones(D))
    turned = plain | {"h.0.ln_1.weight": -np.ones(D)}
    one, other = (
        probe.load(write(tmp_path / name, GPT2, tensors), dtype=jnp.float64)
        for name, tensors in (("plain", plain), ("turned", turned))
    )
    found = probe.head_signs(other)
    # The eigenvalues of the heads are -0.5, 3, -0.2, 0, then 0.1 ± 2i, 0.3, 0.3, and -0.1 ± 0.4i, 0.3, 0.3.
    assert found.case[0].tolist() == ["attractive", "attractive", "attractive"]
    np.testing.assert_allclose(found.leading[0], [3.0, 0.3, 0.3], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(probe.value_spectra(one).value, probe.value_spectra(other).value)


@pytest.mark.parametrize("config", (SHARED, GPT2, LLAMA), ids=("albert", "gpt2", "qwen2"))
def test_the_whole_matrices_have_the_same_leading_eigenvalues(config, tmp_path):
    """The leading eigenvalue is found in V, (d, d), whose further eigenvalues are zero, in the order of the blocks."""
    tensors = tensors_of(config)
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    found, matrices = probe.head_signs(model), probe.head_matrices(model)
    name = {"gpt2": "h.{}.ln_1.weight", "qwen2": "model.layers.{}.input_layernorm.weight"}.get(config["model_type"])
    for block in range(len(matrices.value)):
        scale = np.ones(D) if name is None else tensors[name.format(block)].astype(float)
        for head in range(matrices.value.shape[1]):
            value = (scale[:, None] * matrices.value[block, head] @ matrices.output[block, head]).T
            whole = np.linalg.eigvals(value)
            # The smallest of the d eigenvalues are zero up to rounding.
            kept = whole[np.argsort(-np.abs(whole))][: matrices.value.shape[3]]
            top = kept[np.argmax(kept.real)]
            # A complex pair is represented by its eigenvalue with positive imaginary part.
            expected = (top.real, abs(top.imag))
            leading = found.leading[block, head]
            np.testing.assert_allclose((leading.real, leading.imag), expected, rtol=0, atol=1e-9)
            words = "repulsive" if top.real < 0 else "rotating" if abs(top.imag) > 1e-6 else "attractive"
            assert found.case[block, head] == words
