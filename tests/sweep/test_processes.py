"""Several devices and several processes write the same bytes as one; a SIGKILL loses only the batches in progress."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterjax import sweep
from tests.sweep_cases import content, fixed_date as fixed_date, run


pytestmark = pytest.mark.optimised  # as the other processes are

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a store that this process wrote on one device."""
    path = tmp_path_factory.mktemp("whole") / "store"
    run(path)
    return content(path)


def start(*arguments) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.sweep_process", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.exhaustive
def test_two_devices_write_the_same_bytes_and_a_kill_loses_what_is_in_flight(whole, tmp_path):
    """The third run of the process, on two devices, dies before its fifth batch is marked as finished."""
    process = start("devices", tmp_path)
    _, said = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, said
    assert content(tmp_path / "both") == whole
    assert content(tmp_path / "second") == whole
    assert int((sweep.open(tmp_path / "killed").status != 3).sum()) == 2 * 4
    run(tmp_path / "killed")
    assert content(tmp_path / "killed") == whole


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", (1, 17, 18, 20, 40))
def test_a_process_that_is_killed(whole, tmp_path, call):
    """Kills come as the store is made, before it is moved into place, and within the first and the last batch."""
    process = start("kill", tmp_path / "store", call)
    _, said = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, said
    run(tmp_path / "store")
    assert content(tmp_path / "store") == whole


@pytest.mark.exhaustive
def test_two_processes_share_the_batches(whole, tmp_path):
    """The processes use `jax.distributed`; both refuse what one of them refuses, and neither waits for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start("team", tmp_path, number, port) for number in range(2)]
    told = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert content(tmp_path / "team") == whole
    for words, _ in told:
        assert words.count("refused:") == 2 and "has seed 3" in words and "a folder that all processes see" in words
