"""A row of a phase diagram: the published scheme and statistics by double loops, and the published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp

import clusterjax as cjx
from clusterjax.phase import (
    Adaptive,
    ClosePairs,
    ClusterRank,
    Fixed,
    Given,
    GramRank,
    Identity,
    LikeQueryKey,
    NormalisedEuler,
    Once,
    PerBeta,
    PerSystem,
    PhaseDiagram,
    Product,
    Spectrum,
    Square,
    Uniform,
    Wigner,
    _diagram,
    phase_diagram,
)
from clusterjax.phase._diagram import read_starts
from tests.helpers import as_a_user, assert_close, assert_same
from tests.reference import phase as reference


STATISTICS = (ClosePairs(0.9), GramRank(), ClusterRank(0.95))
TIMES = np.array([0.0, 0.05, 0.3, 1.0])
STEPS = (0, 1, 3, 10)


def systems(seed, samples, n, d):
    x = np.random.default_rng(seed).normal(size=(samples, n, d))
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def matrices(seed, d):
    return np.random.default_rng(seed).normal(size=(2, d, d))


def expected(x0, beta, steps, *matrices, unnormalised=False):
    """The three statistics of each system after each number of steps."""
    states = [
        [reference.normalised_euler(x, beta, k, 0.1, *matrices, unnormalised=unnormalised) for x in x0] for k in steps
    ]
    return [
        [[statistic(x) for x in row] for row in states]
        for statistic in (
            lambda x: reference.close_pairs(x, 0.9),
            reference.gram_rank,
            lambda x: reference.cluster_rank(x, 0.95),
        )
    ]


@pytest.mark.exhaustive_cases(
    "5-2-False-False", "5-2-False-True", "5-3-True-False", "6-6-False-False", "6-6-False-True"
)
@pytest.mark.parametrize("unnormalised", (False, True))
@pytest.mark.parametrize(("n", "d", "with_matrices"), ((5, 2, False), (6, 6, False), (5, 3, True)))
def test_row_is_the_published_scheme(n, d, with_matrices, unnormalised):
    """With chunks of two, save times between steps take the step after them, and time zero takes the start."""
    x0, beta = systems(1, 3, n, d), 1.3
    given = matrices(2, d) if with_matrices else ()
    laws = {"query_key": Fixed(given[0]), "value": Fixed(given[1])} if with_matrices else {}
    slow = np.sqrt(beta) * np.exp(beta - 0.5) if unnormalised else 1.0
    row = PhaseDiagram(
        Given(jnp.asarray(x0, float)), jnp.asarray(TIMES / slow, float), **laws, unnormalised=unnormalised,
        statistics=STATISTICS, chunk=2,
    )  # fmt: skip
    found = jax.jit(lambda beta: row.systems(beta))(jnp.asarray(beta))
    for ours, theirs in zip(found, expected(x0, beta, STEPS, *given, unnormalised=unnormalised), strict=True):
        assert_close(ours, np.array(theirs, float))


@pytest.mark.exhaustive_cases("False")
@pytest.mark.parametrize("unnormalised", (False, True))
def test_adaptive_is_the_flow(unnormalised):
    """The tokens at each save time are those of SciPy's solver of the double sum on the sphere."""
    x0, ts, beta = systems(6, 2, 4, 2), np.array([0.0, 0.4, 1.0]), 2.0
    attention = cjx.UnnormalisedAttention(beta) if unnormalised else cjx.SoftmaxAttention(beta)
    run = jax.jit(jax.vmap(lambda x: Adaptive(1e-9).run(attention, None, x, jnp.asarray(ts))))

    def velocity(t, flat):
        x = flat.reshape(4, 2)
        pulled = reference.pull(x, beta, np.eye(2), np.eye(2), unnormalised)
        return (pulled - (pulled * x).sum(axis=1, keepdims=True) * x).ravel()

    exact = [solve_ivp(velocity, (0, 1), x.ravel(), t_eval=ts, rtol=1e-8, atol=1e-10).y.reshape(4, 2, 3) for x in x0]
    np.testing.assert_allclose(run(x0), np.transpose(exact, (0, 3, 1, 2)), atol=1e-6)


