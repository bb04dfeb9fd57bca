"""The record of a figure, `results.json`: made of an outcome, read again with checks, and printed as lines."""

import math
import os
import platform
import shlex
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..._files.json import misfit, read_json
from .experiment import Claim, Experiment, Outcome, Settings
from .listing import QUICK_STARTS, STARTS, entries, is_known
from .verdict import DIFFERENT, NOT_MEASURED, VERDICTS, judge


SCHEMA = 2  # the version of the form of results.json
RESULTS = "results.json"
_CLAIM = {
    "says": str, "measured": str, "criterion": str, "holds": bool, "kind": ("identity", "paper", "finding"),
    "value": (None, float), "error": (None, float), "verdict": VERDICTS, "apart": [tuple(DIFFERENT)], "on": str,
    "source": (None, {"words": str}),
}  # fmt: skip
_FORM = {
    "schema": SCHEMA, "name": str, "title": str, "heading": str, "claim": str, "caption": str, "claims": [_CLAIM],
    "parameters": dict, "series": dict, "files": [str], "fingerprint": dict, "machine": dict, "versions": dict,
    "seconds": {"simulation": float, "total": float}, "finished": str, "asks": bool, "command": (None, str),
    "measured_on": {"network": {"words": str}},
}  # fmt: skip
_PACKAGES = ("clusterjax", "jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy", "matplotlib")


def record_of(
    experiment: Experiment,
    outcome: Outcome,
    wanted: dict[str, Any],
    written: list[str],
    seconds: dict[str, float],
    command: str | None = None,
) -> dict[str, Any]:
    """The content of `results.json`; `wanted` is the fingerprint of the figure, and `written` are the names of its
    files."""
    claims = [_claim(outcome, claim) for claim in outcome.claims]
    # The default solver of the figures of the package; the solver of a user's own experiment is unknown.
    solver = {} if "experiment" in wanted else {"solver": "Tsit5, rtol 1e-8, atol 1e-10, float64"}
    record = {
        "schema": SCHEMA,
        "name": experiment.name,
        "title": experiment.title,
        "heading": outcome.heading,
        "claim": experiment.claim,
        # The numbers of verdicts are counted here, so that no caption can contradict its claims.
        "caption": f"{outcome.caption} {_summary(outcome, claims)}",
        "measured_on": outcome.on.record(),
        "claims": claims,
        "asks": experiment.asks,
        # The parameters of the outcome, which come last, replace those of the settings.
        "parameters": {"seed": wanted["seed"]} | solver | wanted.get("parameters", {}) | outcome.parameters,
        # Digits beyond the tenth are rounding errors, and would make files large.
        "series": {name: np.round(np.asarray(values), 10).tolist() for name, values in outcome.series.items()},
        "files": written,
        "fingerprint": wanted,
        "command": command,
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "device": jax.devices()[0].device_kind},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "seconds": seconds,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return _finite(record)


def command_line(experiment: Experiment, settings: Settings) -> str | None:
    """The command that runs this experiment with these settings; None if there is no such command."""
    if not is_known(experiment):
        return None
    # The command names an input only if the figure reads it.
    reads_network = experiment.reads_network or experiment.reads_texts
    albert = settings.albert if reads_network else None
    values = asdict(settings.read(experiment.parameters))
    parameters = {name: values[name] for name in settings.parameters}
    sizes = {"most-texts": settings.most_texts, "length": settings.length, "num-layers": settings.depth,
             "num-heads": settings.heads}  # fmt: skip
    options: dict[str, Any] = {"seed": settings.seed}
    has_sizes = (reads_network or experiment.reads_causal) and any(size is not None for size in sizes.values())
    if has_sizes or experiment.name not in entries():
        # Only the command `probe` has options for these sizes. It draws the figures that read texts, and sets no
        # parameters.
        if parameters or not experiment.reads_texts:
            return None
        words = ["probe", *([] if albert is None else [albert])]
        options |= sizes
    else:
        words = ["reproduce", experiment.name]
        is_default = settings.starts == (QUICK_STARTS if settings.quick else STARTS)
        options |= {"starts": None if is_default else settings.starts, "albert": albert}
    options |= {
        "texts": settings.texts if experiment.reads_texts or experiment.reads_causal else None,
        "ids": settings.ids if experiment.reads_texts else None,
        "imdb": settings.imdb if experiment.reads_reviews else None,
    }
    words += [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]
    words += [word for name, value in parameters.items() for word in ("--set", f"{name}={value!r}")]
    words += ["--quick"] if settings.quick else []
    return shlex.join(map(str, ["clusterjax", *words]))


