"""reproduce: run experiments, write each figure's files whole or not at all, skip what is done.

A figure is done if its folder holds a `results.json` with the same fingerprint (all settings and parameters that decide
what it looks like), all its files, and no violated identity. A folder is written under another name and renamed, so
that a reader and an interrupted run see the old figure or the new one. Everything that can be refused is refused before
anything is computed, and one run at a time writes to a gallery; it may have figures in several processes.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax

from ..._base.checks import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_path,
    check_say,
    check_sequence,
)
from ..._base.log import log_line as print_line
from ..._files.disk import OLD, draft_beside
from ..._files.lock import locked
from ...plot import animate, player, save
from ...sentiment._released import shipped_digest
from ...sentiment._reviews import digest
from ..shared.layout import headed
from .experiment import (
    Experiment,
    Film,
    Outcome,
    Say,
    Settings,
    changed_parameters,
    changed_words,
    identity_of,
    parameters_of,
    undeclared,
    with_changed,
)
from .listing import find_experiments, is_known
from .page import refuse_another_page, write_gallery
from .record import RESULTS, SCHEMA, command_line, lines_of, read_record, record_of
from .verdict import VIOLATED


# Tasks in processes beside each other, for `reproduce(jobs=...)`.
#
# **Algorithm.** A fresh process for each task, as many at a time as asked: what one has compiled and holds in memory
# goes with it. Each sends its lines of progress through one pipe; they are said here, where the results come in too.
# **Invariants.** The lines of a task come in their order, before its result; if one task fails, no other is begun,
# those under way end, and its error is raised; numbers do not depend on how many run at a time, but for the last bits
# of products of matrices, which BLAS sums in as many parts as it has threads.


# How long lines may wait to be said, in seconds.
PAUSE = 0.2
# How many threads the BLAS of NumPy takes, whichever it is. It reads this once, where NumPy is imported.
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def in_processes(
    task: Callable[..., Any],
    each: Sequence[tuple[Any, ...]],
    jobs: int,
    say: Say,
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


def _tell(lines: Any, say: Say) -> None:
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


UNFINISHED = ".clusterjax.unfinished"
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Files:
    """Which files each figure gets.

    **Attributes:**

    - `formats`: Of the still picture: any of "png", "svg", "pdf"; the gallery shows the PNG.
    - `film`: Whether a run is also a GIF, and a page that plays it.
    """

    formats: tuple[str, ...] = FORMATS
    film: bool = True

    def __post_init__(self):
        formats = check_sequence(self.formats, "formats", str, "names of formats")
        checked = tuple(check_choice(name, "formats", FORMATS) for name in formats)
        object.__setattr__(self, "formats", checked)
        check_flag(self.film, "film")


def reproduce(
    names: Sequence[str | Experiment],
    out: str | Path,
    settings: Settings,
    files: Files = Files(),
    *,
    force: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = print_line,
) -> list[dict[str, Any]]:
    """Run these experiments (none: all of the package) and write pictures, films, numbers and a gallery into `out`.

    Each figure's folder is written under another name and put in place when it is whole, so that an interrupted run
    leaves finished figures as they are and nothing half-written. A figure that is there with the same settings,
    parameters and version is not run again; one with others is replaced. An experiment of your own is known by its
    `version`, or without one by the text of the file that defines its `run`; see `Experiment`. What the figures of
    networks have measured of their texts is kept in `.clusterjax.unfinished` of `out` until they are done, so that a
    run that was killed goes on; that of other settings is removed. Files of others that lie in the folder of a figure
    stay; what would have to be replaced by a figure or the gallery is refused.

    **Arguments:**

    - `names`: Figures, such as `"figure3"`, and experiments of your own, each an `Experiment`.
    - `out`: The folder of the gallery; made if it is not there.
    - `settings`: Seed, number of starts, and so on; their `store` is the one in `out`. Each of the experiments must
        declare what their `parameters` set.
    - `files`: Which files to write.
    - `force`: Whether to run figures that are done already.
    - `jobs`: How many figures to run at a time; more than one each in a process of its own, those that take longest
        first, with the same numbers. A script that passes more than 1 needs `if __name__ == "__main__":`, as Python's
        `multiprocessing` says. Experiments of your own run one after the other.
    - `say`: Called with each line of progress.

    **Returns:**

    What was written to each `results.json`, in the order of the figures.

    **Raises:**

    - `ValueError` for an unknown figure, two experiments of one name, a parameter that one of them does not declare
        or of a value that it does not allow, a folder that cannot be written, that another process is writing to or
        that holds what a figure or the gallery would replace, or a checkpoint that cannot be read.
    """
    experiments, out = find_experiments(names), check_path(out, "out")
    check_instance(settings, "settings", Settings, "Settings", "pass Settings(quick=True), for example")
    check_instance(files, "files", Files, "Files", "pass Files(('png',)), for example")
    check_flag(force, "force")
    jobs = check_integer(jobs, "jobs", remedy="pass how many figures to run at a time")
    check_say(say)
    _refuse_undeclared(experiments, settings)
    # All fingerprints first: they read networks and texts, and refuse what cannot be read.
    fingerprints = [fingerprint(experiment, settings, files) for experiment in experiments]
    for experiment in experiments:
        if experiment.check is not None:
            experiment.check(settings)
    with locked(out):
        for experiment in experiments:
            _refuse_strangers(out / experiment.name)
        refuse_another_page(out)
        try:
            return _reproduce_in(out, experiments, fingerprints, settings, files, force, jobs, say)
        finally:
            # Here, when no process is making a folder in it; it stays while something is kept there.
            with suppress(OSError):
                (out / UNFINISHED).rmdir()


def _reproduce_in(
    folder: Path,
    experiments: Sequence[Experiment],
    asked: Sequence[dict[str, Any]],
    settings: Settings,
    files: Files,
    force: bool,
    jobs: int,
    say: Say,
) -> list[dict[str, Any]]:
    """`reproduce` in a folder that no other run writes to."""
    results: list[Any] = [None] * len(experiments)
    announced, apart = False, []
    if len(experiments) > 1:
        seconds = sum(_seconds(experiment, settings.quick) for experiment in experiments)
        say(f"{len(experiments)} figures, about {max(1, round(seconds / 60))} minutes on two cores if none is done yet")
    for number, (experiment, request) in enumerate(zip(experiments, asked, strict=True), 1):
        # Progress says which figure of how many.
        head = f"[{number}/{len(experiments)}] {experiment.name}"
        place = folder / experiment.name
        # Of a user's experiment that cannot be identified nothing is known, see `identity`.
        known = is_known(experiment) or request["experiment"] is not None
        if not known:
            say(f"{head}: run again, for nothing tells whether it has changed; give it a version")
        # A figure of a user's own whose identity is unknown is never taken for done.
        done = _finished(place, request, say) if known and not force else None
        if done is not None:
            say(f"{head}: done already; --force runs it again")
            results[number - 1] = done
            continue
        if experiment.reads_texts and not announced:
            from ..shared.networks import network_of

            say(network_of(settings).reading)
            announced = True
        if jobs > 1 and is_known(experiment):
            apart.append((number - 1, (experiment.name, folder, settings, files, request, head)))
            continue
        results[number - 1] = _run_and_keep(experiment, folder, settings, files, request, head, say)
        _report(results[number - 1], head, say)
        write_gallery(folder)

    def ended(index: int, record: dict[str, Any]) -> None:
        place, (*_, head) = apart[index]
        results[place] = record
        # Here, and not line by line from another process, so that what figures claim is not mixed.
        _report(record, head, say)
        write_gallery(folder)

    # The shortest first, so that there is a picture soon; then the longest, so that none runs alone at the end.
    apart.sort(key=lambda each: -_seconds(experiments[each[0]], settings.quick))
    apart = [*apart[-1:], *apart[:-1]]
    if apart:
        in_processes(_run_and_keep, [arguments for _, arguments in apart], min(jobs, len(apart)), say, ended)
    write_gallery(folder)
    return results


def _seconds(experiment: Experiment, quick: bool) -> float:
    cost = experiment.cost
    return 0.0 if cost is None else float(cost.quick if quick else cost.full)


def _run_and_keep(
    named: str | Experiment, folder: Path, settings: Settings, files: Files, wanted: dict[str, Any], *rest: Any
) -> dict[str, Any]:
    """`_run_one` of an experiment, or by the name of one: functions are no arguments of another process."""
    (experiment,) = find_experiments([named])
    # What is measured is kept until the figure is done: a run that was killed goes on.
    with _unfinished(folder, wanted) as store:
        settings = replace(settings, store=store)
        return _run_one(experiment, folder / experiment.name, settings, files, wanted, *rest)


def fingerprint(experiment: Experiment, settings: Settings, files: Files) -> dict[str, Any]:
    """All that decides what a figure looks like: if it is the same, the figure need not be run again."""
    inputs: dict[str, Any] = {
        "name": experiment.name,
        "seed": settings.seed,
        "starts": settings.starts,
        "quick": settings.quick,
        "formats": list(files.formats),
        "film": files.film,
        "clusterjax": version("clusterjax"),
        "schema": SCHEMA,
    }
    if not is_known(experiment):
        inputs["experiment"] = identity_of(experiment)
    # Only where there are some, so that fingerprints of experiments without parameters stay as they were.
    if values := asdict(settings.read(experiment.parameters)):
        inputs["parameters"] = values
    # Each input counts only for the figures that read it: other reviews leave figure 3 as it is.
    if experiment.reads_reviews:
        inputs["reviews"] = digest(settings.imdb)
        # Without reviews, some figures are of the classifier of the package.
        inputs |= {"classifier": shipped_digest()} if settings.imdb is None else {}
    if experiment.reads_causal:
        from ..shared.causal import causal_digest

        inputs["causal network"] = causal_digest(settings)
    if not (experiment.reads_network or experiment.reads_texts or experiment.reads_package):
        return inputs
    from ..shared.networks import network_digest, network_of, package_digest  # which needs the extra probe

    if experiment.reads_network or experiment.reads_texts:
        inputs["network"] = network_digest(settings, texts=experiment.reads_texts)
    if experiment.reads_package:
        inputs["network"] = package_digest()
    if experiment.reads_depth and settings.depth is not None:
        inputs["depth"] = settings.depth
    if experiment.reads_texts and len(network_of(settings).texts.mask) < experiment.least_texts:
        raise ValueError(
            f"texts must be at least {experiment.least_texts} for {experiment.name}, but there are "
            f"{len(network_of(settings).texts.mask)}; read more."
        )
    return inputs


def _refuse_undeclared(experiments: Sequence[Experiment], settings: Settings) -> None:
    """Raise a ValueError if the settings have a parameter that one of the experiments does not declare."""
    declared = {experiment.name: parameters_of(experiment.parameters) for experiment in experiments}
    names_of = {name: {experiment.name for experiment in of_experiment} for name, of_experiment in declared.items()}
    # Every figure that is run must declare every parameter that is set: a name that one of them ignores would be a
    # mistake unseen.
    unknown = [name for name in settings.parameters if any(name not in names for names in names_of.values())]
    if unknown:
        lacking = [name for name, names in names_of.items() if not names.issuperset(unknown)]
        raise undeclared(unknown, {name: declared[name] for name in lacking})


def _run_one(
    experiment: Experiment,
    place: Path,
    settings: Settings,
    files: Files,
    wanted: dict[str, Any],
    head: str,
    say: Say,
) -> dict[str, Any]:
    began = time.perf_counter()
    # Before the run: it may not change what counts as changed.
    changed = changed_parameters(settings.read(experiment.parameters), quick=settings.quick)
    # Accelerators would round factors of float32 to ten bits where a product asks for nothing else.
    with jax.default_matmul_precision("highest"):
        # Progress is prefixed with the number and name of the figure.
        outcome = experiment.run(settings, lambda phase: say(f"{head}: {phase}"))
    check_instance(outcome, f"what {experiment.name} returns", Outcome, "an Outcome", "return one")
    outcome = with_changed(outcome, changed_words(changed))
    # Measured apart from drawing, as drawing depends on formats and films.
    simulated = time.perf_counter() - began
    with _whole_folder(place) as draft:
        say(f"{head}: drawing")
        written = [
            path.name for path in save(headed(outcome.draw(), outcome.heading), draft / experiment.name, files.formats)
        ]
        film = outcome.film
        if files.film and film is not None:
            gif = draft / f"{experiment.name}.gif"
            written.append(gif.name)
            if isinstance(film, Film):
                # At most 61 frames: more make the gallery large and show no more.
                frames, fps = min(24 if settings.quick else 61, len(film.ts)), 8 if settings.quick else 15
                shown: Any = {"ts": film.ts, "highlight": film.highlight}
                animate(film.xs, gif, frames=frames, fps=fps, trail=film.trail, **shown)
                page = draft / f"{experiment.name}-player.html"
                player(film.xs, page, title=experiment.title, **shown)
                written.append(page.name)
            else:
                # A function draws a film alone: only runs can be played.
                film(gif)
        seconds = {"simulation": round(simulated, 2), "total": round(time.perf_counter() - began, 2)}
        record = record_of(experiment, outcome, wanted, written, seconds, command_line(experiment, settings))
        # allow_nan=False: NaN is no JSON, and must have become null.
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        (draft / RESULTS).write_text(text + "\n", "utf-8")
    return record


def _report(record: dict[str, Any], head: str, say: Say) -> None:
    say(f"{head}: {record['seconds']['total']:.1f} s")
    for line in lines_of(record):
        say(line)


def _finished(place: Path, wanted: dict[str, Any], say: Say) -> dict[str, Any] | None:
    """What is recorded in `place`, if it is the wanted figure, all its files are there, and no identity failed."""
    if not place.is_dir():
        return None
    try:
        record = read_record(place)
    except ValueError as error:
        say(f"{place.name}: {error}")
        return None
    # A file that was deleted, or an identity that was violated, is reason to run again.
    complete = all((place / name).is_file() for name in record["files"])
    complete = complete and all(claim["verdict"] != VIOLATED for claim in record["claims"])
    return record if complete and record["fingerprint"] == wanted else None


@contextmanager
def _unfinished(folder: Path, wanted: dict[str, Any]):
    """A folder for what is measured of this figure, kept if it is interrupted and removed when it is done."""
    folder_of_figure = folder / UNFINISHED / wanted["name"]
    for place in (folder_of_figure.parent, folder_of_figure):
        # rmtree and mkdir below would follow it.
        if place.is_symlink():  # it would lead to files that are not ours
            place.unlink()
    # One folder for each fingerprint: what was measured under other settings must not be taken up.
    store = folder_of_figure / sha256(json.dumps(wanted).encode()).hexdigest()[:16]
    for other in folder_of_figure.glob("*"):
        if other != store:
            # Of other settings: they will not be asked for again, and may be large.
            shutil.rmtree(other, ignore_errors=True)
    yield store
    shutil.rmtree(folder_of_figure, ignore_errors=True)


def _strangers(place: Path) -> list[Path]:
    """What is in the folder of a figure and has none of the names that its files have."""
    ours = {RESULTS, f"{place.name}-player.html", *(f"{place.name}.{kind}" for kind in (*FORMATS, "gif"))}
    return [entry for entry in sorted(place.iterdir()) if entry.name not in ours] if place.is_dir() else []


def _refuse_strangers(place: Path) -> None:
    """Raise a ValueError if something else than the folder of a figure has its place, or what cannot stay is in it."""
    wrong = place if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()) else None
    if wrong is None and place.is_dir() and any(place.iterdir()) and not (place / RESULTS).is_file():
        wrong = place
    for entry in () if wrong else _strangers(place):
        within = (entry, *entry.rglob("*")) if entry.is_dir() and not entry.is_symlink() else (entry,)
        wrong = next((path for path in within if not (path.is_file() or path.is_dir() or path.is_symlink())), wrong)
    if wrong is not None:
        raise ValueError(
            f"out must have no folders of others under the names of figures, but {str(wrong)!r} is of another program; "
            "move it away, or choose another folder."
        )


@contextmanager
def _whole_folder(place: Path):
    """A folder beside `place` that takes its place if all goes well, and is removed if not."""
    with draft_beside(place) as draft, draft_beside(place, OLD) as old:
        draft.mkdir()
        yield draft
        # Copied before the folders change places: whenever a kill comes, the one that counts has what others put there.
        for entry in _strangers(place):
            if entry.is_dir() and not entry.is_symlink():
                shutil.copytree(entry, draft / entry.name, symlinks=True)
            else:
                shutil.copy2(entry, draft / entry.name, follow_symlinks=False)
        if place.exists():
            place.rename(old)
        # Two renamings: there is no way to exchange two folders in one step on every system.
        draft.rename(place)
