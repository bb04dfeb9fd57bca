"""What an experiment is, what it is told and what it finds.

`reproduce` calls `Experiment.run(settings, say)` and gets an `Outcome`: claims with their numbers, series for
`results.json`, and functions that draw. Nothing is drawn before all is measured. Each class checks its fields where it
is built, so that a mistake of a user's own experiment is named there, and not by the JSON writer or the gallery an hour
later. No class holds a verdict: it follows from `Claim.source` and what was measured (see `verdict`).
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar, get_args

import jax
import numpy as np
from matplotlib.figure import Figure

from ..._base.checks import (
    check_callable,
    check_choice,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_number,
    check_path,
    check_sequence,
    check_text,
    refusal,
    shown,
)
from .verdict import DIFFERENT, Kind, Measured, Source, differences, judge


# The parameters that an experiment declares: what a user may set, in which range, and what it is without that.
#
# An experiment declares them as the fields of a frozen dataclass, each made by `parameter`. The measurement takes an
# instance of that class, so that its numbers have names and types; `read_parameters` makes it from what a user set.


_KEY = "parameter"  # of the metadata of a field
_P = TypeVar("_P")
Value = int | float
Say = Callable[[str], None]  # reports progress in one line


@dataclass(frozen=True)
class Parameter:
    """One number of an experiment that a user may set; the fields are arguments of `parameter`."""

    name: str
    says: str
    default: Value
    quick: Value
    least: Value | None
    most: Value | None
    above: Value | None

    def check(self, value: Any) -> Value:
        """`value` as a number of this parameter, if it may be one."""
        remedy = f"set {self.says} in that range, or leave it at {self.default:g}"
        if isinstance(self.default, int):
            # Bounds may be floats such as 1e4; check_integer compares and prints integers.
            least, most = (None if bound is None else int(bound) for bound in (self.least, self.most))
            return check_integer(value, self.name, least=least, most=most, remedy=remedy)
        return check_number(value, self.name, least=self.least, most=self.most, above=self.above, remedy=remedy)

    @property
    def words(self) -> str:
        """Name and default, for a list."""
        return f"{self.name} = {self.default:g}" + (f" (quick: {self.quick:g})" if self.quick != self.default else "")


def parameter(
    default: Value,
    says: str,
    *,
    quick: Value | None = None,
    least: Value | None = None,
    most: Value | None = None,
    above: Value | None = None,
) -> Any:
    """A field of a frozen dataclass that declares a parameter of an experiment.

    **Arguments:**

    - `default`: Its value if nobody sets it; an integer takes integers alone.
    - `says`: What it is, in one line without a full stop.
    - `quick`: Its value in a quick run if nobody sets it; None is `default`.
    - `least`, `most`: The range that it may lie in, both ends included; None is open.
    - `above`: What it must exceed; None is nothing. Integers take `least`.

    **Returns:**

    What a dataclass takes as the default of a field.

    **Raises:**

    - `ValueError` if a default is not a number in the range, or `says` is no text.
    """
    # A boolean is an int of Python and no number of an experiment.
    kind = check_integer if isinstance(default, int) and not isinstance(default, bool) else check_number
    # Named, so that a message can say which bound refuses the default.
    bounds = {"least": least, "most": most, "above": above}
    for name, bound in bounds.items():
        if bound is not None:
            check_number(bound, name)
    default = kind(default, "default", least=None)
    quick = default if quick is None else kind(quick, "quick", least=None)
    outside = {
        "least": least is not None and default < least, "most": most is not None and default > most,
        "above": above is not None and default <= above,
    }  # fmt: skip
    if wrong := next((name for name, out in outside.items() if out), None):
        problem = f"it is {shown(bounds[wrong])}"
        raise refusal(wrong, f"allow the default, {default:g}", problem, "set another bound, or another default")
    # Under the name "default" until `parameters_of` knows the name of the field.
    declared = Parameter("default", check_text(says, "says"), default, quick, **bounds)
    # The quick value must lie in the same range; a message then names it.
    replace(declared, name="quick").check(quick)
    return field(default=declared.default, metadata={_KEY: declared})


@dataclass(frozen=True)
class NoParameters:
    """Of an experiment that has none to set."""


def parameters_of(kind: Any, name: str = "parameters") -> tuple[Parameter, ...]:
    """The parameters that a class declares, in order; `name` is that of the argument, for messages. Raises a ValueError
    if the class is no frozen dataclass, or has a field that is not made by `parameter`."""
    rule, remedy = "be a frozen dataclass whose fields are made by parameter(...)", "write it so"
    # Frozen, as instances are static arguments of compiled functions and must have a hash.
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen):  # pyright: ignore
        raise refusal(name, rule, f"it is {shown(kind)}", remedy)
    declared = []
    for entry in fields(kind):
        if _KEY not in entry.metadata:
            raise refusal(name, rule, f"{kind.__name__}.{entry.name} is not", remedy)
        declared.append(replace(entry.metadata[_KEY], name=entry.name))
    return tuple(declared)


def read_parameters(kind: type[_P], given: Mapping[str, Any], *, quick: bool = False, of: str = "it") -> _P:
    """An instance of a class of parameters: the values that are `given` by name, and the defaults of the rest, with
    `quick` those of a quick run; `of` says whose parameters these are, for messages. Raises a ValueError for a name
    that is not declared, or a value that is not allowed."""
    declared = {entry.name: entry for entry in parameters_of(kind)}
    if unknown := [name for name in given if name not in declared]:
        raise undeclared(unknown, {of: tuple(declared.values())})
    values = {name: entry.quick if quick else entry.default for name, entry in declared.items()}
    # `__post_init__` of the class then checks what must fit together.
    return kind(**(values | {name: declared[name].check(value) for name, value in given.items()}))


def undeclared(names: Sequence[str], lacking: Mapping[str, Sequence[Parameter]]) -> ValueError:
    """The refusal of names that some experiments do not declare; `lacking` has what each of these does declare."""
    listed = {of: ", ".join(entry.name for entry in declared) or "none" for of, declared in lacking.items()}
    # The remedy lists what could be set, as long as that is few words.
    if len(listed) == 1:
        remedy = f"set what it has, {', '.join(listed.values())}, or leave it out"
    elif len(listed) <= 3:
        remedy = f"set what they all have ({'; '.join(f'{of}: {has}' for of, has in listed.items())})"
    else:
        remedy = "set what they all have, or leave these out"
    return refusal(
        "parameters", "be declared by every figure that is run",
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} not by {', '.join(lacking)}", remedy,
    )  # fmt: skip


def changed_parameters(values: Any, *, quick: bool = False) -> dict[str, tuple[Value, Value]]:
    """What is not as it is by default, of an instance of a class of parameters: name to value and default."""
    # By value and not by what was given: a parameter set to its default is not changed.
    plain = read_parameters(type(values), {}, quick=quick)
    pairs = {entry.name: (getattr(values, entry.name), getattr(plain, entry.name)) for entry in fields(values)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def changed_words(changed: Mapping[str, tuple[Value, Value]]) -> str:
    """The same for a reader."""
    return ", ".join(f"{name} = {value:.10g} in place of {plain:.10g}" for name, (value, plain) in changed.items())


MOST_STARTS, MOST_OF_NETWORK = 10**5, 10**6  # more starts, texts, tokens or layers fit no memory
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")  # a folder on every system, and part of a link


@dataclass(frozen=True)
class Settings:
    """How an experiment is to be run.

    **Attributes:**

    - `seed`: Of every random draw.
    - `starts`: How many random starts each number is taken over.
    - `quick`: Whether shorter runs will do; the caption then says so.
    - `albert`: The trained network of the figures that show one, as `probe.load` takes it; None is the one of the
        package.
    - `imdb`: Where the film reviews are, as `sentiment.load_imdb` takes it; None shows the classifier of the package
        where a figure is of one, and makes reviews up, with planted words, where it trains.
    - `texts`: What that network reads, a file as `probe.read_texts` takes it; None is the texts that belong to it.
    - `most_texts`, `length`: How many of the texts it reads, evenly spread, and to how many tokens they are cut; None
        is 48 and 128, with `quick` 16 and 64, and never more than its positions.
    - `depth`: How many layers figure 1 goes through; None is eight times those of training, with `quick`
        twice if the network is wide.
    - `heads`: Cuts the matrices of an ALBERT into another number of heads, as `probe.load` does.
    - `store`: A folder for what is measured before a figure is done, so that a run that was killed goes on; None keeps
        nothing. It does not change what comes out.
    - `parameters`: Values of parameters that the experiment declares, by name, such as `{"beta": 5}`; the others are
        as it declares them.
    - `ids`: What that network reads as token ids, in place of `texts`: a file of `.txt`, `.csv` or `.jsonl` with a text
        in each line, `.json` with a list of lists, or `.npy`. Its folder then needs no tokenizer.
    """

    seed: int = 0
    starts: int = 256
    quick: bool = False
    albert: str | Path | None = None
    imdb: Path | None = None
    texts: Path | None = None
    most_texts: int | None = None
    length: int | None = None
    depth: int | None = None
    heads: int | None = None
    store: Path | None = None
    # hash=False: a dict has no hash, and settings are keys of caches.
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ids: Path | None = None

    def __post_init__(self):
        check_integer(self.seed, "seed", least=0, most=2**32 - 1)
        check_integer(self.starts, "starts", least=2, most=MOST_STARTS)
        check_flag(self.quick, "quick")
        for name in ("albert", "imdb", "texts", "store", "ids"):
            if getattr(self, name) is not None:
                check_path(getattr(self, name), name)
        if self.ids is not None and self.texts is not None:
            problem = f"texts are {str(self.texts)!r}"
            raise refusal("ids", "be given in place of texts", problem, "leave one of them out")
        for name in ("most_texts", "length", "depth", "heads"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, most=MOST_OF_NETWORK)
        if not isinstance(self.parameters, Mapping) or not all(isinstance(name, str) for name in self.parameters):
            problem = f"it is {shown(self.parameters)}"
            raise refusal("parameters", "be a dict of values by name", problem, 'pass {"beta": 5}, for example')
        # A copy: what the caller does to its dict later does not change what is recorded.
        object.__setattr__(self, "parameters", dict(self.parameters))

    def read(self, kind: type[_P]) -> _P:
        """An instance of a class of parameters, see `parameter`: what is set here, and the defaults of the rest.

        **Arguments:**

        - `kind`: The class.

        **Returns:**

        The instance.

        **Raises:**

        - `ValueError` for a name that the class does not declare, or a value that it does not allow.
        """
        # First, so that a class that is none is named as the argument `kind`.
        parameters_of(kind, "kind")
        return read_parameters(kind, self.parameters, quick=self.quick, of=kind.__qualname__)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim beside the number that decides it; its verdict needs what it was measured on, see `Outcome.verdict`.

    **Attributes:**

    - `says`: The claim, in words.
    - `measured`: What was measured, in words and numbers.
    - `criterion`: When the claim holds.
    - `holds`: Whether it does.
    - `kind`: "identity" for what is proved and must hold, "paper" for what the paper says, "finding" for what this
        project adds.
    - `value`, `error`: The number itself and its standard error, where there is one.
    - `source`: What the paper made it of; a claim of kind "paper" must have one, and no other may.
    - `on`: What it was measured on, where that is not what the rest of the experiment was.
    """

    says: str
    measured: str
    criterion: str
    holds: bool
    kind: Kind
    value: float | None = None
    error: float | None = None
    source: Source | None = None
    on: Measured | None = None

    def __post_init__(self):
        for name in ("says", "measured", "criterion"):
            check_text(getattr(self, name), name)
        # A NumPy boolean becomes one of Python, as JSON takes no other; the class is frozen, hence __setattr__.
        object.__setattr__(self, "holds", check_flag(self.holds, "holds"))
        check_choice(self.kind, "kind", get_args(Kind))
        for name in ("value", "error"):
            object.__setattr__(self, name, _number_or_none(getattr(self, name), name))
        if self.source is not None:
            check_instance(self.source, "source", Source, "a Source", "say what the paper measured it on")
        if self.on is not None:
            check_instance(self.on, "on", Measured, "a Measured", "say what this claim was measured on")
        if (self.kind == "paper") != (self.source is not None):
            raise ValueError(
                f"source must be given for what a paper says and for nothing else, but the claim {self.says!r} is of "
                f"kind {self.kind!r} and its source is {self.source!r}; say what the paper measured it on."
            )


