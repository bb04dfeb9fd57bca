"""Cases of the observables of `clusterjax`, and of `clusterjax.hardmax`."""

import functools

import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from tests.doors.cases import Case, case
from tests.doors.lower import ARGS, EYE, MASSES, OPTIONAL, PARAMETER, SCALAR, TOKENS, D, N, T, X, rescaled
from tests.doors.rules import (
    ARRAY,
    BATCH,
    CALLABLE,
    CLASS_OF_FLOATS,
    COUNT,
    EMPTY,
    FLAG,
    INFINITE,
    LIST,
    LONG,
    NONE,
    NUMBER,
    POSITIVE,
    SIZE,
    TRACED,
    rule,
)


VECTOR = ARRAY | SIZE
ANY_SHAPE = ARRAY | BATCH | SIZE | EMPTY | LONG | COUNT


def _lives() -> cjx.Lifetimes:
    return cjx.lifetimes(np.arange(4.0), np.array([3, 2, 2, 1]))


def _survival() -> cjx.Survival:
    return _lives().survival()


def _of_tokens() -> dict[str, Case]:
    beta = {"beta": SCALAR, "query_key": OPTIONAL, "masses": OPTIONAL}
    energy = {"x": X, "beta": T, "query_key": EYE, "masses": MASSES}
    return {
        "angular_power": case(
            {"x": X, "max_degree": 2, "masses": MASSES}, dear=True, x=TOKENS, max_degree=COUNT, masses=OPTIONAL
        ),
        "close_pairs_fraction": case({"x": X, "cosine": T}, dear=True, x=TOKENS, cosine=SCALAR),
        "cluster_labels": case({"x": X, "radius": T}, dear=True, x=TOKENS, radius=POSITIVE | TRACED),
        "cluster_sizes": case({"labels": jnp.zeros(N, int)}, dear=True, labels=ARRAY | SIZE),
        "cosine_histogram": case({"x": X, "bins": 4}, dear=True, x=TOKENS),
        "effective_rank": case({"x": X}, dear=True, x=TOKENS),
        "energy_dissipation": case(
            {"x": X, "velocity": X, "log_partition": jnp.ones(N), "masses": MASSES},
            dear=True,
            x=ARRAY,
            velocity=ARRAY,
            log_partition=OPTIONAL,
            masses=OPTIONAL,
        ),
        "hemisphere": case({"x": X}, dear=True, x=TOKENS),
        "interaction_energy": case(energy, dear=True, finite=False, x=TOKENS, **beta),
        "log_interaction_energy": case(energy, dear=True, x=TOKENS, **beta),
        "neural_collapse": case(
            {"features": X, "labels": np.arange(N) % 2, "weights": np.ones((2, D)), "bias": np.zeros(2)},
            dear=True,
            finite=False,  # means that are equal
            features=TOKENS,
            labels=ARRAY | SIZE,
            weights=ARRAY | SIZE,
            bias=OPTIONAL | SIZE,
        ),
        "num_clusters": case({"x": X, "radius": T}, dear=True, x=TOKENS, radius=POSITIVE | TRACED),
        "pairwise_cosine": case({"x": X}, dear=True, x=TOKENS),
        "perceptron_energy": case(
            {"x": X, "features": jnp.ones((4, D)), "amplitudes": jnp.ones(4), "primitive": jnp.cos, "masses": MASSES},
            dear=True,
            x=TOKENS,
            features=ARRAY,
            amplitudes=ARRAY,
            masses=OPTIONAL,
            primitive=CALLABLE,
        ),
        "rank": case({"x": X, "tolerance": jnp.asarray(0.1)}, dear=True, x=TOKENS, tolerance=COUNT | POSITIVE | TRACED),
        "renyi_centres": case({"x": X, "separation": T}, dear=True, x=TOKENS, separation=POSITIVE | TRACED),
        "sink_mass": case({"weights": jnp.full((N, N), 1 / N)}, dear=True, weights=ARRAY | SIZE),
    }


