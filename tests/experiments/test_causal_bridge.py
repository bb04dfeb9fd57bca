"""A causal network as particles: the path of the first token against matrix exponentials, and the choice of texts."""

import numpy as np
import pytest
import scipy.linalg

import clusterjax as cjx
from clusterjax import probe
from clusterjax.experiments.figures.causal_bridge import _off_linear, first_path, parts_of, stream_of_first, values_of
from tests.probe_cases import GPT2, LLAMA, many_texts, tensors_of, write
from tests.reference import fields as reference


TEXTS = many_texts(3, 6)
RADII = np.array([4.0, 6.0, 5.0])


@pytest.fixture(scope="module", params=(LLAMA, GPT2), ids=("qwen2", "gpt2"))
def model(request, tmp_path_factory):
    return probe.load(write(tmp_path_factory.mktemp("m"), request.param, tensors_of(request.param)))


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.exhaustive
def test_the_first_token_follows_matrix_exponentials(model):
    """The first token moves by x e^{tV / r} in each layer, with a fitted time or without, or with its own norm."""
    path = first_path(model, TEXTS, RADII, 0.5)
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden, float)[:, :, 0]
    without = np.asarray(probe.trace(probe.without_feed_forward(model), *TEXTS).hidden, float)[:, :, 0]
    matrices, scales = probe.head_matrices(model), model.network.norm_scales()
    whole = [
        sum(
            np.sqrt(12) * np.diag(scales[b]) @ matrices.value[b, h] @ matrices.output[b, h]
            for h in range(model.num_heads)
        )
        for b in range(3)
    ]
    np.testing.assert_allclose(values_of(model), whole, rtol=0, atol=1e-10)
    for text, states in enumerate(hidden):
        start = reference.unit(states[0])
        found = {name: [start] for name in ("particle", "fitted", "own length")}
        for layer in (0, 1):
            times = {"particle": 1 / RADII[layer], "fitted": 0.5 / RADII[layer]}
            times["own length"] = 1 / np.linalg.norm(states[layer])
            for name, time in times.items():
                found[name].append(reference.unit(found[name][-1] @ scipy.linalg.expm(time * whole[layer])))
        found |= {"attention alone": without[text], "embedding": [start] * 3}
        for name, states_of in found.items():
            expected = [cosine(states[layer], states_of[layer]) for layer in range(3)]
            np.testing.assert_allclose(path.cosines[name][text], expected, rtol=0, atol=5e-4)
        turned = [cosine(states[layer], states[layer + 1]) for layer in (0, 1)]
        np.testing.assert_allclose(path.turned[text], turned, rtol=0, atol=1e-5)
    assert path.alone < 1e-5 and path.linear < 1e-5
    seeing = first_path(probe.with_mask(model, cjx.FullMask()), TEXTS, RADII, 1.0)
    assert seeing.alone > 1e-2
    assert np.abs(path.cosines["particle"] - path.cosines["fitted"]).max() > 1e-2


@pytest.mark.exhaustive
def test_what_must_hold_of_the_first_token_can_fail(model):
    """Where the feed-forward part is kept, the first token does not follow the linear map."""
    assert _off_linear(model, stream_of_first(model, TEXTS)[:, :-1]) > 1e-2


def test_texts_are_measured_or_fitted_to():
    ids = np.arange(12)[:, None] * np.ones((1, 8), int)
    for many, fitted in ((12, [4, 9]), (3, [2])):
        texts, others = parts_of(probe.Encoded(ids[:many].astype(np.int32), np.ones((many, 8), bool)), 6)
        assert others.token_ids[:, 0].tolist() == fitted and texts.token_ids.shape == (many - len(fitted), 6)
        assert not set(texts.token_ids[:, 0]) & set(fitted)
