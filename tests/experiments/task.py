"""Tasks that test_processes.py runs in other processes, which import this module."""

import os
import time

import jax


def work(folder, name, seconds, say):
    """Reports progress, marks its begin and end by files and returns its process id; two names make the task fail."""
    said = f"{name} {jax.config.jax_enable_x64}"
    (folder / f"{name}.begin").write_text(str(time.time()))
    for k in range(3):
        say(f"{said} {k}")
        time.sleep(seconds / 3)
    if name == "killed":
        os._exit(9)
    if name == "wrong":
        raise ValueError("seconds must be less, but they are not; wait.")
    (folder / f"{name}.end").write_text(str(time.time()))
    return os.getpid()


def environment(names, say):
    """Returns environment variables as another process sees them."""
    return [os.environ.get(name) for name in names]
