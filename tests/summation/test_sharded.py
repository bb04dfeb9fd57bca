"""Several devices, in processes of their own: forced CPU devices must be asked for before jax starts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import clusterjax as cjx
from tests.helpers import as_a_user, fresh_environment


ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-12


def start(part, devices, *where):
    quick = os.environ.get("XLA_FLAGS", "")
    settings = {
        "XLA_FLAGS": f"{quick} --xla_force_host_platform_device_count={devices}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(jax.config.read("jax_disable_most_optimizations")),
    }
    command = [sys.executable, str(ROOT / "tests" / "sharded_child.py"), part, *map(str, where)]
    return subprocess.Popen(
        command, env=fresh_environment(**settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(*children):
    """What the first of them has to say, when all have ended well; none is left behind."""
    try:
        said = [child.communicate(timeout=600) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, complaint) in zip(children, said, strict=True):
        assert child.returncode == 0, complaint[-3000:]
    return json.loads(said[0][0].splitlines()[-1])


COMPLAINTS = {
    "not divisible": "the 4 devices along the axis 'tokens' must divide the number of tokens, but it is 22",
    "unknown axis": "axis must be one of the mesh, ('tokens',), but it is 'rows'; name one of them.",
    "explicit mesh": "x0 must be cut over a mesh whose axes are Auto, but they are",
    "Rodas5P": "x0 must lie on one device with Rodas5P",
    "no mesh": "Sharded over 'tokens' needs a mesh, but none is set; pass mesh=",
}


@pytest.mark.exhaustive
def test_several_devices_sum_what_one_does():
    """Exponential and hardmax sums, averages, gradients, a trajectory; and a mesh that does not fit is refused.

    One test, since every process of the tests that runs a part of it starts a process of several devices for it.
    """
    found = results(start("ordinary", 4))
    complaints = found.pop("complaints")
    assert found.pop("run of 2 keeps its sharding") is True
    assert len(found) == 3
    assert {case: error for case, error in found.items() if not error < TOLERANCE} == {}
    for case, words in COMPLAINTS.items():
        assert (complaints[case] or "").startswith(words)


@pytest.mark.parametrize("inner", (None, cjx.Hull()), ids=("none", "hull"))
def test_inner_must_sum_parts(inner):
    with as_a_user(), pytest.raises(ValueError, match=r"^inner must be Harmonic, Dense, Blocked or Auto, but it is"):
        cjx.Sharded(inner, "tokens")


def test_axis_must_be_a_name():
    with as_a_user(), pytest.raises(ValueError, match=r"^axis must be a string that is not empty, but it is 0;"):
        cjx.Sharded(cjx.Dense(), 0)


@pytest.mark.exhaustive
def test_every_mask_on_two_and_four_devices():
    """With gradients and second derivatives, rows that no series serves, and a mesh that is set and not passed."""
    found = results(start("exhaustive", 4))
    assert len(found) == 25
    assert {name: error for name, error in found.items() if not (error is True or error < 1e-10)} == {}


@pytest.mark.exhaustive
def test_two_processes_sum_what_one_does():
    """Two devices each, over the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = results(*(start("processes", 2, port, rank) for rank in range(2)))
    assert found["devices"] == [2, 4, 2]
    assert found["ring"] < TOLERANCE
    assert found["run"] < TOLERANCE
    assert found["run keeps its sharding"] is True