@pytest.mark.exhaustive
def test_published_numbers():
    """Shares of 32 tokens on the circle are those of the published code (oracle 1.6) within 4 sigma of both."""
    printed = {1.0: {6: (0.2290, 0.0070), 15: (0.9699, 0.0051)}, 9.0: {15: (0.3181, 0.0029), 30: (0.3444, 0.0031)}}
    diagram = PhaseDiagram(Uniform(256, 32, 2), jnp.asarray([6.0, 15.0, 30.0], jnp.float32))
    row = jax.jit(lambda beta: diagram(beta))
    for beta, numbers in printed.items():
        found = row(jnp.asarray(beta, jnp.float32))
        for t, (share, error) in numbers.items():
            k = (6, 15, 30).index(t)
            sigma = np.hypot(error, found["close_pairs_error"][k])
            assert abs(found["close_pairs"][k] - share) < 4 * sigma


def test_causal_row_is_the_double_loop():
    """The share of close pairs is that of a loop in which tokens attend to earlier ones only."""
    x0, beta = systems(10, 3, 5, 2), 2.0
    row = PhaseDiagram(
        Given(jnp.asarray(x0, float)), jnp.asarray(TIMES, float), statistics=(ClosePairs(0.7),), mask=cjx.CausalMask()
    )
    found = jax.jit(lambda beta: row.systems(beta))(jnp.asarray(beta))[0]
    for x, shares in zip(x0, np.asarray(found).T, strict=True):
        for steps, share in zip(STEPS, shares, strict=True):
            y = x
            for _ in range(steps):
                weights = np.tril(np.exp(beta * y @ y.T))
                y = y + 0.1 * (weights / weights.sum(axis=1, keepdims=True)) @ y
                y /= np.linalg.norm(y, axis=1, keepdims=True)
            assert_close(share, reference.close_pairs(y, 0.7))


def test_laws():
    """Matrices have the moments of their law, and are drawn anew when the law says so."""
    d, count = 3, 4000

    @jax.jit
    def draw(beta):
        key = jax.random.key(0)
        once = [law.draw(key, beta, count, d, None) for law in (Product(Once()), Product(PerBeta()))]
        return [law.draw(key, beta, count, d, None) for law in (Wigner(PerSystem()), Square(), Product())], once

    (wigner, square, product), (once, anew) = (jax.tree.map(np.asarray, part) for part in draw(1.0))
    np.testing.assert_allclose(wigner, wigner.swapaxes(1, 2), atol=1e-12)
    np.testing.assert_allclose(wigner.var(axis=0), 1 + np.eye(d), atol=4 * 2 * np.sqrt(2 / count))
    assert np.linalg.eigvalsh(square).min() > -1e-12
    np.testing.assert_allclose(square.mean(axis=0), np.sqrt(d) * np.eye(d), atol=4 * 2 / np.sqrt(count))
    np.testing.assert_allclose(product.var(axis=0), np.ones((d, d)), atol=4 * 4 / np.sqrt(count))
    _, (once_too, other) = draw(2.0)
    assert once.shape == (d, d) and np.array_equal(once, once_too) and not np.array_equal(anew, other)
    scaled = LikeQueryKey(-0.5).draw(jax.random.key(0), jnp.asarray(1.0), count, d, jnp.asarray(product))
    assert_same(scaled, -0.5 * product)


