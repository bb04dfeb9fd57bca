"""Checks sizes before jax sees them: an axis must have 32-bit indices, and the arrays must fit in memory.

jax itself fails with `RESOURCE_EXHAUSTED`, raises an overflow that does not name the argument, or ends the interpreter.
"""

import math
import os
from pathlib import Path

import jax

from ._words import refusal, shown


# The largest number of entries along an axis: jax counts them in int32.
MOST_ENTRIES = 2**31 - 1

# A smaller size is not compared with the memory, since reading the state of the machine takes time.
_LITTLE = 2**28

# The memory limit of a container, in the two versions of the kernel's interface.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_room(value: int, name: str, num_bytes: int | float, what: str, *, longest: int = 0, remedy: str) -> None:
    """Raise a ValueError if arrays of `num_bytes` bytes do not fit in memory, or int32 cannot index one of their axes.

    **Arguments:**

    - `value`: The size that was requested, which the message gives.
    - `num_bytes`: The memory of all arrays that exist at the same time, which exceeds that of the result if the
        computation holds several arrays of its size.
    - `what`: A description of these arrays, in the plural, such as "the tokens and what draws them".
    - `longest`: The number of entries along their longest axis.
    """
    if longest > MOST_ENTRIES:
        entries = f"{longest:.1e}" if longest >= 10**15 else str(longest)
        found = f"it is {shown(value)}, and one axis has {entries} entries, more than {MOST_ENTRIES}"
        raise refusal(name, "make no axis longer than int32 can index", found, remedy)
    if num_bytes > _LITTLE and num_bytes > (room := memory_room()):
        found = f"it is {shown(value)}, and {what} take {_gibibytes(num_bytes)}, while {_gibibytes(room)} are free"
        raise refusal(name, "leave room in memory", found, remedy)


def memory_room(*, device: bool = True) -> int | float:
    """The free bytes on the first device of jax, or on this machine; infinite if the number is not available."""
    # jax gives no statistics for CPU devices.
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
    except (AttributeError, ValueError, OSError):  # the number is not available
        return math.inf


def _limit(file: Path) -> int | float:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):  # no container of this kind, or one without a limit, "max"
        return math.inf


def _gibibytes(num_bytes: int | float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB" if num_bytes < 2**60 else f"{num_bytes:.1e} bytes"
