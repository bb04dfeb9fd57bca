"""Tasks in processes beside each other, for `reproduce(jobs=...)`.

**Algorithm.** A fresh process for each task, as many at a time as asked: what one has compiled and holds in memory goes
with it. Each sends its lines of progress through one pipe; they are said here, where the results come in too.
**Invariants.** The lines of a task come in their order, before its result; if one task fails, no other is begun, those
under way end, and its error is raised; numbers do not depend on how many run at a time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import jax


# How long lines may wait to be said, in seconds.
PAUSE = 0.2


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
    with ProcessPoolExecutor(jobs, context, _begin, (lines, settings), max_tasks_per_child=1) as pool:
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