@pytest.mark.exhaustive
def test_rows_do_not_depend_on_chunks():
    """Rows do not depend on how many systems are computed together, to rounding; the dtype is that of save times."""
    ts = jnp.asarray([0.0, 2.0], jnp.float32)
    options = {"query_key": Product(), "value": Square(), "statistics": (ClosePairs(0.5),)}
    rows = [PhaseDiagram(Uniform(10, 6, 2), ts, **options, chunk=chunk) for chunk in (4, 10)]
    one, two = jax.jit(lambda beta: [row(beta) for row in rows])(jnp.asarray(3.0))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5)
    assert one["close_pairs"].dtype == jnp.float32


def test_whole_diagram(tmp_path):
    """The dataset has labels and is the same from a store; starts that are read from a file are used."""
    betas, times, x0 = np.array([1.0, 4.0]), np.array([0.0, 1.0]), systems(7, 4, 5, 2)
    np.save(tmp_path / "x0.npy", x0)
    starts = read_starts(tmp_path / "x0.npy")
    found = phase_diagram(betas, times, starts=starts, store=tmp_path / "run.zarr", progress=False)
    assert dict(found.sizes) == {"beta": 2, "t": 2} and found.attrs["n"] == 5 and found.attrs["attention"] == "softmax"
    np.testing.assert_array_equal(found.t, times)
    assert found.close_pairs.attrs["description"].endswith("above 0.999")
    shares = [[np.mean([reference.close_pairs(reference.normalised_euler(x, b, k, 0.1)) for x in x0]) for k in (0, 10)]
              for b in betas]  # fmt: skip
    np.testing.assert_allclose(found.close_pairs, shares)
    again = phase_diagram(betas, times, starts=starts, store=tmp_path / "run.zarr", progress=False)
    assert_same(again.close_pairs, found.close_pairs)


def test_the_version_of_a_diagram_tells_its_arguments_apart(monkeypatch):
    """Versions differ also if the arguments differ in numbers only."""
    versions = []
    monkeypatch.setattr(_diagram, "run", lambda *_, version, **rest: versions.append(version) or xr.Dataset())
    starts = systems(7, 4, 5, 2)
    masks = [
        cjx.CausalMask(), cjx.WindowMask(2), cjx.WindowMask(3), cjx.WindowMask(2, causal=True),
        cjx.MatrixMask(np.eye(32, dtype=bool)), cjx.MatrixMask(np.tri(32, dtype=bool)),
    ]  # fmt: skip
    options = [
        {}, {"n": 5}, {"samples": 3}, {"unnormalised": True}, {"value": Square()},
        {"value": Spectrum(np.array([1.0, 2.0]))}, {"value": Spectrum(np.array([1.0, 3.0]))}, {"starts": starts},
        {"starts": starts + 1e-3},
        {"integrator": NormalisedEuler(0.05)}, {"integrator": Adaptive()}, {"statistics": (ClosePairs(0.9),)},
        {"seed": 1}, {"dtype": "float32"}, *({"mask": mask} for mask in masks),
    ]  # fmt: skip
    for arguments in (*options, *options):
        phase_diagram(np.array([1.0, 4.0]), np.array([0.0, 1.0]), **arguments)
    assert (
        "mask" not in versions[0]
        and versions[: len(options)] == versions[len(options) :]
        and len(set(versions)) == len(options)
    )
    assert versions[0].startswith("n = 32, d = 2, samples = 2048, attention = softmax, query_key = Identity()")


def test_starts_of_other_files(tmp_path):
    from safetensors.numpy import save_file

    x0 = systems(8, 3, 4, 2)
    np.savez(tmp_path / "a.npz", x0=x0, other=np.zeros(2))
    save_file({"tokens": x0}, tmp_path / "a.safetensors")
    assert_same(read_starts(tmp_path / "a.npz"), x0)
    assert_same(read_starts(tmp_path / "a.safetensors"), x0)


