"""Sizes that exceed memory or the indices of jax are refused before any array is made."""

import importlib
import re

import jax
import numpy as np
import pytest
from flax import nnx

import clusterjax as cjx
from clusterjax import hardmax, phase, probe, sweep, transformer
from clusterjax._base import checks as check
from clusterjax._model import density as checks
from clusterjax.probe.networks.sizes import check_weights
from tests.helpers import as_a_user
from tests.probe_cases import sizes_like


X = np.eye(3)
MANY = 2**31 - 1
mean = lambda d, degree: cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=d, degree=degree)
run = lambda steps, **options: cjx.simulate(
    cjx.AttentionField(cjx.SoftmaxAttention(1.0)), X, [0.0, 1.0], max_steps=steps, **options
)
diagram = lambda *sizes: phase.PhaseDiagram(phase.Uniform(*sizes), [1.0])
NUMBERS = {"vocab_size": 8, "hidden_size": 4, "num_heads": 2, "intermediate_size": 4, "num_layers": 1}
small = lambda family, **numbers: sizes_like(family, **(NUMBERS | numbers))
network = lambda family, **numbers: probe.Network(small(family, **numbers), nnx.Rngs(0))
SIZES = {
    "n of more tokens than an array can index": lambda: cjx.Sphere().sample(jax.random.key(0), 2**20, 2**12),
    "n of more tokens than memory holds": lambda: cjx.Euclidean().sample(jax.random.key(0), 2**24, 4),
    "bins": lambda: cjx.cosine_histogram(X, 10**9),
    "degree": lambda: mean(2, 10**5),
    "degree of the sphere": lambda: mean(3, 10**3),
    "degree of a branch": lambda: phase.branch(cjx.UnnormalisedAttention(4.0), 2, degree=10**9),
    "degree of a branch that is no longer": lambda: phase.branch(cjx.UnnormalisedAttention(4.0), 2, degree=10**4),
    "n of a full mask": lambda: cjx.FullMask().matrix(10**5),
    "n of a causal mask": lambda: cjx.CausalMask().matrix(2**31),
    "n of a window": lambda: cjx.WindowMask(4).matrix(10**12),
    "n of a function": lambda: cjx.FunctionMask(lambda i, j: j <= i).matrix(10**9),
    "n of a uniform sink": lambda: cjx.uniform_causal_sink(10**9),
    "n of a longer uniform sink": lambda: cjx.uniform_causal_sink(2**31),
    "n of positions": lambda: transformer.sinusoidal_positions(10**7, 4),
    "n of a diagram": lambda: diagram(4, 10**9, 2),
    "samples": lambda: diagram(10**9, 2, 2),
    "max_steps": lambda: run(2**31),
    "max_steps of an interpolation": lambda: run(2**19, dense=True),
    "vocab_size": lambda: network("albert", vocab_size=MANY, embedding_size=4),
    "vocab_size of T5": lambda: network("t5", vocab_size=MANY),
    "vocab_size of Llama": lambda: network("llama", vocab_size=MANY, head_size=2),
    "max_positions": lambda: network("albert", embedding_size=4, max_positions=MANY),
    "intermediate_size": lambda: network("llama", intermediate_size=MANY, head_size=2),
    "hidden_size": lambda: network("bert", hidden_size=10**6),
}


@pytest.fixture(autouse=True)
def imported():
    """A module that is first imported while a test replaces `memory_room` would keep the replacement."""
    importlib.import_module("clusterjax.sweep._labels")


@pytest.mark.parametrize("name", SIZES)
def test_what_does_not_fit_is_refused(name, monkeypatch):
    monkeypatch.setattr(check, "memory_room", lambda: 2.0**28)
    with as_a_user(), pytest.raises(ValueError) as caught:
        SIZES[name]()
    assert re.match(
        rf"^{name.split()[0]} must (leave room|make no axis).*, but it is \d+, and .+; .+\.$", str(caught.value)
    )


def test_rotary_positions_need_no_room():
    network("llama", max_positions=MANY)


def test_a_table_may_have_more_numbers_than_int32_counts(monkeypatch):
    """The rows and the columns of the table are indexed separately."""
    monkeypatch.setattr(check, "memory_room", lambda: 2.0**40)
    check_weights(small("albert", vocab_size=2**20, embedding_size=2**12, hidden_size=2**12), np.dtype(np.float32))


@pytest.mark.parametrize("function", (hardmax.leaders, hardmax.limit_set, hardmax.certificate))
def test_layers_that_int32_does_not_count_are_refused(function):
    with as_a_user(), pytest.raises(ValueError, match=r"^depth must be an integer from . to 214748364\d, but it is 1"):
        function(X, hardmax.HardmaxLayer(1.0), depth=10**12)


@pytest.mark.parametrize("many", (10**9, 10**12, 10**30))
def test_an_axis_that_is_too_long_is_not_made(many):
    with as_a_user(), pytest.raises(ValueError, match=r"^beta must have at most 1e\+08 points, but it is .+; split"):
        sweep.run(lambda beta: beta, {"beta": range(many)}, batch_size=2)


@pytest.mark.parametrize("d", (2, 3))
@pytest.mark.parametrize("kappa", (0.0, 0.5, 3.0, 40.0, 1e5))
def test_the_degree_of_a_kernel_is_the_least_that_suffices(d, kappa):
    least = checks.degree_for(kappa, d)
    assert checks._left_out(kappa, d, least) <= 1e-6
    assert least == 1 or checks._left_out(kappa, d, least - 1) > 1e-6


@pytest.mark.parametrize("d", (2, 3))
def test_the_degree_of_long_queries(d):
    """For long queries the omitted share is exp(-degree^2 / (2 kappa)); the two formulas agree at the switch."""
    below, above = checks.degree_for(0.99999e8, d), checks.degree_for(1.00001e8, d)
    assert 0 <= above - below < 3
    assert checks.degree_for(1e12, d) == pytest.approx(np.sqrt(2e12 * np.log(1e6)), rel=1e-5)
    assert np.isfinite(checks._left_out(1e308, d, 10**154))
