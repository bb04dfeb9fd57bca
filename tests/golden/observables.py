"""Canonical observables of generic and degenerate tokens, and the exact formulas."""

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax import phase

from .. import clouds
from ..helpers import normal, sphere_tokens
from .register import golden


CLOUDS = {
    name: jnp.asarray(clouds.cloud(name, 10, 3, seed=4, sphere=True)) for name in ("generic", "repeats", "antipodes")
}
MASSES = jnp.asarray(clouds.masses("some zero", 10, seed=2))
FORM = normal(1, 3, 3)


def of_clouds(measures):
    return {f"{name}: {part}": measure(x) for part, measure in measures.items() for name, x in CLOUDS.items()}


@golden()
def clusters_and_angles():
    return of_clouds({
        "labels": lambda x: cjx.cluster_labels(x, 0.8),
        "sizes": lambda x: np.bincount(cjx.cluster_labels(x, 0.8), minlength=10),
        "number": lambda x: cjx.num_clusters(x, 0.8),
        "cosines": lambda x: cjx.pairwise_cosine(x)[0],
        "histogram": lambda x: cjx.cosine_histogram(x, jnp.asarray([-1.01, -0.5, 0.2, 0.9, 1.01]))[0],
        "close pairs": lambda x: phase.ClosePairs(0.7)(x.T[:, :, None])[0],
        "effective rank": cjx.effective_rank,
        "rank": lambda x: cjx.rank(x, 1e-3),
        "angular power": lambda x: cjx.angular_power(x, 6, MASSES),
        "centres": lambda x: cjx.renyi_centres(x, 0.6),
        "strong centres": lambda x: cjx.renyi_centres(x, 0.6, strong=True),
        "open hemisphere": lambda x: cjx.hemisphere(x[:4]).is_open_hemisphere,
        "margin": lambda x: cjx.hemisphere(x[:4]).margin,
    })  # fmt: skip


@golden()
def energies():
    velocity = normal(2, 10, 3)
    partition = cjx.SoftmaxAttention(2.0).log_partition
    relu = lambda s: jnp.maximum(s, 0) ** 2 / 2
    return of_clouds({
        "interaction": lambda x: cjx.interaction_energy(x, 4.0, FORM, MASSES),
        "log": lambda x: cjx.log_interaction_energy(x, 900.0),
        "dissipation": lambda x: cjx.energy_dissipation(x, velocity, log_partition=partition(x)),
        "perceptron": lambda x: cjx.perceptron_energy(x, normal(3, 4, 3), normal(4, 4), relu, MASSES),
    })  # fmt: skip


@golden()
def wasserstein_distances():
    x, y = (np.asarray(sphere_tokens(seed, n, 3)) for seed, n in ((5, 6), (6, 6)))
    flat = lambda z: z[:, :2] / np.linalg.norm(z[:, :2], axis=1, keepdims=True)
    masses = np.array([0.0, 1.0, 2.0, 0.5, 0.25, 0.25])
    return {
        "sphere": cjx.wasserstein(x, y), "first power": cjx.wasserstein(x, y, 1.0),
        "circle": cjx.wasserstein(flat(x), flat(y)),
        "space": cjx.wasserstein(x, y, space=cjx.Euclidean()), "sizes": cjx.wasserstein(x, y[:4]),
        "masses": cjx.wasserstein(x, y, masses=(masses, masses[::-1].copy())),
        "line": cjx.wasserstein(x[:, :1], y[:, :1], space=cjx.Euclidean()),
    }  # fmt: skip


@golden()
def lives_and_plateaus():
    ts = np.array([0.0, 1.0, 3.0, 10.0, 30.0, 100.0])
    states = np.array([[3, 3, 2, 2, 1, 1], [4, 3, 2, 2, 2, 2], [3, 2, 2, 1, 1, -1], [2, 1, 1, 1, 1, 1]])
    lives = cjx.lifetimes(ts, states, state=2)
    survival = lives.survival()
    flat = cjx.plateaus(ts, np.array([1.0, 1.02, 1.5, 1.52, 1.51, 3.0]), tolerance=0.05, min_dwell=1.0)
    return {
        "durations": lives.durations, "censored": lives.censored, "least": lives.least, "most": lives.most,
        "median": lives.median, "times": survival.times, "survival": survival.probabilities,
        "errors": survival.standard_errors, "restricted mean": survival.restricted_mean(50.0), "start": flat.start,
        "stop": flat.stop, "level": flat.level, "escapes": flat.escape_times,
    }  # fmt: skip


@golden()
def collapse_of_features():
    labels = jnp.asarray([0, 1, 2, 0, 1, 2, 0, 1])
    features = normal(7, 3, 4)[labels] + 0.1 * normal(8, 8, 4)
    found = cjx.neural_collapse(features, labels, normal(9, 3, 4), normal(10, 3))
    names = ("variability", "equinorm_means", "equinorm_weights", "equiangular_means", "equiangular_weights",
             "self_duality", "disagreement")  # fmt: skip
    return {name: getattr(found, name) for name in names}


@golden()
def spectra_and_sinks():
    parts = lambda values: np.stack([values.real, np.abs(values.imag)])
    weights = cjx.SoftmaxAttention(4.0, query_key=FORM, mask=cjx.CausalMask()).weights(CLOUDS["repeats"])
    return {
        "spectrum": parts(cjx.spectrum(normal(11, 4, 4))), "symmetric": cjx.symmetric_part_spectrum(FORM),
        "product": parts(cjx.product_spectrum(normal(12, 5, 2), normal(13, 2, 5))), "beta": cjx.effective_beta(FORM),
        "sink": cjx.sink_mass(weights), "with self": cjx.sink_mass(weights, include_self=True),
        "uniform sink": cjx.uniform_causal_sink(8, dtype=jnp.float64),
    }  # fmt: skip


@golden(float64=1e-7)  # the times of causal pairs are read off a run of a host solver
def exact_formulas():
    gamma, shares = np.array([0.1, 0.5, 0.99]), np.array([0.1, 0.5, 0.9])
    found = {}
    for unnormalised in (False, True):
        name = "unnormalised" if unnormalised else "softmax"
        options = {"unnormalised": unnormalised}
        found |= {
            f"time, {name}": cjx.equiangular_time(gamma, np.array([0.5, 2.0, 9.0]), 8, **options),
            f"log time, {name}": cjx.equiangular_time(gamma, 60.0, 8, log=True, **options),
            f"beta, {name}": cjx.equiangular_beta(np.array([2.0, 20.0]), 8, **options),
            f"rates, {name}": cjx.uniform_growth_rates(4.0, 3, 6, **options),
            f"causal times, {name}": cjx.orthogonal_time(shares, 1.0, 6, mask=cjx.CausalMask(), **options),
        }
    found["cosines"] = cjx.orthogonal_cosines(np.array([0.5, 3.0]), 2.0, 5, mask=cjx.CausalMask())
    found["strong centres"] = cjx.expected_strong_centres(0.5, 40, 2)
    found["uniform energy"] = [cjx.uniform_energy(2.0, 3), cjx.uniform_energy(50.0, 8)]
    return found
