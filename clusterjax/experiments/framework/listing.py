"""The list of the figures, `figures.toml`, and their experiments, each of which is imported when it is first needed.

Reading the list does not import jax, so that the help of the command, its completion and `reproduce --list` are fast.
"""

import dataclasses
import functools
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple


if TYPE_CHECKING:
    from .experiment import Experiment

EXPERIMENTS: "tuple[Experiment, ...]"
"""All figures of the package whose libraries are installed, in the order of the gallery."""

STARTS, QUICK_STARTS = 256, 64  # the number of starts of a full and of a quick run of the command
WIDE = 100  # the number of letters in a line of the table
_HARD = "\N{NO-BREAK SPACE}"  # textwrap does not break a line here
_HEAD = ("name, alias", "full", "quick", "claim or question; for a named figure also its parameters")
_FIGURES = "clusterjax.experiments.figures"
_BRINGS = {"probe": ("flax", "transformers"), "sweep": ("xarray", "zarr")}  # the libraries of each extra


class Entry(NamedTuple):
    """An entry of `figures.toml`, which documents the keys."""

    name: str
    alias: str
    title: str
    question: str
    seconds: tuple[int | float, int | float] | None = None
    extras: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    asks: bool = False
    least_texts: int = 2
    documents: bool = False
    explored: str = ""
    probe: str = ""

    @property
    def lacks(self) -> tuple[str, ...]:
        """The extras that the figure needs and that are not installed; no library is imported."""
        return tuple(extra for extra in self.extras if any(find_spec(library) is None for library in _BRINGS[extra]))


class Paper(NamedTuple):
    """A paper, or a group of papers, with its figures in the order of the gallery; `key` is its anchor in the page."""

    key: str
    title: str
    short: str
    figures: tuple[Entry, ...]


OWN = Paper("own", "Not of this library: figures of your own", "your own", ())


@functools.cache
def papers() -> tuple[Paper, ...]:
    """The papers of `figures.toml`."""
    listed = tomllib.loads((Path(__file__).parents[1] / "figures.toml").read_text("utf-8"))
    fixed: Any = lambda value: tuple(value) if isinstance(value, list) else value
    entry = lambda table: Entry(**{key: fixed(value) for key, value in table.items()})
    return tuple(
        Paper(group["key"], group["title"], group["short"], tuple(map(entry, group["figure"])))
        for group in listed["paper"]
    )


def entries() -> dict[str, Entry]:
    """The figures of the package by name, in the order of the gallery."""
    return {entry.name: entry for paper in papers() for entry in paper.figures}


def entries_by_folder() -> dict[str, Entry]:
    """The figures of the package, in order, by their names and by the names that some have in `clusterjax probe`."""
    return {name: entry for entry in entries().values() for name in (entry.name, entry.probe) if name}


def paper_of(name: str) -> Paper:
    """The paper of the figure of this name; `OWN` for a figure that the package does not have."""
    return next((paper for paper in papers() if entries_by_folder().get(name) in paper.figures), OWN)


@functools.cache
def load(name: str) -> "Experiment":
    """The experiment of a figure under either of its names, which becomes its name; the module of it is imported."""
    entry = entries_by_folder()[name]
    experiment = import_module(f"{_FIGURES}.{entry.name.replace('-', '_')}").FIGURE
    # `clusterjax probe` shows any network, so its titles do not have the numbers of the figures of a paper.
    title = re.sub(r"^Figure \d+: (.)", lambda start: start[1].upper(), entry.title)
    return experiment if name == entry.name else dataclasses.replace(experiment, name=name, title=title)


def __getattr__(name: str) -> Any:
    if name != "EXPERIMENTS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(load(entry.name) for entry in entries().values() if not entry.lacks)


def find_experiments(names: "Sequence[str | Experiment]") -> "list[Experiment]":
    """The experiments of these names, each once, in the order of the gallery, followed by experiments of a user's own.

    !!! example

        ```python
        >>> from clusterjax import experiments
        >>> (figure,) = experiments.find_experiments(["figure4"])
        >>> print(figure.claim)
        At beta = 9 distinct clusters persist in a metastable state and do not collapse to a single point.
        ```

    **Arguments:**

    - `names`: Names or aliases of figures, such as `"figure3"`, and experiments; an empty list means all figures of the
        package.

    **Returns:**

    A list of experiments.

    **Raises:**

    - `ValueError` for a name that no figure has, or an experiment with the name or alias of another experiment.
    - `ImportError` if a figure needs an extra that is not installed.
    """
    from ..._base.checks import check_sequence, shown
    from .experiment import Experiment

    requested = check_sequence(names, "names", (str, Experiment), "names of figures", least=0)
    labels = {entry.alias: entry.name for entry in entries().values()} | {name: name for name in entries_by_folder()}
    own = [entry for entry in requested if isinstance(entry, Experiment) and not is_known(entry)]
    for name in (entry for entry in requested if isinstance(entry, str)):
        if name not in labels:
            near = get_close_matches(name, labels, n=1, cutoff=0.7)
            remedy = f"did you mean {near[0]!r}? All of them are shown" if near else "all of them are shown"
            raise ValueError(
                f"names must be figures that can be reproduced, but there is no {shown(name)}; {remedy} by "
                "clusterjax reproduce --list."
            )
    _refuse_duplicates(own, labels)
    requested_names = {labels[entry] if isinstance(entry, str) else entry.name for entry in requested}
    chosen = [
        name for name in (entries_by_folder() if requested else entries()) if not requested or name in requested_names
    ]
    _refuse_missing_extras([entries_by_folder()[name] for name in chosen])
    return [*map(load, chosen), *own]


