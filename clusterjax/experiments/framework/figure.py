"""The declaration of a figure: a decorator for its claims, and a function `figure` that builds its experiment.

A file of `experiments/figures` has a dataclass `Parameters`, a function `measure(p, settings, say) -> m`, claims about
the measurement m, and functions of m: `draw`, `caption`, `series` and `on`. The call of `figure` at the end of the file
makes of these parts the experiment that `reproduce` runs. The file imports all names that the parts need from here.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, NamedTuple, SupportsFloat

from matplotlib.figure import Figure

from .experiment import (
    MOST_OF_NETWORK,
    Claim,
    Cost,
    Experiment,
    Film,
    NoParameters,
    Outcome,
    Say,
    Settings,
    parameter,
    percent,
    plus_minus,
    with_units,
    within,
)
from .listing import entries
from .verdict import ANY, UNSAID, Kind, Measured, Source, Subject


__all__ = [
    "ANY", "MOST_OF_NETWORK", "UNSAID", "Claim", "ClaimOf", "Film", "Found", "Measured", "Say", "Settings", "Source",
    "Subject", "claim", "claims_of", "figure", "parameter", "percent", "plus_minus", "stated", "unmet", "within",
]  # fmt: skip


@dataclass(frozen=True)
class Found:
    """The result of a function that is decorated with `claim`."""

    measured: str  # the measurement, in words and numbers
    holds: Any  # a truth value, of Python, NumPy or jax
    # `value`, `error`: the number that decides, and its standard error; None if there is none
    value: SupportsFloat | None = None
    error: SupportsFloat | None = None
    on: Measured | None = None  # the network, data and size of the claim, if they differ from those of the figure
    # `says`, `criterion`, `source`: values that replace those of the decorator if they depend on the measurement
    says: str | None = None
    criterion: str | None = None
    source: Source | None = None


class ClaimOf(NamedTuple):
    """A claim of a file: the decorated function, and the arguments of the decorator `claim`.

    A call with the measurement m returns the `Claim`; it returns () if the function returns None, because the claim
    does not apply to m.
    """

    function: Callable[[Any], Found | None]
    criterion: str
    says: str
    source: Source | None
    kind: Kind | None

    def __call__(self, m: Any) -> Claim | tuple[Claim, ...]:
        result = self.function(m)
        if result is None:
            return ()
        values = vars(sys.modules[self.function.__module__]) | {"m": m, "p": getattr(m, "p", None)}
        cited = result.source or self.source
        return Claim(
            says=result.says or self.says.format(**values),
            measured=result.measured,
            criterion=result.criterion or self.criterion.format(**values),
            holds=bool(result.holds),
            kind=self.kind or ("paper" if cited is not None else "finding"),
            value=None if result.value is None else float(result.value),
            error=None if result.error is None else float(result.error),
            source=cited,
            on=result.on,
        )


def claim(
    criterion: str, *, says: str | None = None, source: Source | None = None, kind: Kind | None = None
) -> Callable[[Callable[[Any], Found | None]], ClaimOf]:
    """A decorator that turns a function from the measurement m to a `Found`, or to None, into a claim.

    **Arguments:**

    - `criterion`: The condition under which the claim holds, in words.
    - `says`: The claim; None is the docstring of the function. Both texts are format strings of the measurement `m`,
        its parameters `p` and the constants of the file: "At beta = {p.beta:g} several clusters remain.".
    - `source`: The network, data and size of which a paper makes the claim.
    - `kind`: "identity" for a proved statement, "finding" for a claim of this project; None is "paper" with a source,
        else "finding".
    """
    words = lambda function: " ".join(function.__doc__.split()) if says is None else says
    return lambda function: ClaimOf(function, criterion, words(function), source, kind)


def stated(claims: Sequence[Callable], m: Any) -> tuple[Claim, ...]:
    """The claims about the measurement m, in order."""
    results = [entry(m) for entry in claims]
    return tuple(claim for result in results for claim in (result if isinstance(result, tuple) else (result,)))


def unmet(claims: Sequence[Claim]) -> str:
    """A sentence for a caption, which lists the claims that do not hold, or says that all claims hold."""
    failed = [f'"{claim.says}"' for claim in claims if not claim.holds]
    return f"Claims that do not hold in this run: {' '.join(failed)}" if failed else "All claims hold in this run."


def claims_of(file: Mapping[str, Any]) -> tuple[ClaimOf, ...]:
    """The claims that a module defines at its top level, in order; `file` is the namespace of the module."""
    claims = [value for value in file.values() if isinstance(value, ClaimOf)]
    return tuple(claim for claim in claims if claim.function.__module__ == file["__name__"])


@dataclass(frozen=True)
class _Parts:
    """The parts of a figure, by the names under which `figure` looks for them; m is the measurement."""

    measure: Callable[[Any, Settings, Say], Any]  # m, from the parameters, the settings, and a report of progress
    draw: Callable[[Any], Figure]  # the picture of m
    caption: Callable[[Any, tuple[Claim, ...]], str]  # the caption, from m and its claims in order
    on: Callable[[Any], Measured]  # the network, the data and the size of m
    series: Callable[[Any], dict[str, Any]]  # the numbers for `results.json`
    claims: Sequence[Callable]  # functions of m, in order, each of which returns a claim or a tuple of claims
    parameters: type  # the class of the parameters, all of which are recorded
    recorded: Callable[[Any], Mapping[str, Any]] = lambda m: {}  # further numbers for the record, by name
    # The independent units of each standard error, such as "15 articles"; None adds no units to the claims.
    over: Callable[[Any], str] | None = lambda m: f"{m.starts} starts"
    film: Callable[[Any], Any] = lambda m: None  # the film of m
    check: Callable[[Settings], Any] | None = None  # `Experiment.check`


def figure(module: str, **given: Any) -> Experiment:
    """The experiment of a file of `experiments/figures`, with the title, question and cost that `figures.toml` lists.

    **Arguments:**

    - `module`: `__name__` of the file. The parts of the figure (see `_Parts`) are the functions `measure`, `draw`,
        `caption`, `series` and `on` of the file, optionally `over`, `recorded`, `film` and `check`, its class
        `Parameters`, and the claims that it defines.
    - `given`: Parts by name, which replace those of the file.
    """
    file = vars(sys.modules[module])
    functions = {part.name: file[part.name] for part in fields(_Parts) if part.name in file}
    defined = {"claims": claims_of(file), "parameters": file.get("Parameters", NoParameters)}
    parts = _Parts(**(functions | defined | given))

    entry = entries()[module.rpartition(".")[2].replace("_", "-")]
    explored = {"explored": entry.explored} if entry.explored else {}

    def run(settings: Settings, say: Say) -> Outcome:
        p = settings.read(parts.parameters)
        m = parts.measure(p, settings, say)
        verdicts = stated(parts.claims, m)
        if parts.over is not None:
            verdicts = with_units(parts.over(m), verdicts)
        return Outcome(
            parts.caption(m, verdicts), verdicts, asdict(p) | dict(parts.recorded(m)) | explored, parts.series(m),
            partial(parts.draw, m), parts.film(m), on=parts.on(m),
        )  # fmt: skip

    reads: dict[str, Any] = {f"reads_{source}": True for source in entry.reads}
    return Experiment(
        entry.name, entry.alias, entry.title, entry.question, run,
        **reads, least_texts=entry.least_texts, asks=entry.asks, parameters=parts.parameters, check=parts.check,
        cost=Cost(*entry.seconds) if entry.seconds else None,
    )  # fmt: skip