def test_refused_files(tmp_path):
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "zero.npy", np.zeros((2, 3, 2)))
    np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    for name, words in (
        ("absent.npy", "is not; mend the path"),
        ("x0.pkl", "must be a .npy, .npz or .safetensors file"),
        ("flat.npy", "must be floats of shape"),
        ("zero.npy", "token 0 of system 0"),
        ("object.npy", "must be readable"),
        ("two.npz", "one called 'x0'"),
    ):
        with pytest.raises(ValueError, match=words):
            read_starts(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "words"),
    (
        ({"betas": []}, r"betas must be an array of real numbers of shape \(betas,\)"),
        ({"betas": [1.0, 2.0, 1.0]}, "betas must be there once each"),
        ({"n": 10**12, "samples": 10}, "n must make no axis longer than int32 can index, but it is 1000000000000, and"),
        ({"value": np.eye(2)}, "value must be a law of clusterjax.phase, but it is an array of shape"),
        ({"value": Wigner}, "value must be a law of clusterjax.phase, but it is the class Wigner itself"),
        ({"integrator": Adaptive(1e-9), "dtype": "float32"}, "integrator must have a tolerance that float32 resolves"),
        ({"integrator": NormalisedEuler(1e-8), "dtype": "float32"}, "integrator must have a dt that float32 resolves"),
        ({"times": [1.0, 0.5]}, "times must increase"),
        ({"starts": np.ones((1, 4, 2))}, "starts must be of at least 2 systems"),
        ({"statistics": (ClosePairs(), ClosePairs(0.5))}, "statistics must be at least one, each once"),
        ({"betas": [1.0, 1e39], "dtype": "float32"}, "betas must be finite in float32"),
        ({"times": [0.0, 1e-300], "dtype": "float32"}, "times must increase in float32"),
        ({"times": [0.0, 1e39], "dtype": "float32"}, "times must be finite in float32"),
        ({"betas": [30.0], "unnormalised": True}, "betas must leave fewer than 1e\\+09 evaluations of the field"),
    ),
    ids=str,
)
def test_refused_options(options, words):
    given = {"betas": [1.0], "times": [0.0, 1.0], "n": 4, "samples": 2} | options
    with as_a_user(), pytest.raises(ValueError, match=words):
        phase_diagram(given.pop("betas"), given.pop("times"), **given, progress=False)


@pytest.mark.exhaustive
def test_a_row_whose_tokens_are_no_longer_unit_vectors_has_failed():
    """A value matrix of 3e38 takes tokens past the largest number in the first steps; one of 1e30 does not."""
    options = {"n": 4, "samples": 3, "statistics": STATISTICS, "dtype": "float32", "progress": False}
    for value, status in ((Fixed(np.full((2, 2), 3e38)), 1), (Fixed(1e30 * np.eye(2)), 0), (Identity(), 0)):
        found = phase_diagram(np.asarray([1.0, 2.0]), np.asarray([0.0, 0.5]), value=value, **options)
        assert (found.status == status).all() and (np.isnan(found.close_pairs) == bool(status)).all()


@pytest.mark.exhaustive
def test_more_steps_than_anyone_waits_for_are_no_numbers():
    row = PhaseDiagram(Uniform(2, 3, 2), jnp.asarray([0.0, 1.0]), integrator=NormalisedEuler(1e-12))
    found = jax.jit(lambda beta: row(beta)["close_pairs"])(jnp.asarray(1.0))
    assert np.isnan(found[1]) and np.isfinite(found[0])


@pytest.mark.parametrize(
    ("make", "words"),
    (
        (lambda: Given(np.zeros((1, 2, 2))), "x0 must be finite and not zero, but token 0 of system 0"),
        (lambda: PhaseDiagram(Uniform(2, 3, 2), [1.0, 0.5]), "ts must increase in float"),
        (lambda: PhaseDiagram(Uniform(1, 3, 2), [1.0])(1.0), "starts must be of at least 2 systems"),
        (lambda: ClosePairs()(np.ones((2, 1, 4))), "x must hold at least 2 tokens per system"),
    ),
    ids=lambda value: "",
)
def test_refused_parts(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
        make()
