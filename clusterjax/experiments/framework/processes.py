"""Tasks in processes beside each other, for `reproduce(jobs=...)`.

**Algorithm.** A fresh process for each task, as many at a time as asked: what one has compiled and holds in memory goes
with it. Each sends its lines of progress through one pipe; they are said here, where the results come in too.
**Invariants.** The lines of a task come in their order, before its result; if one task fails, no other is begun, those
under way end, and its error is raised; numbers do not depend on how many run at a time, but for the last bits of
products of matrices, which BLAS sums in as many parts as it has threads.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import jax


# How long lines may wait to be said, in seconds.
PAUSE = 0.2
# How many threads the BLAS of NumPy takes, whichever it is. It reads this once, where NumPy is imported.
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def in_processes(
    task: Callable[..., Any],
    each: Sequence[tuple[Any, ...]],
    jobs: int,
    say: Callable[[str], None],
    ended: Callable[[int, Any], None],
) -> None:
    """Call `task(*arguments, say)` for each tuple of arguments, `jobs` at a time, and `ended(index, result)` for each.

    `task` is a function of a module, and arguments and results are pickled.
    """
    # Not by a fork: jax has threads, and a fork of them can stand still.
    context = get_context("spawn")
    # Of this kind a line is in the pipe when the call that sends it returns.
    lines = context.SimpleQueue()
    # What decides numbers and is set in Python; the environment is that of this process anyway.
    settings = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_platforms")}
    settings["jax_disable_most_optimizations"] = jax.config.read("jax_disable_most_optimizations")
    pool = ProcessPoolExecutor(jobs, context, _begin, (lines, settings), max_tasks_per_child=1)
    with _cores_shared(jobs), pool:
        waiting = {pool.submit(_run, task, arguments): index for index, arguments in enumerate(each)}
        try:
            while waiting:
                done, _ = wait(waiting, PAUSE, FIRST_COMPLETED)
                _tell(lines, say)
                for future in done:
                    ended(waiting.pop(future), future.result())
        except BrokenProcessPool as error:
            _tell(lines, say)
            raise ValueError(
                "jobs must be so few that memory suffices for them, but a process was ended before it was done; pass "
                "fewer, and what is done stays."
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            _tell(lines, say)
            raise


@contextmanager
def _cores_shared(jobs: int) -> Iterator[None]:
    """Processes that are begun here have each its share of the cores for BLAS, unless the user has said how many.

    Threads of BLAS wait for each other in a loop: with more of them than cores the products of small matrices of
    `coarsen` take three times as long.
    """
    mine = [name for name in BLAS if name not in os.environ] if jobs > 1 else []
    os.environ.update(dict.fromkeys(mine, str(max(1, (os.cpu_count() or 1) // jobs))))
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]


def _tell(lines: Any, say: Callable[[str], None]) -> None:
    while not lines.empty():
        say(lines.get())


_LINES: Any = None


def _begin(lines: Any, settings: dict[str, Any]) -> None:
    global _LINES
    _LINES = lines
    for name, value in settings.items():
        jax.config.update(name, value)


def _run(task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return task(*arguments, _LINES.put)