@dataclass(frozen=True)
class Film:
    """One run to be shown as a moving picture.

    **Attributes:**

    - `ts`: (times,), the save times.
    - `xs`: (times, n, d), the tokens.
    - `highlight`: The token in red; None is none.
    - `trail`: Whether its path is drawn.
    """

    ts: np.ndarray
    xs: np.ndarray
    highlight: int | None = 0
    trail: bool = False

    def __post_init__(self):
        xs = check_host_array(self.xs, "xs", shape=("times", "n", "d"), remedy="pass the tokens at each save time")
        # The pictures are of the circle and of the sphere.
        if xs.shape[2] not in (2, 3):
            problem = f"their dimension is {xs.shape[2]}"
            raise refusal(
                "xs", "be tokens of the plane or of space", problem, "choose two or three of their coordinates"
            )
        remedy = "pass the time of each entry of xs"
        object.__setattr__(self, "ts", check_host_array(self.ts, "ts", shape=(len(xs),), remedy=remedy))
        object.__setattr__(self, "xs", xs)
        if self.highlight is not None:
            check_integer(
                self.highlight, "highlight", least=0, most=xs.shape[1] - 1, remedy="pass the number of a token"
            )
        check_flag(self.trail, "trail")


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    **Attributes:**

    - `caption`: What is seen, and what holds of the paper's words.
    - `claims`: Each with its number.
    - `parameters`: Everything needed to run it again.
    - `series`: Numbers against time, for `results.json`: name to a list or array.
    - `draw`: Makes the still picture.
    - `film`: What the moving picture shows, or a function that writes it to a path as a GIF; None makes none.
    - `on`: What was measured: network, data and size.
    """

    caption: str
    claims: tuple[Claim, ...]
    parameters: dict[str, Any]
    series: dict[str, Any]
    draw: Callable[[], Figure]
    film: Film | Callable[[Path], Any] | None
    on: Measured = field(kw_only=True)

    def __post_init__(self):
        check_text(self.caption, "caption", empty=True)
        claims = check_sequence(self.claims, "claims", Claim, "claims, each a Claim", least=0)
        object.__setattr__(self, "claims", tuple(claims))
        for name in ("parameters", "series"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise refusal(name, "be a dict by name", f"it is {shown(value)}", "pass {} if there are none")
        try:
            # What cannot be written is refused here and not when the figure is drawn already.
            json.dumps(self.parameters)
        except (TypeError, ValueError) as error:
            remedy = "pass numbers, texts, lists and dicts"
            raise refusal("parameters", "be what JSON can hold", f"it is not ({error})", remedy) from None
        for name, values in self.series.items():
            # NaN may be: it is written as null.
            check_host_array(values, f"series[{name!r}]", finite=False, remedy="pass numbers against time")
        check_callable(self.draw, "draw", "a function that makes the still picture")
        if self.film is not None and not isinstance(self.film, Film):
            check_callable(self.film, "film", "a Film, a function of a path, or None")
        check_instance(self.on, "on", Measured, "a Measured", "say what was measured: network, data and size")

    def verdict(self, claim: Claim) -> str:
        """The verdict on one of its claims, by what the claim was measured on."""
        check_instance(claim, "claim", Claim, "a Claim", "pass one of `claims`")
        return judge(claim.kind, claim.holds, claim.value, claim.source, claim.on or self.on)

    def apart(self, claim: Claim) -> tuple[str, ...]:
        """Which of network, data and size are not those that the paper made the claim of."""
        check_instance(claim, "claim", Claim, "a Claim", "pass one of `claims`")
        return () if claim.source is None else differences(claim.source, claim.on or self.on)

    @property
    def heading(self) -> str:
        """What stands above the picture: network and data, where they are not those of the paper, and parameters that
        were set by hand; else nothing."""
        # By claims and not by the outcome alone: some claims are measured on another network than the rest.
        notes = [
            f"{DIFFERENT[part]}: {getattr(claim.on or self.on, part).words}"
            for part in ("network", "data")
            for claim in self.claims
            if part in self.apart(claim)
        ]
        # dict.fromkeys keeps each text once, in order.
        return "; ".join([*dict.fromkeys(notes), *([f"Set: {self.on.changed}"] if self.on.changed else [])])


def _number_or_none(value: Any, name: str) -> Any:
    """A number that may be NaN or infinite, those of NumPy and of jax as one of Python."""
    if value is None:
        return None
    # Measurements are often of NumPy or jax; JSON takes neither.
    if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0:
        value = np.asarray(value).item()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(name, "be a number, or None", f"it is {shown(value)}", "pass float(...) of it")
    return value


def with_changed(outcome: Outcome, words: str) -> Outcome:
    """The same, of a run whose parameters were set by hand, as these words say: every verdict knows of it."""
    # Claims that name what they were measured on carry a mark of their own; others have that of the outcome.
    mark = lambda claim: claim if claim.on is None else replace(claim, on=replace(claim.on, changed=words))
    return replace(outcome, on=replace(outcome.on, changed=words), claims=tuple(map(mark, outcome.claims)))


@dataclass(frozen=True)
class Cost:
    """About how long an experiment takes on two cores, in seconds.

    **Attributes:**

    - `full`: With the default settings.
    - `quick`: With `quick` and 64 starts.
    """

    full: int | float
    quick: int | float

    def __post_init__(self):
        for name in ("full", "quick"):
            check_number(getattr(self, name), name, least=0)


@dataclass(frozen=True)
class Experiment:
    """One figure of a paper, or of a user's own: simulate, measure, decide, draw.

    **Attributes:**

    - `name`: What the command calls it, and its folder in the gallery: letters, digits, - and _.
    - `alias`: Another name for it, of the same form.
    - `title`: Above it in the gallery.
    - `claim`: What the paper says of it, in its own terms.
    - `run`: The experiment; told the settings and a function that reports progress.
    - `reads_reviews`: Whether it depends on `Settings.imdb`.
    - `reads_network`: Whether it depends on `Settings.albert`.
    - `reads_texts`: Whether it depends on `Settings.texts` as well.
    - `reads_depth`: Whether it depends on `Settings.depth`.
    - `reads_package`: Whether it depends on the network of the package, whatever `Settings.albert` is.
    - `reads_causal`: Whether it depends on SmolLM2 where that is installed, and on `Settings.texts`; see `causal`.
    - `least_texts`: With fewer it has no error bar.
    - `asks`: Whether `claim` is a question, and not what a paper says.
    - `parameters`: What of it can be set: a frozen dataclass whose fields are made by `parameter`.
    - `check`: Is told the settings before anything is computed, and raises a ValueError if they do not fit what the
        experiment reads; None lets all pass.
    - `cost`: About how long it takes; None is not said.
    - `version`: Of a user's own experiment: what tells it from earlier ones of its name, so that a figure of another
        version is not taken for done. None takes the text of the file that defines `run`.
    """

    name: str
    alias: str
    title: str
    claim: str
    run: Callable[[Settings, Callable[[str], None]], Outcome] = field(repr=False)
    reads_reviews: bool = False
    reads_network: bool = False
    reads_texts: bool = False
    reads_depth: bool = False
    reads_package: bool = False
    reads_causal: bool = False
    least_texts: int = 2
    asks: bool = False
    parameters: type = field(default=NoParameters, kw_only=True)
    check: Callable[[Settings], Any] | None = field(default=None, kw_only=True, repr=False)
    cost: Cost | None = field(default=None, kw_only=True)
    version: str | None = field(default=None, kw_only=True)

    def __post_init__(self):
        for label in ("name", "alias"):
            if not _NAME.fullmatch(check_text(getattr(self, label), label)):
                rule = "be at most 80 letters, digits, - and _, the first of them a letter or a digit"
                raise refusal(label, rule, f"it is {shown(getattr(self, label))}", "choose such a name")
        check_text(self.title, "title")
        check_text(self.claim, "claim", empty=True)
        check_callable(self.run, "run", "a function of settings and of one that reports progress")
        flags = (
            "reads_reviews", "reads_network", "reads_texts", "reads_depth", "reads_package", "reads_causal", "asks",
        )  # fmt: skip
        for flag in flags:
            check_flag(getattr(self, flag), flag)
        check_integer(self.least_texts, "least_texts")
        if self.check is not None:
            check_callable(self.check, "check", "a function of settings, or None")
        if self.cost is not None:
            check_instance(self.cost, "cost", Cost, "a Cost", "pass Cost(full=60, quick=5), for example")
        if self.version is not None:
            check_text(self.version, "version")
        parameters_of(self.parameters)


def within(value: float, expected: float, tolerance: float) -> bool:
    """Whether `value` is a number within `tolerance` of `expected`."""
    return bool(abs(value - expected) <= tolerance)


def plus_minus(value: SupportsFloat, error: SupportsFloat, digits: int = 2) -> str:
    """A mean and its standard error, as text."""
    return f"{float(value):.{digits}f} ± {float(error):.{digits}f}"


def percent(share: SupportsFloat, error: SupportsFloat, digits: int = 1) -> str:
    """A share of independent units and its standard error, as text: `94.1 ± 1.5 %`, `all` or `none`.

    Of N units that all have a property the standard error is zero and says nothing: with 95 % confidence the share is
    above 1 - 3 / N, and below 3 / N where none has.
    """
    if float(error) == 0 and float(share) in (0.0, 1.0):
        return "all" if share else "none"
    return f"{plus_minus(100 * float(share), 100 * float(error), digits)} %"


def over(units: str, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims, each of which says at its end what independent units its ± is over, such as "15 articles".

    Every ± is the standard error of a mean over independent units (`clustered_error`), or is said to be another thing
    where it stands. What already ends so is left as it is: a figure whose claims are over different units names those
    of some before it names those of the rest.
    """
    suffix = f"(± over {units})"
    return tuple(
        replace(claim, measured=f"{claim.measured} {suffix}")
        if "±" in claim.measured and "(± over " not in claim.measured
        else claim
        for claim in claims
    )


def identity_of(experiment: Experiment) -> dict[str, Any] | None:
    """What tells a user's experiment from an earlier one of its name, for a JSON file; None if nothing does.

    An experiment is known by its `version`, which is the user's word for it, or by the text of the file that defines
    `run`. Nothing is known of a function that was typed at a prompt or in a notebook, or that has values from around it
    (a closure, defaults, a `functools.partial`). Such an experiment is run again each time: a figure that is drawn
    twice costs time, one that is wrongly taken for done is false.
    """
    code = {"version": experiment.version}
    if experiment.version is None:
        run: Any = experiment.run
        if not inspect.isfunction(run) or run.__closure__ or run.__defaults__ or run.__kwdefaults__:
            return None
        path = Path(run.__code__.co_filename)
        if not path.is_file():
            return None
        code = {"code": sha256(run.__qualname__.encode() + path.read_bytes()).hexdigest()}
    return {name: getattr(experiment, name) for name in ("alias", "title", "claim", "asks")} | code
