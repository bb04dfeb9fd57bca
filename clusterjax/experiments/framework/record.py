"""What is written of a figure, and read again: its `results.json`, its caption, the lines that the command prints."""

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
from .listing import is_known
from .verdict import DIFFERENT, NOT_MEASURED, VERDICTS, verdict_on


SCHEMA = 2  # of results.json; 1 had verdicts that knew nothing of network, data and size
RESULTS = "results.json"
_CLAIM = {
    "says": str, "measured": str, "criterion": str, "holds": bool, "kind": ("identity", "paper", "finding"),
    "value": (None, float), "error": (None, float), "verdict": VERDICTS, "apart": [tuple(DIFFERENT)], "on": str,
    "source": (None, {"words": str}),
}  # fmt: skip
_FORM = {
    "schema": SCHEMA, "name": str, "title": str, "heading": str, "claim": str, "caption": str, "claims": [_CLAIM],
    "parameters": dict, "series": dict, "files": [str], "fingerprint": dict, "machine": dict, "versions": dict,
    "seconds": {"simulation": float, "total": float}, "finished": str, "asks?": bool, "command?": (None, str),
}  # fmt: skip
STARTS, QUICK_STARTS = 256, 64  # the numbers of starts of a full and of a quick run of the command
_PACKAGES = ("clusterjax", "jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy", "matplotlib")


def record_of(
    experiment: Experiment,
    outcome: Outcome,
    wanted: dict[str, Any],
    written: list[str],
    seconds: dict[str, float],
    command: str | None = None,
) -> dict[str, Any]:
    """All of `results.json`."""
    claims = [_claim(outcome, claim) for claim in outcome.claims]
    # Of the package, where an experiment does not say otherwise; how a user's own computes is not known here.
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
        # Later dicts win: what the experiment says it ran over what was asked for.
        "parameters": {"seed": wanted["seed"]} | solver | wanted.get("parameters", {}) | outcome.parameters,
        # Ten digits after the point: more are rounding errors, and make files large.
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
    """The command that runs this experiment with these settings; None for an experiment that is not of the package."""
    if not is_known(experiment):
        return None
    # An input is named only for the figures that read it.
    reads = experiment.reads_network or experiment.reads_texts
    sizes = {"most-texts": settings.most_texts, "length": settings.length, "num-layers": settings.depth,
             "num-heads": settings.heads}  # fmt: skip
    albert = settings.albert if reads else None
    options: dict[str, Any] = {"seed": settings.seed}
    if reads and any(size is not None for size in sizes.values()):
        # Only the command `probe` has options for these sizes.
        words, parameters = ["probe", *([] if albert is None else [albert])], {}
        options |= sizes
    else:
        words, parameters = ["reproduce", experiment.name], settings.parameters
        as_usual = settings.starts == (QUICK_STARTS if settings.quick else STARTS)
        options |= {"starts": None if as_usual else settings.starts, "albert": albert}
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
    """A claim with its verdict, with what it was measured on, and with what the paper made it of."""
    # asdict goes into `source` and `on` as well, which are written in words below.
    numbers = {name: value for name, value in asdict(claim).items() if name not in ("source", "on")}
    return numbers | {
        "verdict": outcome.verdict(claim),
        "apart": list(outcome.apart(claim)),
        "on": (claim.on or outcome.on).words,
        "source": None if claim.source is None else claim.source.record() | {"words": claim.source.words},
    }


def _summary(outcome: Outcome, claims: list[dict[str, Any]]) -> str:
    """The end of a caption: what was measured, and how many claims of the paper have which verdict."""
    # Findings and identities have verdicts of their own; only those of the paper are counted.
    said = [claim for claim in claims if claim["kind"] == "paper"]
    counted = Counter(claim["verdict"] for claim in said)
    agree = sum(claim["holds"] for claim in said if claim["apart"])
    verdicts = "; ".join(f"{verdict}: {times}" for verdict, times in counted.items())
    return (
        f"Measured on: {outcome.on.words}."
        + (f" Claims of the paper by verdict: {verdicts}" if said else "")
        + (f" (of those not measured as the paper did, {agree} would agree)" if any(c["apart"] for c in said) else "")
        + ("." if said else "")
    )


