"""The persistent compilation cache of jax, in a folder of the user.

**Invariants.** The files of the cache are programs that run later. Nobody else may therefore own the folder, or write
to it. A program uses the instructions of one kind of processor, which the keys of jax do not name: each kind of
processor therefore has a separate folder, even if several machines share the folder of the user. All programs are kept,
whereas jax by default drops those that compile in less than a second, as most programs of a first run do.
"""

import hashlib
import os
import platform
import stat
import sys
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from .checks import check_path, refusal


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs on disk from now on, so that later processes read them: the persistent cache of jax.

    The setting applies to all programs that this process compiles with jax. The first run of a later process that also
    calls this function takes half the time. A change of the program, of the shapes, of the version of jax or of the
    processor compiles anew; nothing is ever deleted. jax keeps no program that can raise an error while it runs, such
    as a run within a `jit` of the caller, or with a `dt0`.

    jaxlib 0.10 may report features of the machine (`prefer-no-gather`) on the standard error for each program that it
    reads on a CPU. The features are preferences of its compiler; the environment variable `TF_CPP_MIN_LOG_LEVEL=3`
    hides the lines.

    **Arguments:**

    - `folder`: The folder, which is created with mode 700; None is `clusterjax/xla` in the cache folder of the user:
        `$XDG_CACHE_HOME` or `~/.cache`, `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows.

    **Returns:**

    The folder for the processor of this machine, within `folder`.

    **Raises:**

    - `ValueError` if `folder` is a file or cannot be created, or another user owns it or may write to it.
    """
    path = (_user_folder() if folder is None else check_path(folder, "folder")).absolute()
    for place in (path, path / _processor()):
        _make(place)
    _use(place)
    return place


def _make(path: Path) -> None:
    """Create the folder where it is missing; raises a ValueError unless it belongs to the user alone."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
    except OSError as error:
        raise refusal("folder", "be a folder", f"{str(path)!r} is not ({error})", "name another") from error
    # Windows has neither owners nor modes of this kind.
    if hasattr(os, "geteuid"):
        if state.st_uid != os.geteuid():
            raise refusal("folder", "belong to you", f"{str(path)!r} belongs to another user", "name another")
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = f"others may write to {str(path)!r}, and could replace your programs"
            raise refusal("folder", "be yours alone to write to", problem, "run chmod 700 on it, or name another")


def _use(path: Path) -> None:
    """Switch the cache of jax on, for programs of any size and any time of compilation."""
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # jax opens the folder of its cache once: a second call would otherwise change nothing.
    compilation_cache.reset_cache()


def _user_folder() -> Path:
    """The folder of this package within the cache folder of the user."""
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        # A relative path in this variable is invalid, by the specification of the XDG base directories.
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "")
        caches = folder if folder.is_absolute() else Path.home() / ".cache"
    return caches / "clusterjax" / "xla"


def _processor() -> str:
    """A name for the kind of processor, by its model and the instructions that it knows."""
    names = {platform.machine(), platform.processor()}
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        prefixes = ("flags", "Features", "model name")
        names |= {line for line in cpu.read_text("utf-8").splitlines() if line.startswith(prefixes)}
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
