"""Experiments whose extra is not installed: by their names alone, so that all others can be run."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

from .experiment import Experiment


# What each extra brings beside what pictures need, and the experiments that need it though they are there without it.
_BRINGS = {"probe": ("flax", "transformers"), "sweep": ("xarray", "zarr")}
_NEED_SWEEP = {"phase-diagram"}


def without_probe(name: str, alias: str, *, asks: bool = False) -> Experiment:
    """Stands for an experiment of a trained network where the extra probe is not installed."""
    return Experiment(name, alias, name, "", _never, asks=asks)


def refuse_lacking(wanted: Sequence[Experiment], known: Sequence[Experiment]) -> None:
    """Raise an ImportError, before anything is computed, if some of these experiments need what is not installed."""
    # All that lack something, not only those that are wanted: the message lists what could be run.
    lack = {experiment.name: extra for experiment in known if (extra := _lacks(experiment)) is not None}
    if refused := [experiment.name for experiment in wanted if experiment.name in lack]:
        extras = sorted({lack[name] for name in refused})
        brought = ", ".join(library for extra in extras for library in _BRINGS[extra])
        rest = ", ".join(experiment.name for experiment in known if experiment.name not in lack)
        raise ImportError(
            f"{', '.join(refused)} need {brought}; install them with: pip install 'clusterjax[{','.join(extras)}]', or "
            f"name others, of which there are {rest}."
        )


def _lacks(experiment: Experiment) -> str | None:
    """The extra that it needs and that is not installed."""
    if experiment.run is _never:
        return "probe"
    there = all(find_spec(library) is not None for library in _BRINGS["sweep"])
    return None if there or experiment.name not in _NEED_SWEEP else "sweep"


def _never(*_: object) -> NoReturn:
    raise ImportError("an experiment of a trained network needs flax and transformers: 'clusterjax[probe]'")
