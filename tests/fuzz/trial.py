"""Tries one damaged folder after the other; an outcome is equal, clean, different, or a fault."""

import contextlib
import re
import shutil
import signal
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clusterjax._files.sealed import BLANK, MODEL, checksum, seal
from tests.fuzz.loaders import Loader
from tests.fuzz.mutations import mutated


MOST_SECONDS = 20
MOST_MEGABYTES = 400


class Report(NamedTuple):
    """The outcomes of many trials.

    `counts` holds the number of each outcome, `faults` the damage and the outcome of each fault in words.
    """

    loader: str
    counts: Counter
    faults: list[str]


class TooLong(BaseException):
    """Raised in a trial that does not end."""


def try_many(loader: Loader, count: int, seed: int = 0) -> Report:
    """Damages the files of a loader `count` times.

    Equal: the values read are those written. Clean: a ValueError of one sentence names a file or its folder. Different:
    the damage changes the content of a file, and no checksum shows it, since the file has none or (every other trial)
    was given a right one. All other outcomes are faults: another error, other numbers without notice, numbers that are
    not finite, much memory or much time.
    """
    counts, faults = Counter(), []
    with tempfile.TemporaryDirectory(prefix="fuzz") as top, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, folder = Path(top) / "whole", Path(top) / "damaged"
        whole.mkdir()
        loader.make(whole)
        expected = digest(loader.read(whole))
        files = sorted(path for path in whole.rglob("*") if path.is_file() and ".lock" not in path.name)
        for number in range(count):
            rng = np.random.default_rng([seed, zlib.crc32(loader.name.encode()), number])
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            chosen = files[rng.integers(len(files))]
            target = folder / chosen.relative_to(whole)
            other = files[rng.integers(len(files))].read_bytes()
            way, data = mutated(target.name, target.read_bytes(), rng, other)
            target.write_bytes(data)
            signed = loader.ours and number % 2 == 1 and sign(target, checksum(chosen.read_bytes()))
            outcome, words = judge(loader, folder, expected, loader.ours and not signed)
            counts[outcome] += 1
            if outcome == "fault":
                faults.append(f"{loader.name}, trial {number}: {way} {target.name}{' signed' * signed}: {words}")
    return Report(loader.name, counts, faults)


def judge(loader: Loader, folder: Path, expected: Any, sealed: bool) -> tuple[str, str]:
    before = peak_megabytes(reset=True)
    try:
        with time_limit():
            found = loader.read(folder)
        outcome, words = ("equal", "") if digest(found) == expected else ("different", "read as something else")
        if outcome == "different" and sealed:
            outcome = "fault"
        elif not is_finite(found):
            outcome, words = "fault", "numbers that are not finite"
    except ValueError as error:
        names = [str(folder), *(path.name for path in folder.rglob("*")), *(f.name for f in folder.parent.rglob("*"))]
        named = any(name in str(error) for name in names)
        clean = type(error) is ValueError and named and re.search(r" must .*[,;] .*\.$", str(error), re.DOTALL)
        outcome, words = ("clean", "") if clean else ("fault", f"{type(error).__name__}: {str(error)[:200]}")
    except (Exception, TooLong) as error:
        outcome, words = "fault", f"{type(error).__name__}: {str(error)[:200]}"
    grown = peak_megabytes() - before
    return ("fault", f"{grown:.0f} MB") if grown > MOST_MEGABYTES else (outcome, words)


def sign(target: Path, former: str) -> bool:
    """Gives a damaged file, and the header of the model beside it, right checksums; True if there was a checksum.

    `former` is the checksum that the file had before.
    """
    model, found = target.with_name(MODEL), False
    if model.is_file() and former.encode() in model.read_bytes():
        model.write_bytes(model.read_bytes().replace(former.encode(), checksum(target.read_bytes()).encode()))
        found = True
    for path in (target, *((model,) if found else ())):
        data = path.read_bytes()
        mark = re.search(rb'\\?"sha256\\?": \\?"([0-9a-f]{64})', data)
        if mark is not None:
            path.write_bytes(seal(data[: mark.start(1)] + BLANK.encode() + data[mark.end(1) :]))
            found = True
    return found


def digest(value: Any) -> Any:
    """A value that can be compared: arrays by dtype, shape and bytes."""
    if isinstance(value, dict):
        return [(str(key), digest(entry)) for key, entry in sorted(value.items(), key=lambda item: str(item[0]))]
    if isinstance(value, list | tuple):
        return [digest(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), np.shape(value), value.tobytes()]
    return repr(value)


def is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.all(np.isfinite(value)))


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TooLong(f"more than {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak_megabytes(reset: bool = False) -> float:
    """The peak of the memory so far, or with `reset` the present memory; 0 if the system does not tell."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1000


def table(reports: list[Report]) -> str:
    """A table with one line for each loader."""
    kinds = ("equal", "clean", "different", "fault")
    lines = [f"{'loader':28}" + "".join(f"{kind:>11}" for kind in kinds)]
    lines += [f"{one.loader:28}" + "".join(f"{one.counts[kind]:11}" for kind in kinds) for one in reports]
    total = sum((one.counts for one in reports), Counter())
    return "\n".join([*lines, f"{'all':28}" + "".join(f"{total[kind]:11}" for kind in kinds)])


def show(reports: list[Report], most: int = 12, out: Any = sys.stdout) -> None:
    """Prints the table, and the first faults of each loader."""
    print(table(reports), file=out)
    for one in reports:
        print(*one.faults[:most], sep="\n", file=out)