def _claim(outcome: Outcome, claim: Claim) -> dict[str, Any]:
    """The record of a claim, with its verdict, and with its measurement and its source in words."""
    # `asdict` also converts `source` and `on`, which are replaced below.
    numbers = {name: value for name, value in asdict(claim).items() if name not in ("source", "on")}
    return numbers | {
        "verdict": outcome.verdict(claim),
        "apart": list(outcome.apart(claim)),
        "on": (claim.on or outcome.on).words,
        "source": None if claim.source is None else claim.source.record() | {"words": claim.source.words},
    }


def _summary(outcome: Outcome, claims: list[dict[str, Any]]) -> str:
    """The end of a caption: the measurement, and the number of claims of the paper with each verdict."""
    # Findings and identities are not counted, because they are no claims of the paper.
    of_paper = [claim for claim in claims if claim["kind"] == "paper"]
    if not of_paper:
        return f"Measured on: {outcome.on.words}."
    counts = Counter(claim["verdict"] for claim in of_paper)
    verdicts = "; ".join(f"{verdict}: {count}" for verdict, count in counts.items())
    different = [claim for claim in of_paper if claim["apart"]]
    agree = sum(claim["holds"] for claim in different)
    words = f" (of those not measured as the paper did, {agree} would agree)" if different else ""
    return f"Measured on: {outcome.on.words}. Claims of the paper by verdict: {verdicts}{words}."


def read_record(place: Path) -> dict[str, Any]:
    """The `results.json` of the folder of a figure. Raises a ValueError, in one sentence, if the file is missing or
    damaged, or has another version, or is not of that figure."""
    path, remedy = place / RESULTS, "run the figure again"
    # A link could lead to the record of another folder.
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{RESULTS} must be a file, but {str(path)!r} is none; {remedy}.")
    record = read_json(path, {"schema": int}, argument=RESULTS, remedy=remedy)
    if record["schema"] != SCHEMA:
        raise ValueError(
            f"{RESULTS} must have schema {SCHEMA}, but {str(path)!r} has {record['schema']}, of another version of "
            f"clusterjax; {remedy}."
        )
    # The file may come from another person, so that its form and its consistency are checked.
    wrong = misfit(record, _FORM) or _inconsistency(record, place)
    if wrong is not None:
        raise ValueError(f"{RESULTS} must be as `reproduce` wrote it, but in {str(path)!r} {wrong}; {remedy}.")
    return record


def _inconsistency(record: dict[str, Any], place: Path) -> str | None:
    """The first inconsistency of a record of the right form: a record of another figure, a file outside of its folder,
    or a verdict that does not follow from the claim. None if the record is consistent."""
    if record["name"] != place.name:
        return f"name is {record['name']!r}"
    # A path with folders in it would lead out of the figure's folder.
    elsewhere = next((name for name in record["files"] if Path(name).name != name), None)
    if elsewhere is not None:
        return f"files has {elsewhere!r}, which is no name"
    for number, claim in enumerate(record["claims"]):
        # NaN is null in JSON, so that a claim that was not measured has the value None.
        not_measured = claim["verdict"] == NOT_MEASURED and claim["value"] is None
        # A claim has a source if and only if it is a claim of a paper, and only then it may differ from a source.
        cited = (claim["kind"] == "paper") == (claim["source"] is not None) and (claim["source"] or not claim["apart"])
        follows = not_measured or claim["verdict"] == judge(claim["kind"], claim["holds"], claim["apart"])
        if not (cited and follows):
            return f"claims.{number}.verdict is {claim['verdict']!r}, which does not follow from the claim"
    return None


def network_of(record: dict[str, Any]) -> str:
    """The name of the trained network that a record shows; empty if there is none."""
    words = record["measured_on"]["network"]["words"]
    # The words of a trained network, unlike those of particles, give its number of parameters.
    return words.split(",")[0].removeprefix("particles with eigenvalues of ") if "parameters" in words else ""


def lines_of(record: dict[str, Any]) -> list[str]:
    """The lines that the command prints for each claim: the verdict, the number, the network, data and size of the
    measurement, and those of the paper if they differ."""
    wide, lines = max(map(len, DIFFERENT.values())), []
    for claim in record["claims"]:
        rows = [(claim["verdict"], claim["says"]), ("", measured_words(claim)), ("", f"on: {claim['on']}")]
        rows += [("", f"paper: {claim['source']['words']}")] if claim["apart"] else []
        lines += [f"    {label:>{wide}}  {words}" for label, words in rows]
    return lines


def measured_words(claim: dict[str, Any]) -> str:
    """The number of a claim in words; if the paper measured something else, with the remark whether it would agree."""
    agrees = "would agree" if claim["holds"] else "would not agree"
    return f"{claim['measured']} ({agrees}: {claim['criterion']})" if claim["apart"] else claim["measured"]


def _finite(value: Any) -> Any:
    """`value` with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
