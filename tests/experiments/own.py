"""A small experiment of a user's own, with two parameters, as described in docs/experiments.md."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from clusterjax.experiments import Claim, Cost, Experiment, Measured, Outcome, Source, Subject, parameter


NONE, COINS = Subject("none", "no network"), Subject("coins", "coins")
PAPER = Source("A paper of our own", NONE, COINS, size={"tosses": 8})


@dataclass(frozen=True)
class Parameters:
    """The parameters of the experiment."""

    n: int = parameter(8, "the number of tosses", quick=4, least=1, most=64)
    share: float = parameter(0.5, "the share of heads", least=0, most=1)


def run(settings, say):
    """Toss coins."""
    p = settings.read(Parameters)
    say("tossing")
    heads = np.random.default_rng(settings.seed).random((settings.starts, p.n)) < p.share
    claim = Claim(
        says="Coins fall on both sides.", measured=f"{heads.mean():.3f} are heads", criterion="above 0.1",
        holds=bool(heads.mean() > 0.1), kind="paper", value=float(heads.mean()), source=PAPER,
    )  # fmt: skip
    on = Measured(NONE, COINS, {"tosses": p.n})
    return Outcome(f"{p.n} coins.", (claim,), {"coin": "fair"}, {"heads": heads.mean(1)}, Figure, None, on=on)


def experiment(name="coins", **more):
    """Returns the experiment under a given name."""
    fields = {"parameters": Parameters, "cost": Cost(full=2, quick=1), "asks": True} | more
    return Experiment(name, f"{name}_too", "Coins", "Do they fall on both sides?", fields.pop("run", run), **fields)
