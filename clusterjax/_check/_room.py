"""Sizes are held against what an array can hold, before jax sees them: 32-bit indices along an axis, and memory.

jax itself says `RESOURCE_EXHAUSTED`, raises an overflow without a name, or ends the interpreter.
"""

import math
import os
from pathlib import Path

import jax

from ._words import refusal, shown


# The most entries along an axis: jax counts them in int32.
MOST_ENTRIES = 2**31 - 1

# What takes less is not held against the memory: a door is not the place to read the state of a machine for little.
_LITTLE = 2**28

# The limit of a container, in the two versions of the kernel's interface.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_room(value: int, name: str, num_bytes: int | float, what: str, *, longest: int = 0, remedy: str) -> None:
    """Raise a ValueError if arrays of so many bytes do not fit in memory, or one has an axis that int32 cannot index.

    **Arguments:**

    - `value`: The size that was asked for, which the message names.
    - `num_bytes`: What the arrays take together at the same time; more than the numbers of the result where the
        computation holds several of its size.
    - `what`: These arrays in words, in the plural, such as "the tokens and what draws them".
    - `longest`: The entries along their longest axis.
    """
    if longest > MOST_ENTRIES:
        entries = f"{longest:.1e}" if longest >= 10**15 else str(longest)
        found = f"it is {shown(value)}, and one axis has {entries} entries, more than {MOST_ENTRIES}"
        raise refusal(name, "make no axis longer than int32 can index", found, remedy)
    if num_bytes > _LITTLE and num_bytes > (room := memory_room()):
        found = f"it is {shown(value)}, and {what} take {_gibibytes(num_bytes)}, while {_gibibytes(room)} are free"
        raise refusal(name, "leave room in memory", found, remedy)


def memory_room(*, device: bool = True) -> int | float:
    """The bytes that are free on the first device of jax, or on this machine; infinite if nothing says how many."""
    # Of CPU devices jax knows none.
    stats = jax.local_devices()[0].memory_stats() or {} if device else {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return min(_free_on_host(), *map(_limit, _LIMITS))


def _free_on_host() -> int | float:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, LookupError):  # not Linux
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # it does not say
        return math.inf


def _limit(file: Path) -> int | float:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):  # no container of this kind, or one without a limit, "max"
        return math.inf


def _gibibytes(num_bytes: int | float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB" if num_bytes < 2**60 else f"{num_bytes:.1e} bytes"