def read_record(place: Path) -> dict[str, Any]:
    """The `results.json` of a figure's folder, if it is one of this version, whole, and of that figure; else a
    ValueError says why in one sentence."""
    path, remedy = place / RESULTS, "run the figure again"
    # A link would make a record of another folder look as if it were of this one.
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{RESULTS} must be a file, but {str(path)!r} is none; {remedy}.")
    record = read_json(path, {"schema": int}, argument=RESULTS, remedy=remedy)
    if record["schema"] != SCHEMA:
        raise ValueError(
            f"{RESULTS} must have schema {SCHEMA}, but {str(path)!r} has {record['schema']}, whose verdicts do not say "
            f"what they are of; {remedy}."
        )
    # Files are read by others than those who wrote them: a record is checked for form and for consequence.
    wrong = misfit(record, _FORM) or _untrue(record, place)
    if wrong is not None:
        raise ValueError(f"{RESULTS} must be what `reproduce` wrote, but in {str(path)!r} {wrong}; {remedy}.")
    return record


def _untrue(record: dict[str, Any], place: Path) -> str | None:
    """What is wrong with a record of the right form: of another figure, files elsewhere, a verdict that does not
    follow."""
    if record["name"] != place.name:
        return f"name is {record['name']!r}"
    # A path with folders in it would lead out of the figure's folder.
    elsewhere = next((name for name in record["files"] if Path(name).name != name), None)
    if elsewhere is not None:
        return f"files has {elsewhere!r}, which is no name"
    for number, claim in enumerate(record["claims"]):
        # NaN is null in JSON, so that a claim that was not measured has the value None.
        none = claim["verdict"] == NOT_MEASURED and claim["value"] is None
        # A claim of a paper has a source, and one without differs from none.
        cited = (claim["kind"] == "paper") == (claim["source"] is not None) and (claim["source"] or not claim["apart"])
        if not cited or not (none or claim["verdict"] == verdict_on(claim["kind"], claim["holds"], claim["apart"])):
            return f"claims.{number}.verdict is {claim['verdict']!r}, which does not follow"
    return None


def network_of(record: dict[str, Any]) -> str:
    """The name of the trained network that a record shows; empty if it shows none, or is too old to say."""
    measured = record.get("measured_on")
    network = measured.get("network") if isinstance(measured, dict) else None
    words = network.get("words") if isinstance(network, dict) else None
    # Networks are told by how many parameters they have, particles are not.
    if not isinstance(words, str) or "parameters" not in words:
        return ""
    return words.split(",")[0].removeprefix("particles with eigenvalues of ")


def lines_of(record: dict[str, Any]) -> list[str]:
    """What the command prints of each claim: the verdict, the number, what it was measured on, and if that is not what
    the paper measured, what that is.
    """
    wide, lines = max(map(len, DIFFERENT.values())), []
    for claim in record["claims"]:
        lines += [f"    {claim['verdict']:>{wide}}  {claim['says']}", f"    {'':>{wide}}  {told(claim)}"]
        lines.append(f"    {'':>{wide}}  on: {claim['on']}")
        if claim["apart"]:
            lines.append(f"    {'':>{wide}}  paper: {claim['source']['words']}")
    return lines


def told(claim: dict[str, Any]) -> str:
    """The number of a claim in words; where the paper measured something else, whether it would agree."""
    agrees = "would agree" if claim["holds"] else "would not agree"
    return f"{claim['measured']} ({agrees}: {claim['criterion']})" if claim["apart"] else claim["measured"]


def _finite(value: Any) -> Any:
    """The same with null in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    # JSON has neither NaN nor infinities.
    return None if isinstance(value, float) and not math.isfinite(value) else value
