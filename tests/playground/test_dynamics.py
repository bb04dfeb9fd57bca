"""The mathematics of the playground in a browser: tokens, velocities, runs and numbers are those of the package."""

import itertools
import math

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special

import clusterjax as cjx
from tests.browser import browser as browser
from tests.clouds import CLOUDS, cloud
from tests.playground import PAGE
from tests.plotting import unit
from tests.reference import attention as attention_reference, fields, observables, positions


@pytest.fixture(scope="module")
def page(browser):
    browser.open(PAGE)
    browser.run("clusterjax.playground.pause()")
    return browser


def system(n, d, **more):
    plain = dict(attention="softmax", causal=False, beta=1.0, mass=1.0, temperature=0.0, seed=0)
    return dict(n=n, d=d, value=np.eye(d).ravel().tolist(), form=np.eye(d).ravel().tolist()) | plain | more


def listed(x):
    return np.asarray(x, float).ravel().tolist()


def on_the_sphere(x):
    """A cloud as unit tokens; a token at the origin has no direction, and gets the first axis."""
    x = np.array(x, float)
    x[~x.any(axis=1), 0] = 1.0
    return unit(x)


def field_of(state):
    """The field of the package, with every parameter an array: presets of one attention share a program."""
    n, d = state["n"], state["d"]
    mask = cjx.MatrixMask(jnp.tril(jnp.ones((n, n), bool)) if state["causal"] else jnp.ones((n, n), bool))
    form, value = (jnp.asarray(state[name], float).reshape(d, d) for name in ("form", "value"))
    beta = jnp.asarray(float(state["beta"]))
    options = dict(query_key=form, mask=mask, summation=cjx.Dense())
    if state["position"] == "rotary":
        options["position"] = cjx.Rotary(jnp.array([float(state["frequency"])]))
    else:
        options["position"] = cjx.ALiBi(jnp.asarray(float(state["slope"]) if state["position"] == "alibi" else 0.0))
    if state["attention"] == "softmax":
        attention = cjx.SoftmaxAttention(beta, **options)
    elif state["attention"] == "unnormalised":
        attention = cjx.UnnormalisedAttention(beta, offset=abs(beta), **options)
    else:
        attention = cjx.HardmaxAttention(**options)
    return cjx.AttentionField(attention, value, masses=jnp.ones(n).at[0].set(float(state["mass"])))


@pytest.mark.exhaustive_cases("0-64-3")
@pytest.mark.parametrize(("seed", "n", "d"), ((0, 64, 3), (1, 7, 2), (2**32 - 1, 200, 3)))
def test_the_tokens_are_those_of_jax(page, seed, n, d):
    found = page.run("return Array.from(clusterjax.sample(...arguments))", seed, n, d)
    expected = cjx.Sphere().sample(jax.random.key(seed), n, d)
    np.testing.assert_allclose(np.reshape(found, (n, d)), expected, rtol=0, atol=1e-14)


def test_rare_normal_numbers_are_right_too(page):
    u = np.concatenate([[0.0, 0.85, -0.85, 1 - 2.0**-40, 2.0**-40 - 1], np.linspace(-0.999999, 0.999999, 41)])
    found = page.run("return arguments[0].map(clusterjax.normalOf)", listed(u))
    np.testing.assert_allclose(found, np.sqrt(2) * scipy.special.erfinv(u), rtol=1e-14)
    # The function of XLA takes the logarithm of 1 - u^2, which has lost digits where u is near one.
    np.testing.assert_allclose(found, np.sqrt(2) * np.asarray(jax.lax.erf_inv(jnp.asarray(u))), rtol=1e-11)


FORM = np.array([[0.5, -1.0, 0.2], [0.3, 0.8, -0.6], [-0.4, 0.1, 1.2]])
VALUE = np.array([[-1.0, -2.0, 0.0], [2.0, 0.5, 1.0], [0.0, 0.0, 3.0]])
VELOCITIES = """return arguments[0].map(([x, s]) =>
    Array.from(new clusterjax.Field(s).velocity(x, new Float64Array(x.length))))"""
NUMBERS = """const [x, s, r] = arguments, c = clusterjax;
    return [Array.from(c.labels(x, s.n, s.d, r)), c.countClusters(x, s.n, s.d, r), c.logEnergy(x, s),
        Array.from(c.cosineCounts(x, s.n, s.d, 40))]"""
END = """const [x0, s, t] = arguments, run = new clusterjax.Run(s, x0);
    run.advance(t);
    return Array.from(run.at(t))"""


