"""The line of the shell that makes a figure again."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .experiment import Experiment, Settings
from .parameters import changed_parameters, read_parameters
from .record import network_of
from .registry import EXPERIMENTS, is_known


FULL_STARTS, QUICK_STARTS = 256, 64  # those of the command, with nothing said
_BUNDLED = "the ALBERT of this package"


def command_line(experiment: Experiment, settings: Settings) -> str | None:
    """The command that runs this experiment with these settings; None of one that is not of the package, as there is
    none."""
    if not is_known(experiment):
        return None
    said: list[Any] = ["--seed", settings.seed]
    # Only `probe` has options for these.
    sizes = {"most-texts": settings.most_texts, "length": settings.length, "num-layers": settings.depth,
             "num-heads": settings.heads}  # fmt: skip
    sizes = {name: value for name, value in sizes.items() if value is not None}
    reads = experiment.reads_network or experiment.reads_texts
    if reads and sizes:
        model = [] if settings.albert is None else [settings.albert]
        said = [
            "clusterjax",
            "probe",
            *model,
            *said,
            *(one for pair in sizes.items() for one in (f"--{pair[0]}", pair[1])),
        ]
    else:
        said = ["clusterjax", "reproduce", experiment.name, *said]
        if settings.starts != (QUICK_STARTS if settings.quick else FULL_STARTS):
            said += ["--starts", settings.starts]
        if reads and settings.albert is not None:
            said += ["--albert", settings.albert]
        said += [one for pair in settings.parameters.items() for one in ("--set", _set(*pair))]
    if settings.quick:
        said.append("--quick")
    if settings.texts is not None and (experiment.reads_texts or experiment.reads_causal):
        said += ["--texts", settings.texts]
    if settings.ids is not None and experiment.reads_texts:
        said += ["--ids", settings.ids]
    if settings.imdb is not None and experiment.reads_reviews:
        said += ["--imdb", settings.imdb]
    return _line(said)


def command_of(record: Mapping[str, Any]) -> str | None:
    """The command in a `results.json`, and of one that is older than commands are, what follows from its fingerprint:
    networks and data were not written there by their names, and stand in capitals."""
    if "command" in record:
        return record["command"]
    asked = record["fingerprint"]
    experiment = next((one for one in EXPERIMENTS if one.name == record["name"]), None)
    if experiment is None:
        return None
    said: list[Any] = ["clusterjax", "reproduce", experiment.name, "--seed", asked.get("seed", 0)]
    quick = bool(asked.get("quick"))
    if asked.get("starts") not in (None, QUICK_STARTS if quick else FULL_STARTS):
        said += ["--starts", asked["starts"]]
    values = asked.get("parameters")
    if isinstance(values, dict):
        said += [one for pair in _changed(experiment, values, quick) for one in ("--set", _set(*pair))]
    if quick:
        said.append("--quick")
    network = network_of(dict(record))
    if (experiment.reads_network or experiment.reads_texts) and network not in ("", _BUNDLED):
        said += ["--albert", "PATH_OR_ID"]
    return _line(said)


def _changed(experiment: Experiment, values: Mapping[str, Any], quick: bool) -> Sequence[tuple[str, Any]]:
    """The parameters that are not as they are by default."""
    try:
        read = read_parameters(experiment.parameters, values, quick=quick)
    except ValueError:  # of a version that declared others
        return list(values.items())
    return [(name, pair[0]) for name, pair in changed_parameters(read, quick=quick).items()]


def _set(name: str, value: Any) -> str:
    return f"{name}={value!r}"


def _line(said: Sequence[Any]) -> str:
    return shlex.join(map(str, said))
