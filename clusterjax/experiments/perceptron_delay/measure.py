"""What the figure on perceptrons measures: the flow of ALBERT's tokens, and a perceptron trained for two groups."""

from collections.abc import Callable
from dataclasses import dataclass

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .albert import Flows, measure_flows
from .trained import Trained, train_and_test


STARTS = 48  # of the groups, at most: each is run under six flows


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    texts: int = parameter(
        10, "the number of texts of ALBERT's tokens, at most that of starts", quick=4, least=2, most=48
    )
    tokens: int = parameter(32, "the number of tokens that a text is cut to", least=4, most=128)
    draws: int = parameter(6, "the number of random perceptrons", quick=3, least=2, most=64)
    steps: int = parameter(40, "the number of steps in which the perceptron is trained", quick=20, least=1, most=2000)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `starts`: How many starts of the two groups were tested.
    - `flows`: ALBERT's tokens under its attention, with and without its perceptron.
    - `learnt`: The perceptron that was trained to hold two groups apart.
    """

    p: Parameters
    starts: int
    flows: Flows
    learnt: Trained


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Both measurements, one after the other; they share nothing but the seed."""
    # More starts would take minutes and tell no more.
    starts = min(settings.starts, STARTS)
    flows = measure_flows(settings.seed, min(settings.starts, p.texts), p.tokens, p.draws, say)
    return Results(p, starts, flows, train_and_test(settings.seed, starts, p.steps, say))