def _of_numbers() -> dict[str, Case]:
    gamma = jnp.asarray(0.5)
    return {
        "effective_beta": case({"query_key": np.eye(D)}, query_key=ARRAY | SIZE),
        "equiangular_beta": case(
            {"t": T, "n": N, "delta": 1e-3}, dear=True, finite=False, t=ANY_SHAPE | POSITIVE | COUNT | TRACED
        ),
        "equiangular_time": case(
            {"gamma": gamma, "beta": T, "n": N, "gamma0": jnp.asarray(0.0)},
            dear=True,
            finite=False,
            gamma=ANY_SHAPE | TRACED,
            beta=ANY_SHAPE | SCALAR,
            gamma0=ANY_SHAPE | COUNT | TRACED,
        ),
        "orthogonal_cosines": case(
            {"ts": np.array([0.0, 1.0]), "beta": 1.0, "n": N}, ts=ARRAY, beta=POSITIVE | COUNT, unnormalised=FLAG
        ),
        "orthogonal_time": case(
            {"share": np.array([0.5]), "beta": 1.0, "n": N, "gamma": 0.9},
            share=ARRAY | LONG | rule("other shape", "as many shares as wanted"),
            beta=POSITIVE | COUNT,
            unnormalised=FLAG,
        ),
        "expected_strong_centres": case(
            {"separation": T, "n": N, "d": D}, dear=True, separation=POSITIVE | TRACED, n=INFINITE
        ),
        "lifetimes": case(
            {"ts": np.arange(4.0), "states": np.array([3, 2, 2, 1]), "state": 2},
            finite=False,
            ts=ARRAY,
            states=ARRAY | rule("nan array", "times that a run did not reach"),
            state=NONE | COUNT,
        ),
        "Lifetimes.survival": case({}, _lives),
        "Survival.at": case({"t": 1.0}, _survival, t=COUNT | POSITIVE),
        "Survival.quantile": case({"share": 0.5}, _survival, share=COUNT | POSITIVE),
        "Survival.restricted_mean": case({"horizon": 0.5}, _survival, horizon=POSITIVE),
        "plateaus": case(
            {"ts": np.arange(4.0), "values": np.ones(4), "tolerance": 0.1, "min_dwell": 1.0},
            finite=False,
            ts=ARRAY,
            values=ARRAY,
            tolerance=COUNT | POSITIVE,
            min_dwell=COUNT | POSITIVE,
        ),
        "product_spectrum": case(
            {"left": np.ones((D, 2)), "right": np.ones((2, D))}, left=ARRAY | SIZE, right=ARRAY | SIZE
        ),
        "spectrum": case({"matrix": np.eye(D)}, matrix=ARRAY | SIZE),
        "symmetric_part_spectrum": case({"matrix": np.eye(D)}, matrix=ARRAY | SIZE),
        "uniform_causal_sink": case({"n": N}, dtype=NONE | CLASS_OF_FLOATS),
        "uniform_energy": case({"beta": 1.0, "d": D}, beta=NUMBER),
        "wasserstein": case(
            {"x": X, "y": X[::-1], "p": 2.0, "space": cjx.Sphere(), "masses": None},
            x=ARRAY | SIZE,
            y=ARRAY | SIZE,
            p=rule("one and a half", "a power of at least one"),
        ),
        "uniform_growth_rates": case({"beta": 1.0, "d": D, "max_degree": 2}, beta=NUMBER, max_degree=COUNT),
    }


hard = functools.cache(lambda: cjx.hardmax.HardmaxLayer(1.0, jnp.eye(D)))


def _hardmax() -> dict[str, Case]:
    use = lambda: {"z0": X, "layer": hard(), "depth": 3}
    return {
        "hardmax.HardmaxLayer": case(
            {"alpha": T, "A": EYE, "masses": MASSES},
            alpha=POSITIVE | TRACED,
            A=PARAMETER,
            masses=OPTIONAL | SIZE,
            tie_tolerance=NONE | COUNT | POSITIVE | TRACED,
        ),
        "hardmax.HardmaxLayer.__call__": case({"k": T, "x": X}, hard, dear=True, k=SCALAR, x=TOKENS, args=ARGS),
        "hardmax.SoftmaxTwin": case(lambda: {"layer": hard(), "beta": T}, beta=SCALAR),
        "hardmax.SoftmaxTwin.__call__": case(
            {"k": T, "x": X}, lambda: cjx.hardmax.SoftmaxTwin(hard(), 2.0), dear=True, k=SCALAR, x=TOKENS, args=ARGS
        ),
        "hardmax.certificate": case(use, dear=True, finite=False, z0=ARRAY | SIZE),  # a margin is infinite
        "hardmax.choose_leaders": case(
            lambda: {"z0": X, "wanted": [0], "starts": 1},
            dear=True,
            z0=ARRAY | SIZE,
            condition=POSITIVE,
            alphas=SIZE | LIST,
            seed=COUNT,
        ),
        "hardmax.examine": case(use, dear=True, finite=False, z0=ARRAY | SIZE),  # what is open is NaN
        "hardmax.leaders": case(use, dear=True, z0=ARRAY | SIZE, depth=COUNT),
        "hardmax.limit_set": case(use, dear=True, z0=ARRAY | SIZE),
    }


def _limits() -> dict[str, Case]:
    return {
        "limit_shape": case(
            lambda: {"x": X, "field": rescaled(), "t": 0.5, "tolerance": 0.1},
            dear=True,
            finite=False,  # of a shape that fits no tokens the residuals are infinite
            x=ARRAY | SIZE,
            t=NUMBER | NONE,
            tolerance=POSITIVE,
        ),
        "LimitShape.outline": case({"reach": 1.0}, lambda: cjx.limit_shape(X, rescaled()), reach=POSITIVE),
    }


CASES = {**_limits(), **_of_tokens(), **_of_numbers(), **_hardmax()}
