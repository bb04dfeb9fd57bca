"""What test_processes.py asks other processes for; apart, since they import it."""

import os
import time

import jax


def work(folder, name, seconds, say):
    """What another process is asked for: it says its name and where it is, and leaves when it was there."""
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
    """What another process finds in its environment."""
    return [os.environ.get(name) for name in names]