@pytest.mark.parametrize("kind", ("softmax", "unnormalised", "hardmax"))
@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
def test_the_velocity_is_the_double_sum_on_every_cloud(page, kind, causal):
    """Velocities agree with and without B and V, for beta of either sign, masses 0, 1 and 7, all positions and
    clouds."""
    allowed = attention_reference.causal if causal else attention_reference.full
    cases, expected = [], []
    every = itertools.product(enumerate(sorted(CLOUDS)), (1.0, -1.0), ("none", "alibi", "rotary"))
    for (k, name), sign, position in every:
        d, plain, mass = 2 + k % 2, k % 3 == 0, (7.0, 1.0, 0.0)[(k // 3 + k) % 3]
        x = on_the_sphere(cloud(name, 9, d, seed=k))
        # The last token is opposite to the first; norms differ, so that equal tokens round to neighbours.
        x[-1] = -x[0]
        form, value = (np.eye(d), np.eye(d)) if plain else (FORM[:d, :d], VALUE[:d, :d])
        beta = sign * (0.0, 2.0, 40.0)[k % 3 if not plain else (k // 3) % 3]
        place = dict(position=position, slope=(0.3, 4.0)[k % 2], frequency=(0.4, -2.5)[k % 2])
        options = dict(attention=kind, causal=causal, beta=beta, mass=mass, form=listed(form), value=listed(value))
        reference = dict(
            beta=beta, form=form, slack=1e-13,
            # The offset of the exponents of unnormalised attention is a bound of all exponents.
            offset=abs(beta) * (1.0 if plain else math.sqrt((form**2).sum())),
            log_weight=positions.slope(place["slope"]) if position == "alibi" else None,
            turned=positions.turn([place["frequency"]]) if position == "rotary" else None,
        )  # fmt: skip
        masses = [mass] + [1.0] * 8
        weights = lambda y, m=masses, r=reference: positions.weights(kind, y, allowed, m, **r)
        longer = x * np.random.default_rng(k).uniform(0.5, 2.0, (9, 1))
        cases.append([listed(longer), system(9, d, **options, **place)])
        expected.append(fields.velocity(x, weights, value))
    found = page.run(VELOCITIES, cases)
    assert len(found) == 6 * len(CLOUDS)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.reshape(one, other.shape), other, rtol=0, atol=2e-14)


def test_scores_that_differ_by_rounding_are_tied(page):
    """Two tokens that mirror each other are both attended to, though norms differ and one scores a rounding more."""
    rng = np.random.default_rng(0)
    cases, expected = [], []
    for _ in range(30):
        angle = rng.uniform(0.1, 1.2)
        x = np.array([[np.cos(angle), np.sin(angle)], [np.cos(angle), -np.sin(angle)], [np.cos(2), np.sin(2)]])
        form = np.diag([1.0, 0.0])
        weights = lambda y, f=form: attention_reference.hardmax_weights(y, f, slack=1e-13)
        expected.append(fields.velocity(x, weights))
        cases.append([listed(x * rng.uniform(0.5, 2, (3, 1))), system(3, 2, attention="hardmax", form=listed(form))])
    np.testing.assert_allclose(page.run(VELOCITIES, cases), np.reshape(expected, (30, 6)), rtol=0, atol=2e-14)


def test_the_numbers_are_those_of_the_package(page):
    for k, name in enumerate(sorted(CLOUDS)):
        x = on_the_sphere(cloud(name, 12, 3, seed=7 + k))
        form, mass, beta = (np.eye(3), 1.0, 9.0) if k % 2 else (FORM, 3.0, 2.0)
        beta = beta if k % 4 < 2 else -beta
        one = system(12, 3, beta=beta, form=listed(form), mass=mass)
        labels, count, energy, counts = page.run(NUMBERS, listed(x), one, 0.3)
        tokens = jnp.asarray(x)
        assert labels == cjx.cluster_labels(tokens, 0.3).tolist() and count == int(cjx.num_clusters(tokens, 0.3))
        expected = observables.energy(x, beta, form, [mass] + [1.0] * 11)
        assert energy == pytest.approx(math.log(abs(expected)), abs=1e-12) and (expected < 0) == (beta < 0)
        # A cosine at the edge of a bin falls to either side by a rounding.
        cosines = np.clip([x[i] @ x[j] for i in range(12) for j in range(i)], -1, 1)
        inner = np.linspace(-1, 1, 41)[1:-1]
        if np.abs(cosines[:, None] - inner).min() > 1e-12:
            density, edges = cjx.cosine_histogram(tokens, 40)
            np.testing.assert_allclose(np.array(counts) / sum(counts) / np.diff(edges), density, atol=1e-12)
    assert page.run("return clusterjax.countClusters([0, 0, NaN, 1, 5, 5], 3, 2, 1)") == 2
    # Tokens at the distance of the radius are joined, and tokens farther apart are not.
    count = "return clusterjax.countClusters([0, 0, 1, 0], 2, 2, arguments[0])"
    assert (page.run(count, 1.0), page.run(count, 0.999)) == (1, 2)


@eqx.filter_jit
def reference_runs(fields, x0, ts):
    """The last tokens of the runs of fields of one structure, to 1e-10."""
    arrays, static = eqx.partition(fields, eqx.is_array)
    options = dict(adjoint=dfx.ForwardMode(), max_steps=100_000)

    def one(pair):
        field, controller = eqx.combine(pair[0], static), dfx.PIDController(rtol=1e-10, atol=1e-12)
        return cjx.simulate(field, pair[1], ts, stepsize_controller=controller, **options).xs[-1]

    return jax.lax.map(one, (arrays, x0))


def in_space(state, x):
    """A system on the circle as a system on the sphere, whose third coordinate stays zero."""
    if state["d"] == 3:
        return state, x
    wide = lambda entries: np.pad(np.reshape(entries, (2, 2)), ((0, 1), (0, 1))).ravel().tolist()
    return state | dict(d=3, value=wide(state["value"]), form=wide(state["form"])), np.pad(x, ((0, 0), (0, 1)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "count"), (("softmax", 14), ("rotary", 1), ("unnormalised", 1), ("hardmax", 2)))
def test_presets_run_as_simulate_does(page, kind, count):
    """Every preset without noise agrees to 1e-6 at t = 15, from the same tokens."""
    states, tokens, starts = [], [], []
    for name in page.run("return clusterjax.PRESETS.map((one) => one.id)"):
        page.run("clusterjax.playground.load(arguments[0])", name)
        state = page.run("return clusterjax.playground.state")
        # Runs of one structure share a program; rotary positions are a structure of their own.
        structure = "rotary" if state["position"] == "rotary" else state["attention"]
        if structure == kind and state["temperature"] == 0:
            n, d = state["n"], state["d"]
            found = np.reshape(page.run("return Array.from(clusterjax.playground.runTo(15))"), (n, d))
            assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-14
            x0 = cjx.Sphere().sample(jax.random.key(state["seed"]), n, d)
            state, x0 = in_space(state, np.asarray(x0))
            states, tokens, starts = [*states, state], [*tokens, found], [*starts, x0]
    assert len(states) == count
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(field_of(state) for state in states))
    expected = np.asarray(reference_runs(stacked, jnp.stack(starts), jnp.array([0.0, 15.0])))
    for state, found, other in zip(states, tokens, expected, strict=True):
        assert np.abs(found - other[:, : found.shape[1]]).max() < 1e-6, state["preset"]


def test_the_step_in_hand_is_right_in_its_middle(page):
    """The dense output is as accurate between the ends of steps as at the ends."""
    x0, one = on_the_sphere(cloud("generic", 8, 3, seed=3)), system(8, 3, beta=4.0)
    script = """const [x0, s] = arguments, run = new clusterjax.Run(s, x0), found = [];
        for (let k = 1; k <= 12; k++) {
            run.advance(0.4 * k);
            found.push(Array.from(run.at(0.4 * k)));
        }
        return found"""
    found = np.reshape(page.run(script, listed(x0), one), (12, 8, 3))
    weights = lambda x: attention_reference.softmax_weights(x, 4.0, np.eye(3))
    speed = lambda t, x: fields.velocity(x.reshape(8, 3), weights).ravel()
    ts = 0.4 * np.arange(1, 13)
    run = scipy.integrate.solve_ivp(speed, (0, 5), x0.ravel(), "DOP853", ts, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found, [unit(x.reshape(8, 3)) for x in run.y.T], rtol=0, atol=1e-7)


@pytest.mark.parametrize("d", (2, 3))
def test_noise_alone_is_brownian_motion(page, d):
    """With V = 0 the mean of <x(t), x(0)> is exp(-(d - 1) T t): the first eigenvalue of the Laplacian is d - 1."""
    n, temperature, t = 64, 0.4, 1.0
    script = """const [systems, t] = arguments;
        return systems.map((s) => {
            const run = new clusterjax.Run(s, clusterjax.sample(9, s.n, s.d)), x0 = Array.from(run.at(0));
            run.advance(t);
            return [run.noisy, x0, Array.from(run.at(t))];
        })"""
    systems = [system(n, d, temperature=temperature, value=[0.0] * d * d, seed=seed) for seed in range(20)]
    found = page.run(script, systems, t)
    assert all(noisy for noisy, _, _ in found)
    cosines = np.concatenate([(np.reshape(a, (n, d)) * np.reshape(b, (n, d))).sum(axis=1) for _, a, b in found])
    error = np.std(cosines) / math.sqrt(len(cosines))
    assert abs(np.mean(cosines) - math.exp(-(d - 1) * temperature * t)) < 3 * error < 0.06


def test_a_little_noise_is_near_to_none(page):
    """At T = 1e-12 a noisy run is the run without noise, to the error of Heun's steps: its drift is attention."""
    x0 = on_the_sphere(cloud("generic", 8, 3, seed=5))
    quiet, noisy = (page.run(END, listed(x0), system(8, 3, beta=3.0, temperature=T), 3.0) for T in (0.0, 1e-12))
    assert 0 < np.abs(np.subtract(quiet, noisy)).max() < 1e-4
