"""The processes that the tests of sweeps start: `python -m tests.sweep_process TASK FOLDER [NUMBER [PORT]]`."""

import os
import signal
import sys
from pathlib import Path


task, folder, *rest = sys.argv[1:]
if task == "devices":
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import jax


jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

from tests.sweep_cases import run


def killed_at(call: int, store: Path) -> None:
    """A run that dies by SIGKILL instead of moving its `call`-th file or folder into place."""
    calls = [0]

    def killing(place):
        def placed(*arguments):
            calls[0] += 1
            if calls[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return place(*arguments)

        return placed

    os.replace, os.rename = killing(os.replace), killing(os.rename)
    run(store)


if task == "devices":
    first, second = jax.local_devices()
    run(Path(folder) / "both")
    run(Path(folder) / "second", devices=[second])
    killed_at(36, Path(folder) / "killed")
elif task == "kill":
    killed_at(int(rest[0]), Path(folder))
elif task == "team":
    number, port = map(int, rest)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    found = run(Path(folder) / "team")
    assert not (found.status == 3).any() and jax.process_count() == 2
    try:
        run(Path(folder) / "team", seed=4)
    except ValueError as error:
        print("refused:", error)
    try:
        run(Path(folder) / f"apart{number}")
    except ValueError as error:
        print("refused:", error)
    sys.stdout.flush()
    jax.distributed.shutdown()