def is_known(experiment: "Experiment") -> bool:
    """True if an experiment is a figure of the package."""
    entry = entries_by_folder().get(experiment.name)
    module = entry and sys.modules.get(f"{_FIGURES}.{entry.name.replace('-', '_')}")
    # `load` would import the module, which a check of a user's own experiment must not.
    return hasattr(module, "FIGURE") and load(experiment.name) is experiment


def _refuse_missing_extras(wanted: Sequence[Entry]) -> None:
    """Raise an ImportError, before anything is computed, if a figure needs an extra that is not installed."""
    if refused := [entry for entry in wanted if entry.lacks]:
        extras = sorted({extra for entry in refused for extra in entry.lacks})
        libraries = ", ".join(library for extra in extras for library in _BRINGS[extra])
        available = ", ".join(entry.name for entry in entries().values() if not entry.lacks)
        raise ImportError(
            f"{', '.join(entry.name for entry in refused)} need {libraries}; install them with: pip install "
            f"'clusterjax[{','.join(extras)}]', or name other figures, of which there are {available}."
        )


def _refuse_duplicates(own: "Sequence[Experiment]", labels: dict[str, str]) -> None:
    """Raise a ValueError if a user's experiment shares a name or alias with another experiment."""
    # Case is ignored, because each experiment has a folder, and some file systems ignore the case of names.
    owners = {label.casefold(): "a figure of the package" for label in labels}
    for number, experiment in enumerate(own):
        for label in {experiment.name, experiment.alias}:
            if owner := owners.get(label.casefold()):
                raise ValueError(
                    f"names must hold experiments of different names and aliases, but {label!r} is also {owner}; give "
                    "it another."
                )
        # An experiment may have its own name as its alias.
        owners |= {
            label.casefold(): f"experiment {number} of your own" for label in (experiment.name, experiment.alias)
        }


def table(chosen: "Sequence[Experiment] | None" = None) -> list[str]:
    """A table of figures, in lines of at most `WIDE` letters: the names, the durations, and the claim or question.

    None lists all figures of the package without importing them. The table of chosen experiments also shows their
    parameters.
    """
    rows = [(entry, "") for entry in entries().values()] if chosen is None else list(map(_row, chosen))
    widths = [max(len(label) for entry, _ in rows for label in (entry.name, entry.alias, _HEAD[0])), 8, 8]
    room = WIDE - sum(widths) - 2 * len(widths)
    lines = [_line([*_HEAD], widths)]
    for entry, parameters in rows:
        full, quick = map(_time, entry.seconds) if entry.seconds else ("", "")
        right = textwrap.wrap(entry.question, room)
        if chosen is None and entry.lacks:
            right.append(f"needs: pip install 'clusterjax[{','.join(entry.lacks)}]'")
        # The blanks within a parameter are hard ones, so that textwrap breaks no line there.
        right += [line.replace(_HARD, " ") for line in textwrap.wrap(parameters, room)]
        # The alias stands below the name, beside the second line of the question.
        left = [entry.name, entry.alias] + [""] * (len(right) - 2)
        right += [""] * (len(left) - len(right))
        lines += ["", _line([left[0], full, quick, right[0]], widths)]
        lines += [_line([label, "", "", words], widths) for label, words in zip(left[1:], right[1:], strict=True)]
    return lines


def _row(experiment: "Experiment") -> tuple[Entry, str]:
    """The entry of an experiment, and its parameters in words."""
    from .experiment import parameters_of

    cost = experiment.cost
    entry = Entry(
        experiment.name, experiment.alias, experiment.title, experiment.claim, cost and (cost.full, cost.quick)
    )
    words = ", ".join(parameter.words.replace(" ", _HARD) for parameter in parameters_of(experiment.parameters))
    return entry, words


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
    return "  ".join([*padded, *cells[len(widths) :]]).rstrip()


def _time(seconds: int | float) -> str:
    """A duration in one unit, rounded."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
