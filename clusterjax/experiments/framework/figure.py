"""How a file of `experiments/figures` declares its figure: claims by a decorator, all else in one call of `figure`.

A figure is five functions and a dataclass: `Parameters`, `measure(p, settings, say) -> m`, claims of m, `draw(m)`,
a caption and what was measured. The experiment that `reproduce` runs, its record and its page follow from them here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, SupportsFloat

from matplotlib.figure import Figure

from .experiment import Claim, Cost, Experiment, Film, NoParameters, Outcome, Settings, over as with_units
from .listing import entries
from .verdict import Kind, Measured, Source


@dataclass(frozen=True)
class Found:
    """What the function of a claim returns.

    **Attributes:**

    - `measured`: What was measured, in words and numbers.
    - `holds`: True if the criterion holds.
    - `value`, `error`: The number that decides, and its standard error; None if there is none.
    - `on`: What the claim was measured on, if not on what the rest of the figure was.
    - `says`, `criterion`, `source`: Values in place of those of the decorator, where they depend on the measurement.
    """

    measured: str
    holds: Any  # a truth value; comparisons of arrays return no bool
    value: SupportsFloat | None = None
    error: SupportsFloat | None = None
    on: Measured | None = None
    says: str | None = None
    criterion: str | None = None
    source: Source | None = None


ClaimOf = Callable[[Any], Claim | tuple[Claim, ...]]


def claim(
    says: str, criterion: str, *, source: Source | None = None, kind: Kind | None = None
) -> Callable[[Callable[[Any], Found | None]], ClaimOf]:
    """A decorator that makes a claim of a function from a measurement to what was `Found`.

    **Arguments:**

    - `says`, `criterion`: The claim, and when it holds. Both are format strings of the measurement `m` and of its
        parameters `p`: "At beta = {p.beta:g} several clusters remain.".
    - `source`: What the paper made the claim of; makes the claim one of kind "paper".
    - `kind`: "identity" for what is proved, "finding" for what this project adds; None is "paper" with a source, else
        "finding".

    **Returns:**

    A decorator. It returns a function from the measurement to a `Claim`, or to () where the decorated function returns
    None because the claim does not apply to the measurement.
    """

    def decorate(function: Callable[[Any], Found | None]) -> ClaimOf:
        def claim_of(m: Any) -> Claim | tuple[Claim, ...]:
            result = function(m)
            if result is None:
                return ()
            filled = lambda words: words.format(m=m, p=getattr(m, "p", None))
            cited = result.source or source
            return Claim(
                says=result.says or filled(says),
                measured=result.measured,
                criterion=result.criterion or filled(criterion),
                holds=bool(result.holds),
                kind=kind or ("paper" if cited is not None else "finding"),
                value=None if result.value is None else float(result.value),
                error=None if result.error is None else float(result.error),
                source=cited,
                on=result.on,
            )

        claim_of.__name__, claim_of.__doc__ = function.__name__, function.__doc__
        return claim_of

    return decorate


def stated(claims: Sequence[ClaimOf], m: Any) -> tuple[Claim, ...]:
    """The claims on the measurement m, in order."""
    stated = [entry(m) for entry in claims]
    return tuple(each for entry in stated for each in (entry if isinstance(entry, tuple) else (entry,)))


def unmet(claims: Sequence[Claim]) -> str:
    """A sentence for a caption: the claims that do not hold, or that all do."""
    failed = [f'"{each.says}"' for each in claims if not each.holds]
    return f"Claims that do not hold in this run: {' '.join(failed)}" if failed else "All claims hold in this run."


def figure(
    name: str,
    measure: Callable[[Any, Settings, Callable[[str], None]], Any],
    draw: Callable[[Any], Figure],
    claims: Sequence[ClaimOf],
    *,
    caption: Callable[[Any, tuple[Claim, ...]], str],
    on: Callable[[Any], Measured],
    series: Callable[[Any], dict[str, Any]],
    parameters: type = NoParameters,
    recorded: Callable[[Any], Mapping[str, Any]] = lambda m: {},
    over: Callable[[Any], str] | None = None,
    film: Callable[[Any], Any] = lambda m: None,
    check: Callable[[Settings], Any] | None = None,
) -> Experiment:
    """The experiment of the figure that `figures.toml` lists under `name`, with the title, question and cost there.

    **Arguments:**

    - `measure`: The measurement m, from the parameters, the settings, and a function that reports progress.
    - `draw`, `caption`, `on`, `series`, `film`: The picture, the caption (also told the claims, in order), what was
        measured, the numbers for `results.json`, and the film, of m.
    - `claims`: Functions that `claim` made, in the order in which they are shown. One may also return several claims.
    - `parameters`: The class of the parameters. All of its fields are recorded.
    - `recorded`: Further numbers for the record, by name.
    - `over`: The independent units of each standard error, such as "15 articles"; None leaves the words as they are.
    - `check`: Raises a ValueError, before anything is computed, if the settings do not fit.
    """

    def run(settings: Settings, say: Callable[[str], None]) -> Outcome:
        p = settings.read(parameters)
        m = measure(p, settings, say)
        verdicts = stated(claims, m)
        if over is not None:
            verdicts = with_units(over(m), verdicts)
        shown: Film | Callable | None = film(m)
        return Outcome(
            caption(m, verdicts), verdicts, asdict(p) | dict(recorded(m)), series(m), partial(draw, m), shown, on=on(m)
        )

    entry = entries()[name]
    reads: dict[str, Any] = {f"reads_{what}": True for what in entry.reads}
    return Experiment(
        name, entry.alias, entry.title, entry.question, run,
        **reads, least_texts=entry.least_texts, asks=entry.asks, parameters=parameters, check=check,
        cost=Cost(*entry.seconds) if entry.seconds else None,
    )  # fmt: skip
