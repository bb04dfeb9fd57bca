"""The influence of places: gradients against differences, patches against a loop, planted profiles, and claims."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from flax import nnx

from clusterjax import probe
from clusterjax.experiments.figures import influence_of_places as file
from clusterjax.experiments.framework.figure import Subject
from clusterjax.experiments.shared.causal import Reading
from clusterjax.experiments.shared.exact import influence_of_place
from tests.causal_cases import WORDS, causal_model
from tests.probe_cases import sizes_like


N = 14
ARTICLES = np.repeat(np.arange(8), 2)
IDS = np.random.default_rng(0).integers(0, WORDS, (len(ARTICLES), N)).astype(np.int32)
P = file.Parameters(parts=4, sampled=1, projections=3, draws=2)


@pytest.fixture(scope="module")
def run():
    texts = probe.Encoded(IDS, np.ones(IDS.shape, bool))
    sizes = sizes_like(
        "llama", vocab_size=WORDS, hidden_size=8, num_heads=4, num_shared=2, head_size=2, intermediate_size=12,
        num_layers=2, max_positions=N, tied=True, spread=0.6,
    )  # fmt: skip
    model = probe.Model(probe.Network(sizes, nnx.Rngs(0), head=True), SimpleNamespace(), "random")
    reading = Reading(model, texts, texts, Subject("texts", "made-up texts"), ARTICLES)
    return file.measure_reading(P, reading, True, 0, lambda line: None)


def test_gradients_are_those_of_finite_differences():
    """The norms are those of differences along every direction of the last state and of the embedding of a token."""
    model, ids = causal_model(), IDS[:5]
    d = model.network.sizes.hidden_size
    # With sqrt(d) times an orthonormal basis, the mean over the directions is the norm itself.
    basis = np.sqrt(d) * np.linalg.qr(np.random.default_rng(1).normal(size=(d, d)))[0]
    found = file.sensitivities(model, ids, np.repeat(basis[:, None], len(ids), axis=1).astype(np.float32))
    assert found.shape == ids.shape
    start = np.asarray(probe.activations(model, ids, place="stream")[:, 0])
    step = 1e-2
    for token in (0, 5, N - 1):
        columns = []
        for k in range(d):
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[:, token, k] += sign * step
                patched = probe.patch(model, probe.Edit("embedding", moved))
                ends.append(np.asarray(probe.trace(patched, ids).hidden[:, -1, -1], np.float64))
            columns.append((ends[0] - ends[1]) / (2 * step))
        np.testing.assert_allclose(found[:, token], np.sqrt(np.sum(np.square(columns), axis=(0, 2))), rtol=2e-3)


@pytest.mark.exhaustive
def test_random_projections_estimate_the_norm():
    model, rng = causal_model(), np.random.default_rng(2)
    d = model.network.sizes.hidden_size
    basis = np.repeat(np.sqrt(d) * np.eye(d)[:, None], 2, axis=1).astype(np.float32)
    many = rng.normal(size=(4000, 2, d)).astype(np.float32)
    exact = file.sensitivities(model, IDS[:2], basis)
    np.testing.assert_allclose(file.sensitivities(model, IDS[:2], many), exact, rtol=0.06)


def test_patches_are_those_of_a_loop():
    """A loop replaces the embedding at one place of one text at a time by that of another token."""
    model, rng = causal_model(), np.random.default_rng(3)
    places = np.stack([file.places_of(N, P, rng) for _ in range(3)])
    others = file.replacements(IDS[:3], np.array([0, 1, 2]), places, rng)
    found = file.divergences(model, IDS[:3], places, others)

    def prediction(model, ids):
        last = np.asarray(probe.trace(model, ids).hidden, np.float64)[:1, -1, -1]
        e = np.exp(last @ np.asarray(model.network.head.decoder.kernel[...], np.float64))[0]
        return e / e.sum()

    for text in range(3):
        p = prediction(model, IDS[text : text + 1])
        for k, place in enumerate(places[text]):
            table = np.asarray(model.network.words.embedding[...])
            edit = probe.Edit("embedding", jnp.asarray(table[others[text, k]]), token=int(place))
            q = prediction(probe.patch(model, edit), IDS[text : text + 1])
            assert found[text, k] == pytest.approx(np.sum(p * np.log(p / q)), rel=1e-3, abs=1e-7)
    assert found.min() > 1e-7


def test_places_are_of_all_parts_and_tokens_of_other_articles():
    rng, ids = np.random.default_rng(4), np.array([[1, 2, 3, 4, 5, 6]] * 2 + [[5, 6, 7, 8, 9, 9]], np.int32)
    for _ in range(20):
        places = file.places_of(N, file.Parameters(parts=4, sampled=2), rng)
        assert places[0] == 0 and places[-1] == N - 1
        inner = zip(places[1:-1].reshape(4, 2), ({1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}), strict=True)
        assert all(set(pair.tolist()) <= part for pair, part in inner)
        at = np.tile([0, 4], (3, 1))
        drawn = file.replacements(ids, np.array([3, 3, 8]), at, rng)
        assert set(drawn[:2].ravel()) <= {5, 6, 7, 8, 9} and 5 not in drawn[:2, 1] and set(drawn[2]) <= set(range(1, 7))


def test_parts_and_units():
    # The inner ones of seven places are the second to the sixth: three in the first part and two in the second.
    found = file.scaled(lambda s, power: s**power, (2.0, 98.0), 7, 2)
    np.testing.assert_allclose(found, [2 * (4 + 9 + 16) / 3, 2 * (25 + 36) / 2])
    values = np.arange(7.0)[None]
    np.testing.assert_array_equal(file.by_part(values, 3), [[1, 3.5, 5.5]])
    # Nine tokens are the first, parts of 3, 2 and 2 places, and the last.
    units = file.in_units(np.array([[14.0, 1, 3.5, 5.5, 28]]), 9)
    np.testing.assert_allclose(units, np.array([[14, 1, 3.5, 5.5, 28]]) / 3)


@pytest.mark.parametrize("rate", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("time", [0.3, 1.0, 4.0])
def test_the_formula_is_the_propagator_of_causal_averages(rate, time):
    """The exponential of a matrix, causal averages with exponential weights, tends to the formula at rate 1 / n."""
    errors = []
    for n in (400, 800):
        i = np.arange(1, n + 1)
        weights = np.where(i[:, None] >= i, np.exp(-rate * (i[:, None] - i) / n), 0)
        row = scipy.linalg.expm(time * weights / weights.sum(axis=1, keepdims=True))[-1]
        # The last entry contains the token's own part, and the first entries do not approach the limit of g at 0.
        inner = slice(n // 20, n - 1)
        errors.append(np.max(np.abs(n * row[inner] / influence_of_place(i / n, rate, time)[inner] - 1)))
    assert errors[1] < 0.03 and errors[1] < 0.6 * errors[0]


def test_the_formula_has_its_limits():
    s = np.linspace(1e-3, 1, 50)
    np.testing.assert_allclose(influence_of_place(s, 3.0, 1e-9), 1e-9 * 3 * np.exp(3 * s) / np.expm1(3), rtol=1e-6)
    assert influence_of_place(np.array([1.0]), 2.0, 0.7)[0] == pytest.approx(0.7 * 2 * np.exp(2) / np.expm1(2))
    with np.errstate(all="raise"):
        assert np.isfinite(influence_of_place(s, file.RATES[1], file.TIMES[1])).all()
    # This is the minimum for lambda = at = 1.
    fine = np.linspace(0.3, 0.9, 60001)
    assert fine[np.argmin(influence_of_place(fine, 1.0, 1.0))] == pytest.approx(0.5925, abs=1e-4)


def test_fits_recover_planted_parameters():
    rng = np.random.default_rng(5)
    planted = file.scaled(influence_of_place, (3.0, 2.5, 0.7), 64, 8)
    found = file.fitted(influence_of_place, planted, 64, file.RATES, file.TIMES)
    np.testing.assert_allclose(found, (3.0, 2.5, 0.7), rtol=1e-3)
    recency = file.scaled(file.exponential, (4.0, 2.0), 64, 8)
    np.testing.assert_allclose(file.fitted(file.exponential, recency, 64, file.RATES), (4.0, 2.0), rtol=1e-4)
    noise = 1e-3 * rng.normal(size=(16, 8))
    fit = file.fit_of(planted + noise, ARTICLES, 64)
    assert fit.explained[0] > 0.999 > fit.explained[1] and fit.gain.above() and fit.gain.units == 4
    assert fit.gain.mean == pytest.approx(fit.explained[0] - fit.explained[1], abs=1e-9)
    assert fit.beyond_constant.mean == pytest.approx(fit.explained[0], abs=1e-9)
    # The fit uses only the articles 0, 2, ....
    other = np.where((ARTICLES % 2 == 1)[:, None], 9.0 * rng.random(8), planted)
    fit = file.fit_of(other, ARTICLES, 64)
    assert fit.formula == pytest.approx((3.0, 2.5, 0.7), rel=1e-3) and max(fit.explained) < 0.5
    assert not file.fit_of(recency + noise, ARTICLES, 64).gain.above()


def test_a_run_has_units_and_controls(run):
    for kind in file.KINDS:
        assert run.network[kind].shape == (16, 6)
        np.testing.assert_allclose(run.network[kind][:, 1:-1].mean(axis=1), 1, rtol=1e-6)
        assert {name: each[kind].shape for name, each in run.controls.items()} == {
            "shuffled tokens": (1, 6, 6), file.RANDOM: (2, 6, 6), file.OTHER: (2, 6, 6),
        }  # fmt: skip
    for parts, middle in ((4, 2.5), (5, 3.0), (8, 4.5)):
        assert run._replace(p=file.Parameters(parts=parts)).middle(np.arange(parts + 2.0)[None]) == [middle]
    assert len(set(ARTICLES[run.rows])) == 6 and run.off == 0.0


PROFILES = {"last": (-2, 3.0), "first": (0, 9.0), "u": (1, 2.0)}


@pytest.mark.parametrize("kind", file.KINDS)
def test_each_claim_can_fail(run, kind):
    noise = 1e-3 * np.random.default_rng(6).normal(size=(16, 6))
    flat = {name: {each: np.ones_like(values) for each, values in run.controls[name].items()} for name in run.controls}
    for name, (column, value) in PROFILES.items():
        claim = getattr(file, f"{name}_{kind}")
        for size in (value, 1.0, 0.5):
            values = 1 + noise
            values[:, column] += size - 1
            m = run._replace(network=run.network | {kind: values}, controls=flat)
            assert claim(m).holds is (size > 1.1), (name, size)
    # The first token must exceed every control.
    values = 1 + noise
    values[:, 0] += 8
    for name in run.controls:
        high = {each: array + 20 * (np.arange(6) == 0) for each, array in flat[name].items()}
        m = run._replace(network=run.network | {kind: values}, controls=flat | {name: high})
        assert not getattr(file, f"first_{kind}")(m).holds
    for planted, holds in ((influence_of_place, True), (file.exponential, False)):
        shape = file.scaled(planted, (2.0, 2.0, 1.0) if holds else (2.0, 1.0), N, 4)
        m = run._replace(fits={kind: file.fit_of(shape + noise[:, :4], ARTICLES, N)})
        assert getattr(file, f"formula_{kind}")(m).holds is holds
    assert file.replaced_by_itself(run).holds and not file.replaced_by_itself(run._replace(off=1e-3)).holds
