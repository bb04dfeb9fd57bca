"""Runs of given tokens, for which no solver is compiled."""

import diffrax as dfx

from clusterjax._base.summary import Setup
from clusterjax._trajectory.interpolants import Stored
from clusterjax._trajectory.trajectory import Trajectory


def run_of(ts, xs):
    """Returns the run as `simulate` would return it."""
    return Trajectory(ts, xs, {}, dfx.RESULTS.successful, ts[-1], xs[-1], Stored(Setup.of()))
