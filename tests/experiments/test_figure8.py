"""Figure 8: the claim on the weight of the first token does not depend on one seed."""

import numpy as np
import pytest

from clusterjax import uniform_causal_sink
from clusterjax.experiments.figures.figure8 import TS, Parameters, Results, no_sink


@pytest.mark.parametrize(
    ("factor", "at", "holds"), [(0.89, -1, True), (0.93, -1, True), (1.3, -1, False), (1.3, 5, False)]
)
def test_a_sink_is_what_exceeds_uniform_attention_at_any_time(factor, at, holds):
    """A weight that ends 7 % or 11 % below uniform attention makes no sink; an excess that passes again does."""
    uniform = float(uniform_causal_sink(64)[0])
    weight = np.full((8, len(TS)), 0.8 * uniform) + 0.001 * np.linspace(-1, 1, 8)[:, None]
    weight[:, at] += (factor - 0.8) * uniform
    made = object.__new__(Results)
    made.__dict__.update(p=Parameters(), weight=weight)
    claim = no_sink(made)
    assert claim.holds == holds and claim.value == pytest.approx(weight[:, -1].mean())
