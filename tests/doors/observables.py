"""Cases of the observables of `clusterjax`, and of `clusterjax.hardmax`."""

import functools

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from tests.doors.cases import Case, case
from tests.doors.lower import EYE, MASSES, D, N, T, X, rescaled


_lives = lambda: cjx.lifetimes(np.arange(4.0), np.array([3, 2, 2, 1]))
_survival = lambda: _lives().survival()


def _of_tokens() -> dict[str, Case]:
    energy = {"x": X, "beta": T, "query_key": EYE, "masses": MASSES}
    return {
        "angular_power": case({"x": X, "max_degree": 2, "masses": MASSES}),
        "close_pairs_fraction": case({"x": X, "cosine": T}),
        "cluster_labels": case({"x": X, "radius": T}),
        "cluster_sizes": case({"labels": jnp.zeros(N, int)}),
        "cosine_histogram": case({"x": X, "bins": 4}),
        "effective_rank": case({"x": X}),
        "energy_dissipation": case({"x": X, "velocity": X, "log_partition": jnp.ones(N), "masses": MASSES}),
        "hemisphere": case({"x": X}),
        "interaction_energy": case(energy, finite=False),
        "log_interaction_energy": case(energy),
        "neural_collapse": case(
            {"features": X, "labels": np.arange(N) % 2, "weights": np.ones((2, D)), "bias": np.zeros(2)}, finite=False
        ),
        "num_clusters": case({"x": X, "radius": T}),
        "pairwise_cosine": case({"x": X}),
        "perceptron_energy": case(
            {"x": X, "features": jnp.ones((4, D)), "amplitudes": jnp.ones(4), "primitive": jnp.cos, "masses": MASSES}
        ),
        "rank": case({"x": X, "tolerance": jnp.asarray(0.1)}),
        "renyi_centres": case({"x": X, "separation": T}),
        "sink_mass": case({"weights": jnp.full((N, N), 1 / N)}),
    }


def _of_numbers() -> dict[str, Case]:
    gamma = jnp.asarray(0.5)
    return {
        "effective_beta": case({"query_key": np.eye(D)}),
        "equiangular_beta": case({"t": T, "n": N, "delta": 1e-3}, finite=False),
        "equiangular_time": case({"gamma": gamma, "beta": T, "n": N, "gamma0": jnp.asarray(0.0)}, finite=False),
        "orthogonal_cosines": case({"ts": np.array([0.0, 1.0]), "beta": 1.0, "n": N}),
        "orthogonal_time": case({"share": np.array([0.5]), "beta": 1.0, "n": N, "gamma": 0.9}),
        "expected_strong_centres": case({"separation": T, "n": N, "d": D}),
        "lifetimes": case({"ts": np.arange(4.0), "states": np.array([3, 2, 2, 1]), "state": 2}, finite=False),
        "Lifetimes.survival": case({}, _lives),
        "Survival.at": case({"t": 1.0}, _survival),
        "Survival.quantile": case({"share": 0.5}, _survival),
        "Survival.restricted_mean": case({"horizon": 0.5}, _survival),
        "plateaus": case(
            {"ts": np.arange(4.0), "values": np.ones(4), "tolerance": 0.1, "min_dwell": 1.0}, finite=False
        ),
        "product_spectrum": case({"left": np.ones((D, 2)), "right": np.ones((2, D))}),
        "spectrum": case({"matrix": np.eye(D)}),
        "symmetric_part_spectrum": case({"matrix": np.eye(D)}),
        "uniform_causal_sink": case({"n": N}),
        "uniform_energy": case({"beta": 1.0, "d": D}),
        "wasserstein": case({"x": X, "y": X[::-1], "p": 2.0, "space": cjx.Sphere(), "masses": None}),
        "uniform_growth_rates": case({"beta": 1.0, "d": D, "max_degree": 2}),
    }


hard = functools.cache(lambda: cjx.hardmax.HardmaxLayer(1.0, jnp.eye(D)))


def _hardmax() -> dict[str, Case]:
    use = lambda: {"z0": X, "layer": hard(), "depth": 3}
    return {
        "hardmax.HardmaxLayer": case({"alpha": T, "A": EYE, "masses": MASSES}),
        "hardmax.HardmaxLayer.__call__": case({"k": T, "x": X}, hard),
        "hardmax.SoftmaxTwin": case(lambda: {"layer": hard(), "beta": T}),
        "hardmax.SoftmaxTwin.__call__": case({"k": T, "x": X}, lambda: cjx.hardmax.SoftmaxTwin(hard(), 2.0)),
        "hardmax.certificate": case(use, finite=False),  # a margin is infinite
        "hardmax.choose_leaders": case(lambda: {"z0": X, "wanted": [0], "starts": 1}),
        "hardmax.examine": case(use, finite=False),  # what is open is NaN
        "hardmax.leaders": case(use),
        "hardmax.limit_set": case(use),
    }


def _limits() -> dict[str, Case]:
    return {
        "limit_shape": case(lambda: {"x": X, "field": rescaled(), "t": 0.5, "tolerance": 0.1}, finite=False),
        "LimitShape.outline": case({"reach": 1.0}, lambda: cjx.limit_shape(X, rescaled())),
    }


CASES = {**_limits(), **_of_tokens(), **_of_numbers(), **_hardmax()}
