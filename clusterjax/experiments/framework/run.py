"""`reproduce`: run experiments, write the folder of each figure atomically, and skip figures that are done.

A figure is done if its folder has a `results.json` with the same fingerprint (all inputs that determine the figure),
all of its files, and no violated identity. A folder is written under another name and then renamed, so that a reader,
or an interrupted run, sees either the old figure or the new one. All arguments are checked before anything is computed.
One run at a time writes to a gallery; the run may compute figures in several processes.
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
    Inapplicable,
    Outcome,
    Say,
    Settings,
    changed_parameters,
    identity_of,
    parameters_of,
    set_fields,
    undeclared,
    with_changed,
)
from .listing import find_experiments, is_known
from .page import refuse_another_page, write_gallery
from .record import RESULTS, SCHEMA, command_line, lines_of, read_record, record_of
from .verdict import VIOLATED


# Figures in parallel processes, for `reproduce(jobs=...)`.
#
# **Algorithm.** Each task has a new process, whose compiled programs and memory are freed when it ends. All processes
# send their lines of progress through one pipe to this process, which reports the lines and collects the results.
# **Invariants.** The lines of a task are reported in order, before its result. If a task fails, no other task begins,
# the running tasks finish, and the error is raised. The numbers do not depend on the number of processes, except for
# rounding errors of matrix products, which BLAS sums in as many parts as it has threads.


# The largest delay of a line of progress, in seconds.
PAUSE = 0.2
# The variables of the environment with the number of threads of BLAS, which BLAS reads when NumPy is imported.
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def in_processes(
    task: Callable[..., Any],
    all_arguments: Sequence[tuple[Any, ...]],
    jobs: int,
    say: Say,
    ended: Callable[[int, Any], None],
) -> None:
    """Call `task(*arguments, say)` for each tuple of arguments, `jobs` at a time, and `ended(index, result)` for each
    result. `task` must be a function of a module, since arguments and results are pickled."""
    # A forked process can deadlock, because jax has threads.
    context = get_context("spawn")
    # `SimpleQueue.put` returns after the line is in the pipe, so that no line follows the result of its task.
    lines = context.SimpleQueue()
    # The new processes inherit the environment, but not the settings of jax that affect numbers.
    settings = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_platforms")}
    settings["jax_disable_most_optimizations"] = jax.config.read("jax_disable_most_optimizations")
    pool = ProcessPoolExecutor(jobs, context, _begin, (lines, settings), max_tasks_per_child=1)
    with _cores_shared(jobs), pool:
        waiting = {pool.submit(_run, task, arguments): index for index, arguments in enumerate(all_arguments)}
        try:
            while waiting:
                done, _ = wait(waiting, PAUSE, FIRST_COMPLETED)
                _report_lines(lines, say)
                for future in done:
                    ended(waiting.pop(future), future.result())
        except BrokenProcessPool as error:
            _report_lines(lines, say)
            raise ValueError(
                "jobs must be few enough for the memory of the machine, but a process was ended before it was done; "
                "pass fewer, and run again: finished figures are kept."
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            _report_lines(lines, say)
            raise


@contextmanager
def _cores_shared(jobs: int) -> Iterator[None]:
    """Limit BLAS in the processes that start within the block to an equal share of the cores, unless the user has set
    its number of threads.

    Threads of BLAS wait for each other in busy loops: with more threads than cores the small matrix products of
    `coarsen` take three times as long.
    """
    unset = [name for name in BLAS if name not in os.environ] if jobs > 1 else []
    os.environ.update(dict.fromkeys(unset, str(max(1, (os.cpu_count() or 1) // jobs))))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


def _report_lines(lines: Any, say: Say) -> None:
    while not lines.empty():
        say(lines.get())


_LINES: Any = None  # the pipe of a new process for its lines of progress


def _begin(lines: Any, settings: dict[str, Any]) -> None:
    """The initialiser of a new process."""
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
    """The files of each figure.

    **Attributes:**

    - `formats`: The formats of the still picture: any of "png", "svg", "pdf"; the gallery shows the PNG.
    - `film`: Whether a run is also written as a GIF, and as a page that plays it.
    """

    formats: tuple[str, ...] = FORMATS
    film: bool = True

    def __post_init__(self):
        formats = check_sequence(self.formats, "formats", str, "names of formats")
        checked = tuple(check_choice(name, "formats", FORMATS) for name in formats)
        set_fields(self, formats=checked, film=check_flag(self.film, "film"))


def reproduce(
    names: Sequence[str | Experiment],
    out: str | Path,
    settings: Settings,
    files: Files = Files(),
    *,
    force: bool = False,
    jobs: int = 1,
    leave_out: bool = False,
    say: Callable[[str], None] = print_line,
) -> list[dict[str, Any]]:
    """Run experiments, and write their pictures, films and numbers and a gallery of them into the folder `out`.

    The folder of each figure is written under another name and renamed when it is complete, so that an interrupted run
    keeps finished figures and leaves no incomplete one. A figure with the same settings, parameters and version is not
    run again; a figure with others is replaced. An experiment of your own is identified by its `version`, or by the
    text of the file that defines its `run`; see `Experiment`. Intermediate measurements of the figures of networks are
    kept in `.clusterjax.unfinished` of `out` until their figure is done, so that a killed run continues; those of other
    settings are removed. Files of other programs in the folder of a figure are kept. A folder or page of another
    program that a figure or the gallery would replace is refused.

    **Arguments:**

    - `names`: Names of figures, such as `"figure3"`, and experiments of your own, each an `Experiment`; an empty list
        means all figures of the package.
    - `out`: The folder of the gallery, created if necessary.
    - `settings`: Seed, number of starts, and so on; the `store` is replaced by one in `out`. Each of the experiments
        must declare all `parameters` of the settings.
    - `files`: The files to write.
    - `force`: Whether to run figures that are done already.
    - `jobs`: The number of figures that run at a time. If it is more than 1, each figure of the package runs in its own
        process, with the same numbers; your script then needs `if __name__ == "__main__":`, as for Python's
        `multiprocessing`. Experiments of your own run one after the other.
    - `leave_out`: Whether figures that the network of the settings cannot have are left out, with a line that says why;
        otherwise they raise an error.
    - `say`: A function that is called with each line of progress.

    **Returns:**

    The content of each `results.json`, in the order of the figures.

    **Raises:**

    - `ValueError` for an unknown figure, two experiments of one name, a parameter that an experiment does not declare
        or whose value it does not allow, or a checkpoint that cannot be read; if `out` cannot be written, is in use by
        another process, or has a folder or page of another program in the place of a figure or of the gallery.
    """
    experiments, out = find_experiments(names), check_path(out, "out")
    check_instance(settings, "settings", Settings, "Settings", "pass Settings(quick=True), for example")
    check_instance(files, "files", Files, "Files", "pass Files(('png',)), for example")
    check_flag(force, "force")
    check_flag(leave_out, "leave_out")
    jobs = check_integer(jobs, "jobs", remedy="pass the number of figures to run at a time")
    check_say(say)
    _refuse_undeclared(experiments, settings)
    # All fingerprints are computed first, since they read networks and texts, and refuse unreadable ones.
    fingerprints = {experiment.name: fingerprint(experiment, settings, files) for experiment in experiments}
    experiments = [each for each in experiments if not _inapplicable(each, settings, leave_out, say)]
    with locked(out):
        for experiment in experiments:
            _refuse_strangers(out / experiment.name)
        refuse_another_page(out)
        try:
            return _reproduce_in(out, experiments, fingerprints, settings, files, force, jobs, say)
        finally:
            # The folder is removed if it is empty, while the lock keeps other processes from using it.
            with suppress(OSError):
                (out / UNFINISHED).rmdir()


def _inapplicable(experiment: Experiment, settings: Settings, leave_out: bool, say: Say) -> bool:
    """True if an experiment is left out, because the network of the settings cannot have its figure."""
    try:
        if experiment.check is not None:
            experiment.check(settings)
    except Inapplicable as error:
        if not leave_out:
            raise
        say(f"{experiment.name} is left out: {error}")
        return True
    return False


def _reproduce_in(
    folder: Path,
    experiments: Sequence[Experiment],
    fingerprints: dict[str, dict[str, Any]],
    settings: Settings,
    files: Files,
    force: bool,
    jobs: int,
    say: Say,
) -> list[dict[str, Any]]:
    """`reproduce` in a folder that is locked."""
    results: list[Any] = [None] * len(experiments)
    announced, tasks = False, []

    def finish(index: int, record: dict[str, Any], head: str) -> None:
        results[index] = record
        say(f"{head}: {record['seconds']['total']:.1f} s")
        for line in lines_of(record):
            say(line)
        write_gallery(folder)

    if len(experiments) > 1:
        seconds = sum(_seconds(experiment, settings.quick) for experiment in experiments)
        say(f"{len(experiments)} figures, about {max(1, round(seconds / 60))} minutes on two cores if none is done yet")
    for index, experiment in enumerate(experiments):
        wanted, head = fingerprints[experiment.name], f"[{index + 1}/{len(experiments)}] {experiment.name}"
        # The figure of a user's experiment of unknown identity is never taken for done; see `identity_of`.
        identified = is_known(experiment) or wanted["experiment"] is not None
        if not identified:
            say(f"{head}: run again, because nothing shows whether the experiment has changed; give it a version")
        done = _finished(folder / experiment.name, wanted, say) if identified and not force else None
        if done is not None:
            say(f"{head}: done already; --force runs it again")
            results[index] = done
            continue
        if experiment.reads_texts and not announced:
            from ..shared.networks import network_of

            say(network_of(settings).reading)
            announced = True
        if jobs > 1 and is_known(experiment):
            tasks.append((index, (experiment.name, folder, settings, files, wanted, head)))
        else:
            finish(index, _run_and_keep(experiment, folder, settings, files, wanted, head, say), head)
    # The shortest task is first, so that there is a picture soon. The longest follow, so that none runs alone at the
    # end.
    tasks.sort(key=lambda task: -_seconds(experiments[task[0]], settings.quick))
    tasks = [*tasks[-1:], *tasks[:-1]]
    if tasks:
        # The claims are reported here and not in the processes, so that the lines of different figures do not mix.
        ended = lambda task, record: finish(tasks[task][0], record, tasks[task][1][-1])
        in_processes(_run_and_keep, [arguments for _, arguments in tasks], min(jobs, len(tasks)), say, ended)
    write_gallery(folder)
    return results


def _seconds(experiment: Experiment, quick: bool) -> float:
    cost = experiment.cost
    return 0.0 if cost is None else float(cost.quick if quick else cost.full)


def _run_and_keep(
    named: str | Experiment, folder: Path, settings: Settings, files: Files, wanted: dict[str, Any], *rest: Any
) -> dict[str, Any]:
    """`_run_one` of an experiment or of its name, which, unlike functions, can be sent to another process."""
    (experiment,) = find_experiments([named])
    # Intermediate measurements are kept until the figure is done, so that a killed run continues.
    with _unfinished(folder, wanted) as store:
        settings = replace(settings, store=store)
        return _run_one(experiment, folder / experiment.name, settings, files, wanted, *rest)


def fingerprint(experiment: Experiment, settings: Settings, files: Files) -> dict[str, Any]:
    """All inputs that determine a figure; a figure with an equal fingerprint need not be run again."""
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
    if values := asdict(settings.read(experiment.parameters)):
        inputs["parameters"] = values
    # Each input counts only for the figures that read it.
    if experiment.reads_reviews:
        inputs["reviews"] = digest(settings.imdb)
        # Without reviews, some figures show the classifier of the package.
        inputs |= {"classifier": shipped_digest()} if settings.imdb is None else {}
    if experiment.reads_causal:
        from ..shared.causal import causal_digest

        inputs["causal network"] = causal_digest(settings)
    if not (experiment.reads_network or experiment.reads_texts or experiment.reads_package):
        return inputs
    from ..shared.networks import network_digest, network_of, package_digest  # needs the extra `probe`

    if experiment.reads_network or experiment.reads_texts:
        inputs["network"] = network_digest(settings, texts=experiment.reads_texts)
    if experiment.reads_package:
        inputs["network"] = package_digest()
    if experiment.reads_depth and settings.depth is not None:
        inputs["depth"] = settings.depth
    if experiment.reads_texts and (count := len(network_of(settings).texts.mask)) < experiment.least_texts:
        raise ValueError(
            f"texts must be at least {experiment.least_texts} for {experiment.name}, but there are {count}; read more."
        )
    return inputs


def _refuse_undeclared(experiments: Sequence[Experiment], settings: Settings) -> None:
    """Raise a ValueError if the settings have a parameter that one of the experiments does not declare, since a user
    would not notice that the experiment ignores it."""
    declared = {experiment.name: parameters_of(experiment.parameters) for experiment in experiments}
    names = {name: {parameter.name for parameter in parameters} for name, parameters in declared.items()}
    unknown = [name for name in settings.parameters if any(name not in known for known in names.values())]
    if unknown:
        raise undeclared(unknown, {name: declared[name] for name in declared if not names[name].issuperset(unknown)})


def _run_one(
    experiment: Experiment,
    place: Path,
    settings: Settings,
    files: Files,
    wanted: dict[str, Any],
    head: str,
    say: Say,
) -> dict[str, Any]:
    """Run an experiment, write its folder, and return its record."""
    began = time.perf_counter()
    # The run, which comes later, could change the settings.
    changed = changed_parameters(settings, experiment.parameters)
    # By default, accelerators round the factors of float32 products to ten bits.
    with jax.default_matmul_precision("highest"):
        outcome = experiment.run(settings, lambda phase: say(f"{head}: {phase}"))
    check_instance(outcome, f"the result of {experiment.name}", Outcome, "an Outcome", "return one")
    outcome = with_changed(outcome, changed)
    # The time of drawing is separate, because it depends on formats and films.
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
                # More than 61 frames enlarge the gallery and show no more.
                frames, fps = min(24 if settings.quick else 61, len(film.ts)), 8 if settings.quick else 15
                shown: Any = {"ts": film.ts, "highlight": film.highlight}
                animate(film.xs, gif, frames=frames, fps=fps, trail=film.trail, **shown)
                page = draft / f"{experiment.name}-player.html"
                player(film.xs, page, title=experiment.title, **shown)
                written.append(page.name)
            else:
                # A film that a function draws has no tokens for a player.
                film(gif)
        seconds = {"simulation": round(simulated, 2), "total": round(time.perf_counter() - began, 2)}
        record = record_of(experiment, outcome, wanted, written, seconds, command_line(experiment, settings))
        # allow_nan=False: NaN is no JSON, and `record_of` has replaced it by null.
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        (draft / RESULTS).write_text(text + "\n", "utf-8")
    return record


def _finished(place: Path, wanted: dict[str, Any], say: Say) -> dict[str, Any] | None:
    """The record in the folder `place` if it has the wanted fingerprint, all files exist, and no identity is violated;
    otherwise None."""
    if not place.is_dir():
        return None
    try:
        record = read_record(place)
    except ValueError as error:
        say(f"{place.name}: {error}")
        return None
    complete = all((place / name).is_file() for name in record["files"])
    complete = complete and all(claim["verdict"] != VIOLATED for claim in record["claims"])
    return record if complete and record["fingerprint"] == wanted else None


@contextmanager
def _unfinished(folder: Path, wanted: dict[str, Any]):
    """A folder for intermediate measurements of a figure; it is removed after the block, but kept after an error."""
    figure_folder = folder / UNFINISHED / wanted["name"]
    for place in (figure_folder.parent, figure_folder):
        # `mkdir` and `rmtree` would follow a link to files of other programs.
        if place.is_symlink():
            place.unlink()
    # Each fingerprint has its own folder, so that measurements under other settings are never used.
    store = figure_folder / sha256(json.dumps(wanted).encode()).hexdigest()[:16]
    for other in figure_folder.glob("*"):
        if other != store:
            # Measurements under other settings are unlikely to be used again, and may be large.
            shutil.rmtree(other, ignore_errors=True)
    yield store
    shutil.rmtree(figure_folder, ignore_errors=True)


def _strangers(place: Path) -> list[Path]:
    """The files and folders in the folder of a figure that are not of the figure, by their names."""
    ours = {RESULTS, f"{place.name}-player.html", *(f"{place.name}.{kind}" for kind in (*FORMATS, "gif"))}
    return [entry for entry in sorted(place.iterdir()) if entry.name not in ours] if place.is_dir() else []


def _refuse_strangers(place: Path) -> None:
    """Raise a ValueError if `place` is not a folder of a figure, or has entries such as pipes, which cannot be copied
    to its successor."""
    wrong = place if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()) else None
    if wrong is None and place.is_dir() and any(place.iterdir()) and not (place / RESULTS).is_file():
        wrong = place
    for entry in () if wrong else _strangers(place):
        within = (entry, *entry.rglob("*")) if entry.is_dir() and not entry.is_symlink() else (entry,)
        wrong = next((path for path in within if not (path.is_file() or path.is_dir() or path.is_symlink())), wrong)
    if wrong is not None:
        raise ValueError(
            f"out must have no folders of other programs under the names of figures, but {str(wrong)!r} is one; move "
            "it away, or choose another folder."
        )


@contextmanager
def _whole_folder(place: Path):
    """A draft of the folder `place`, which replaces it after the block; after an error the draft is removed."""
    with draft_beside(place) as draft, draft_beside(place, OLD) as old:
        draft.mkdir()
        yield draft
        # The copies precede the renaming, so that files of other programs survive a kill at any moment.
        for entry in _strangers(place):
            if entry.is_dir() and not entry.is_symlink():
                shutil.copytree(entry, draft / entry.name, symlinks=True)
            else:
                shutil.copy2(entry, draft / entry.name, follow_symlinks=False)
        if place.exists():
            place.rename(old)
        # Not every system can exchange two folders in one step.
        draft.rename(place)
