"""`coarsen` of more tokens than it holds pairs of: sums and searches by tiles, and runs against those with pairs."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._coarsen import bound, clouds, run, steps, velocity as laws
from tests.coarsen_cases import coarsen, field, sphere, unit
from tests.helpers import as_a_user
from tests.reference import coarsening as reference


MANY = 4200


def plain(beta, factor=1.0):
    return laws.Law(beta, None, None, factor, True, False, 0.0)


# --- sums and searches, over more than one block


@pytest.mark.parametrize(("beta", "accuracy"), [(9.0, 1e-5), (40.0, 1e-12)])
def test_velocities_by_tiles_are_those_of_all_pairs(beta, accuracy):
    flow, x, masses = plain(beta, 1.7), sphere(700, 4, seed=1), np.random.default_rng(1).uniform(0.5, 2, 700)
    seen = np.broadcast_to(masses, (700, 700))
    held, tiled = (laws.moves(flow, x, laws.AttendedMasses.of(flow, seen, some)) for some in (False, True))
    exact = reference.fast_velocity(x, beta, value=1.7 * np.eye(4), masses=masses)
    for found in (held, tiled):
        np.testing.assert_allclose(found.velocity, exact, atol=accuracy)
    np.testing.assert_allclose(tiled.pull, held.pull, rtol=accuracy)


def test_a_cloud_that_has_contracted_is_summed_to_its_own_size():
    # The least difference of float32 at 1 is 1e-7, which would give velocities of 1e-5 only to a hundredth.
    flow, masses = plain(9.0), np.ones(600)
    x = np.array([0.0, 0.0, 1.0]) + 1e-5 * np.random.default_rng(0).normal(size=(600, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    seen = np.broadcast_to(masses, (600, 600))
    held, tiled = (laws.moves(flow, x, laws.AttendedMasses.of(flow, seen, some)).velocity for some in (False, True))
    np.testing.assert_allclose(tiled, held, atol=1e-5 * np.abs(held).max())


def test_rates_by_tiles_are_above_all_within_clusters():
    attracting = 0
    for size, beta in ((2.0, 9.0), (0.3, 9.0), (0.05, 9.0), (0.3, 1.0)):
        x = np.eye(4)[0] + size * np.random.default_rng(3).normal(size=(60, 4))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        flow, seen = plain(beta, 1.3), np.broadcast_to(np.random.default_rng(1).uniform(0.5, 2, 60), (60, 60))
        rates = laws.moves(flow, x, laws.AttendedMasses.of(flow, seen, True)).rates
        exact, _ = laws.contraction(flow, x, np.arange(60), seen, np.zeros(60))
        assert np.all(rates >= exact - 1e-5)
        attracting += np.sum(rates < 0)
    assert attracting > 60


def test_close_pairs_are_those_of_two_loops():
    x, component = sphere(1100, 3, seed=2), np.arange(1100) // 3
    distance = 0.05
    expected = [
        (a, b)
        for a in range(1100)
        for b in np.flatnonzero(np.linalg.norm(x[a] - x, axis=1) <= distance)
        if b > a and component[a] != component[b]
    ]
    found = laws.close_pairs(x, distance, component, 10_000)
    assert sorted(zip(*(part.tolist() for part in found), strict=True)) == sorted(expected) and len(expected) > 300
    assert laws.close_pairs(x, distance, component, len(expected) - 1) is None
    assert [len(part) for part in laws.close_pairs(x, 1e-6, component, 10)] == [0, 0]
    some = laws.close_pairs(x, distance, component, 20, partly=True)
    assert 20 < len(some[0]) and set(zip(*(part.tolist() for part in some), strict=True)) <= set(expected)


def test_each_token_is_led_by_one_that_is_near_and_before_it():
    x = sphere(1100, 2, seed=4)
    lead = laws.leaders(x, 0.003)
    assert np.all(lead <= np.arange(1100)) and np.all(lead[lead] == lead)
    assert np.all(np.linalg.norm(x - x[lead], axis=1) <= 0.003)
    leaders = np.unique(lead)
    apart = clouds.distances(x[leaders]) + np.eye(len(leaders))
    # Cosines have single precision, so that the nearest leader may be missed by 1e-4.
    assert 600 < len(leaders) < 1000 and apart.min() > 0.003 - 1e-4


def test_crossings_are_where_pairs_come_to_the_tolerance():
    flow, x = plain(9.0), sphere(40, 3, seed=1)
    cloud = clouds.start(flow, x, np.ones(40))
    done = steps.step(flow, cloud.attended, x, 0.0, 0.8, steps.slope(flow, x, cloud.attended))
    inside = steps.between(flow, cloud.attended, done)
    ends = [clouds.distances(y) for y in (x, done.y1)]
    tolerance = float(np.median(ends[1]))
    rows, columns = np.nonzero((ends[0] > tolerance) & (ends[1] < tolerance))
    shares = run.crossings(inside, rows, columns, tolerance, 0.0, 1.0)
    assert len(rows) > 20 and np.all((shares > 0) & (shares < 1))
    for a, b, share in zip(rows, columns, shares, strict=True):
        y = inside._at(share, slice(None, -1)).reshape(40, 3)
        np.testing.assert_allclose(np.linalg.norm(y[a] - y[b]), tolerance, rtol=1e-13)
        np.testing.assert_allclose(inside.rows_at(share, [a, b]), inside.clusters(share)[[a, b]], atol=1e-15)


# --- runs


@pytest.fixture
def few_are_many(monkeypatch):
    """Uses tiles from 101 tokens on until 60 clusters are left, and pieces of few pairs."""
    monkeypatch.setattr(clouds, "MOST_HELD", 100)
    monkeypatch.setattr(clouds, "FEW", 60)
    monkeypatch.setattr(run, "_MOST_PAIRS", 5)
    monkeypatch.setattr(laws, "_BLOCK", 64)


@pytest.mark.exhaustive_cases("150-4-9.0-0.1")
@pytest.mark.parametrize(
    ("n", "d", "beta", "tolerance"),
    [
        (150, 4, 9.0, 0.1),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((300, 3, 9.0, 0.1), (300, 3, 4.0, 0.02), (400, 8, 9.0, 0.1), (300, 32, 4.0, 0.3))
        ),
    ],
)
def test_many_are_followed_as_few_are(few_are_many, monkeypatch, n, d, beta, tolerance):
    flow, x, masses = plain(beta), sphere(n, d, seed=n + d), np.random.default_rng(n).uniform(0.5, 2, n)
    many = run.run(flow, x, masses, 1e300, tolerance, 1e-5 / (1 + beta), 10_000, 1e-2 / (1 + beta))
    monkeypatch.setattr(clouds, "MOST_HELD", 1000)
    few = run.run(flow, x, masses, 1e300, tolerance, 1e-5 / (1 + beta), 10_000)
    tiled = sum(leg.cloud.attended.tiled for leg in many.legs)
    # For d = 32 the last 229 clusters merge within one step by tiles, so that no step by pairs follows.
    assert 0 < tiled < len(many.legs) + (d == 32) and not any(leg.cloud.attended.tiled for leg in few.legs)
    found, exact = (np.array([merger.time for merger in one.mergers]) for one in (many, few))
    assert len(found) == len(exact) == n - 1 and np.all(np.diff(found) >= 0)
    off, bounds = np.abs(found - exact) / np.maximum(exact, 1e-300), bound.relative_errors(many)
    # A pair that barely touches and parts within a piece of a step has not merged; the next pair takes its place.
    assert np.mean(off <= bounds + 1e-9) > 0.99 and np.median(bounds) < 1e-3 and off.max() < 1e-2
    by_tiles = [merger for merger in many.mergers if merger.index < tiled]
    assert len(by_tiles) > n / 2
    same = [one.pair == other.pair for one, other in zip(many.mergers, few.mergers, strict=True)]
    assert np.mean(same) > 0.9


def test_displacements_are_carried_along_steps(few_are_many):
    """The error of a step is carried through the next one, and to tokens that become one."""
    flow, x, masses = plain(4.0), sphere(150, 3, seed=1), np.random.default_rng(1).uniform(0.5, 2, 150)
    whole = run.run(flow, x, masses, 2.0, 0.1, 1e-6, 100)
    first, second = whole.legs[:2]
    assert second.cloud.cluster is first.cloud.cluster and second.cloud.attended.tiled
    pushed = 1e-3 * np.random.default_rng(0).normal(size=x.shape) + [3e-3, 0, 0]
    pushed -= np.sum(pushed * first.y1, axis=1, keepdims=True) * first.y1
    still = np.zeros_like(first.error)
    legs = [first._replace(defect=pushed, error=still), second._replace(defect=0 * pushed, error=still)]
    _, sizes = bound.tiled_errors(flow, legs, second.cloud._replace(y=second.y1), [])
    y = unit(first.y1 + pushed)
    there = steps.step(flow, second.cloud.attended, y, 0.0, second.length, steps.slope(flow, y, second.cloud.attended))
    expected = np.linalg.norm(there.y1 - second.y1, axis=1)
    np.testing.assert_allclose(sizes, expected, rtol=0.15, atol=0.1 * expected.max())
    # Two thirds of the tokens become one in pairs, with the mean of errors by masses.
    place = np.concatenate([np.repeat(np.arange(50), 2), np.arange(50, 100)])
    leaders = np.concatenate([np.arange(0, 100, 2), np.arange(100, 150)])
    after = second.cloud._replace(y=y[leaders], cluster=place, first=leaders, spread=np.zeros(100))
    now = laws.moves(flow, y, second.cloud.attended)
    found, _ = bound._together(flow, second.cloud, after, now, np.stack([pushed, 2 * pushed]), np.zeros(150))
    weighted = (masses[:100, None] * pushed[:100]).reshape(50, 2, 3).sum(axis=1)
    np.testing.assert_allclose(found[0][:50], weighted / masses[:100].reshape(50, 2).sum(axis=1)[:, None], atol=1e-15)
    np.testing.assert_allclose(found[1][50:], 2 * pushed[100:], atol=1e-15)


def test_gathering_keeps_masses_and_means(few_are_many):
    flow, rng = plain(4.0), np.random.default_rng(0)
    spots = sphere(5, 3, seed=1)
    x = np.repeat(spots, 40, axis=0) + 1e-4 * rng.normal(size=(200, 3))
    x, masses = unit(x), rng.uniform(0.5, 2, 200)
    cloud = clouds.start(flow, x, masses)
    now = laws.moves(flow, x, cloud.attended)
    found = clouds.gathered(flow, cloud, now._replace(rates=np.full(200, -1.0)), 2e-3)
    assert found.first.tolist() == [0, 40, 80, 120, 160] and not found.attended.tiled
    np.testing.assert_allclose(found.sums, masses.reshape(5, 40).sum(axis=1))
    for k in range(5):
        own, weight = x[40 * k : 40 * k + 40], masses[40 * k : 40 * k + 40]
        np.testing.assert_allclose(found.y[k], unit(weight @ own), atol=1e-12)
        gaps = np.linalg.norm(own - found.y[k], axis=1)
        np.testing.assert_allclose(found.spread[k], weight @ gaps**2 / weight.sum(), rtol=1e-10)
        np.testing.assert_allclose(found.radius[k], gaps.max(), rtol=1e-10)
    # Where tokens part, none become one.
    assert clouds.gathered(flow, cloud, now._replace(rates=np.ones(200)), 2e-3) is cloud


def test_a_clump_merges_at_time_zero(few_are_many):
    """More pairs than are held are in a clump, some of them within a quarter of the tolerance; one token is afar."""
    x = np.array([0.0, 0.0, 1.0]) + 0.03 * np.random.default_rng(0).uniform(-1, 1, size=(150, 3))
    x[80] = [1.0, 0.0, 0.0]
    components = run.Components(np.arange(150), [])
    cloud = clouds.start(plain(1.0), x, np.ones(150))
    components.at_start(cloud, 0.05, None)
    alone = run.Components(np.arange(150), [])
    alone.at_start(cloud, 0.05, clouds.distances(cloud.y))
    np.testing.assert_array_equal(components.roots, alone.roots)
    assert len(components.mergers) == 148 and all(one.time == 0 for one in components.mergers)
    # Distances are bisected down to the shortest interval, whose pairs are joined in several parts.
    ring = run.Components(np.arange(150), [])
    angles = np.arange(150) * 2 * np.pi / 150
    even = clouds.start(plain(1.0), np.stack([np.cos(angles), np.sin(angles)], axis=1), np.ones(150))
    ring.at_start(even, float(2 * np.sin(np.pi / 150) + 1e-12), None)
    assert len(ring.mergers) == 149


def test_tokens_at_one_point_are_one_where_others_part_too(few_are_many):
    """Four places on a circle lie between two heaps: near tokens there part, only tokens at one point become one."""
    angles = np.repeat([1.55, 1.56, 1.57, 1.58, 0.0, np.pi], [2, 2, 2, 2, 96, 96])
    x, flow = np.stack([np.cos(angles), np.sin(angles)], axis=1), plain(3.0)
    cloud = clouds.start(flow, x, np.ones(200))
    assert np.all(laws.moves(flow, x, cloud.attended).rates[:8] > 0)
    first = run.run(flow, x, np.ones(200), 1e-9, 1e-3, 1e-4, 1000, 0.1).cloud
    assert first.first.tolist() == [0, 2, 4, 6, 8, 104]
    np.testing.assert_array_equal(first.sums, [2, 2, 2, 2, 96, 96])


def test_it_tells_how_far_it_is(few_are_many):
    lines, x = [], sphere(150, 3, seed=1)
    tree = coarsen(field(4.0), x, 1e300, tolerance=0.3, log=lines.append)
    told = [re.fullmatch(r"t = ([\d.]+), step (\d+): (\d+) clusters, (\d+) mergers", line) for line in lines]
    times, steps, clusters, mergers = np.array([[float(part) for part in one.groups()] for one in told]).T
    assert steps.tolist() == list(range(1, len(lines) + 1)) and np.all(np.diff(times) > 0)
    assert clusters[-1] <= 60 and np.all(np.diff(clusters) <= 0)
    counts = [np.sum(tree.times <= t * (1 + 1e-3)) for t in times]
    np.testing.assert_allclose(mergers, counts, atol=1)
    with as_a_user(), pytest.raises(ValueError, match="log must be a function of a line, but it is True"):
        coarsen(field(4.0), x, 1e300, tolerance=0.3, log=True)


@pytest.mark.exhaustive
def test_many_tokens_at_few_places_are_few_with_masses():
    counts, spots = np.array([1500, 900, 700, 600, 500]), sphere(5, 3, seed=3)
    x = np.repeat(spots, counts, axis=0)
    tree = coarsen(field(20.0), x, 1e300, tolerance=0.1)
    few = coarsen(field(20.0, masses=counts.astype(float)), spots, 1e300, tolerance=0.1)
    assert len(tree) == MANY - 1 and np.all(tree.times[:-4] == 0) and tree.times[-1] > 1e6
    np.testing.assert_allclose(tree.times[-4:], few.times, rtol=1e-5)
    assert np.all(tree.bound[:-4] == 0) and tree.bound.max() < 1e-2
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    assert tree.pairs[-4:].tolist() == starts[few.pairs].tolist()
    middle = float(np.sqrt(tree.times[-2] * tree.times[-1]))
    np.testing.assert_allclose(np.asarray(tree.at(middle))[starts], few.at(middle), atol=1e-6)
    assert len(np.unique(tree.clusters(middle))) == 2


@pytest.mark.exhaustive
def test_many_tokens_to_the_last_merger():
    x = sphere(5000, 16, seed=1)
    tree = coarsen(field(4.0), x, 1e300, tolerance=0.1)
    assert len(tree) == 4999 and tree.bound.max() < 0.1
    labels = np.asarray(tree.clusters(tree.times[2500]))
    at = np.asarray(tree.at(tree.times[2500] * (1 + 1e-6)))
    found = np.asarray(cjx.cluster_labels(jnp.asarray(at), 0.1))
    assert abs(len(np.unique(found)) - len(np.unique(labels))) <= 2


# --- refusals


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (field(1.0, causal=True), "x0 must hold at most 4,096 tokens with CausalMask"),
        (field(-1.0), "x0 must hold at most 4,096 tokens but for softmax"),
        (field(400.0), "x0 must hold at most 4,096 tokens but for softmax"),
        (field(1.0, normalised=False), "x0 must hold at most 4,096 tokens but for softmax"),
        (field(1.0, np.diag([1.0, 2.0, 1.0])), "x0 must hold at most 4,096 tokens but for softmax"),
        (field(1.0, query_key=np.diag([1.0, 2.0, 1.0])), "x0 must hold at most 4,096 tokens but for softmax"),
        (field(1.0, masses=np.arange(5000.0)), "x0 must hold at most 4,096 tokens but for softmax"),
    ],
)
def test_what_many_tokens_do_not_serve(wrong, message):
    with pytest.raises(ValueError, match=message):
        coarsen(wrong, np.ones((5000, 3)), 1.0, tolerance=0.1)
