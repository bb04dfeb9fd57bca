"""Several devices, each test in new processes: forced CPU devices must be requested before jax starts."""

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
    """Returns the result of the first process when all have ended well; kills all processes that remain."""
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
    """Exponential and hardmax sums, gradients, averages and a run agree; a mesh that does not fit is refused.

    There is one test, since each worker that ran a part of it would start a process of several devices.
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
    """Sums, gradients and second derivatives agree, also in rows that no series serves, and for a mesh that is set."""
    found = results(start("exhaustive", 4))
    assert len(found) == 25
    assert {name: error for name, error in found.items() if not (error is True or error < 1e-10)} == {}


@pytest.mark.exhaustive
def test_two_processes_sum_what_one_does():
    """Each process has two devices; the processes communicate over the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = results(*(start("processes", 2, port, rank) for rank in range(2)))
    assert found["devices"] == [2, 4, 2]
    assert found["ring"] < TOLERANCE
    assert found["run"] < TOLERANCE
    assert found["run keeps its sharding"] is True
