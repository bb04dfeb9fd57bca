"""The parts of an experiment: its parameters, the settings of a run, and the outcome with its claims.

`reproduce` calls `Experiment.run(settings, say)`, which returns an `Outcome`: claims with their numbers, series for
`results.json`, and functions that draw. Nothing is drawn before everything is measured. The constructor of each class
checks the fields, so that a mistake in a user's own experiment raises an error there, and not an hour later in the JSON
writer or the gallery. No class stores a verdict: a verdict follows from `Claim.source` and `Measured` (see `verdict`).
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
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
from .verdict import DIFFERENT, Kind, Measured, Number, Source, differences, judge


# The parameters of an experiment are the numbers that a user may set, each with a range and a default. An experiment
# declares them as the fields of a frozen dataclass, each made by `parameter`. The measurement takes an instance of that
# class, which `Settings.read` makes from the values that the user set.


_KEY = "parameter"  # the name of a `Parameter` in the metadata of its field
_P = TypeVar("_P")
Say = Callable[[str], None]  # reports progress in one line


@dataclass(frozen=True)
class Parameter:
    """One number of an experiment that a user may set; the fields are arguments of `parameter`."""

    name: str
    says: str
    default: Number
    quick: Number
    least: Number | None
    most: Number | None
    above: Number | None

    def check(self, value: Any, remedy: str | None = None) -> Number:
        """`value`, if it is a number of the kind and in the range of this parameter; else a ValueError."""
        remedy = remedy or f"set {self.says} in that range, or leave it at {self.default:g}"
        if isinstance(self.default, int):
            # Bounds may be floats such as 1e4; check_integer compares and prints integers.
            least, most = (None if bound is None else int(bound) for bound in (self.least, self.most))
            return check_integer(value, self.name, least=least, most=most, remedy=remedy)
        return check_number(value, self.name, least=self.least, most=self.most, above=self.above, remedy=remedy)

    @property
    def words(self) -> str:
        """The name and the default, for a list."""
        return f"{self.name} = {self.default:g}" + (f" (quick: {self.quick:g})" if self.quick != self.default else "")


def parameter(
    default: Number,
    says: str,
    *,
    quick: Number | None = None,
    least: Number | None = None,
    most: Number | None = None,
    above: Number | None = None,
) -> Any:
    """A field of a frozen dataclass that declares a parameter of an experiment.

    **Arguments:**

    - `default`: The value unless a user sets another one. If it is an integer, all values must be integers.
    - `says`: A description in one line, without a full stop.
    - `quick`: The default of a quick run; None is `default`.
    - `least`, `most`: The smallest and the largest allowed value; None sets no bound.
    - `above`: A number that the value must exceed, for parameters that are no integers; None sets no bound.

    **Returns:**

    A value for a field of a dataclass, as `dataclasses.field` returns it.

    **Raises:**

    - `ValueError` if `default` or `quick` is not a number in the range, if `above` is given for an integer, or if
        `says` is not a string.
    """
    bounds = {"least": least, "most": most, "above": above}
    for name, bound in bounds.items():
        if bound is not None:
            check_number(bound, name)
    # A boolean is an `int` in Python, but not a number of an experiment.
    if not isinstance(default, int) or isinstance(default, bool):
        default = check_number(default, "default")
    elif above is not None:
        raise refusal("above", "be None for an integer", f"it is {shown(above)}", "set least in its place")
    declared = Parameter("default", check_text(says, "says"), default, default if quick is None else quick, **bounds)
    remedy = "set another value, or another range"
    values = {name: replace(declared, name=name).check(vars(declared)[name], remedy) for name in ("default", "quick")}
    # `parameters_of` replaces the name by that of the field.
    return field(default=values["default"], metadata={_KEY: replace(declared, **values)})


@dataclass(frozen=True)
class NoParameters:
    """The parameters of an experiment that declares none."""


def parameters_of(kind: Any, name: str = "parameters") -> tuple[Parameter, ...]:
    """The parameters that the class `kind` declares, in order. Raises a ValueError if the class is not a frozen
    dataclass, or has a field that `parameter` did not make; the message calls the class `name`."""
    rule, remedy = "be a frozen dataclass whose fields are made by parameter(...)", "declare it in this form"
    # The class is frozen, because instances are static arguments of compiled functions and must have a hash.
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen):  # pyright: ignore
        raise refusal(name, rule, f"it is {shown(kind)}", remedy)
    declared = []
    for entry in fields(kind):
        if _KEY not in entry.metadata:
            raise refusal(name, rule, f"{kind.__name__}.{entry.name} is not", remedy)
        declared.append(replace(entry.metadata[_KEY], name=entry.name))
    return tuple(declared)


def undeclared(names: Sequence[str], lacking: Mapping[str, Sequence[Parameter]]) -> ValueError:
    """The error for parameters that some experiments do not declare; `lacking` has the declared parameters of each of
    these experiments."""
    listed = {name: ", ".join(entry.name for entry in declared) or "none" for name, declared in lacking.items()}
    # The remedy lists the declared parameters of few experiments only.
    if len(listed) == 1:
        remedy = f"set one of its own parameters, {', '.join(listed.values())}, or leave it out"
    elif len(listed) <= 3:
        remedy = f"set parameters that all of them have ({'; '.join(map(': '.join, listed.items()))})"
    else:
        remedy = "set parameters that all of them have, or leave these out"
    return refusal(
        "parameters", "be declared by every figure that is run",
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} not declared by {', '.join(lacking)}",
        remedy,
    )  # fmt: skip


def set_fields(instance: Any, **values: Any) -> None:
    """Set fields of an instance of a frozen dataclass to their checked values, without NumPy scalars, which JSON does
    not take."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


MOST_STARTS, MOST_OF_NETWORK = 10**5, 10**6  # more starts, or more texts, tokens or layers, exceed any memory
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")  # a valid folder name on every system, and a valid part of a link


@dataclass(frozen=True)
class Settings:
    """The settings of a run of an experiment.

    **Attributes:**

    - `seed`: The seed of all random draws.
    - `starts`: The number of random starts over which each number is averaged.
    - `quick`: Whether the run is shorter; the caption then says so.
    - `albert`: The trained network of the figures that show one, as for `probe.load`; None is the ALBERT of the
        package.
    - `imdb`: The film reviews, as for `sentiment.load_imdb`. None uses the classifier of the package in figures that
        show a classifier, and made-up reviews with planted words in figures that train one.
    - `texts`: A file of texts for the network, as for `probe.read_texts`; None is the texts that belong to the network.
    - `most_texts`, `length`: The largest number of texts, chosen evenly from all, and the number of tokens to which
        they are truncated; None is 48 and 128, or 16 and 64 if `quick`, and at most the positions of the network.
    - `depth`: The number of layers in figure 1; None is eight times the layers of training, or twice if `quick` and the
        network is wide.
    - `heads`: The number of heads into which the matrices of an ALBERT are cut, as for `probe.load`.
    - `store`: A folder for intermediate measurements, from which a killed run continues; None keeps none. The folder
        does not change the result.
    - `parameters`: Values of parameters that the experiment declares, by name, such as `{"beta": 5}`; all others have
        their defaults.
    - `ids`: A file of token ids, in place of `texts`, for a network without a tokenizer: `.txt`, `.csv` or `.jsonl`
        with a text in each line, `.json` with a list of lists, or `.npy`.
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
        set_fields(
            self, seed=check_integer(self.seed, "seed", least=0, most=2**32 - 1),
            starts=check_integer(self.starts, "starts", least=2, most=MOST_STARTS),
            quick=check_flag(self.quick, "quick"),
        )  # fmt: skip
        if self.albert is not None:
            check_path(self.albert, "albert")
        for name in ("imdb", "texts", "store", "ids"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: check_path(getattr(self, name), name)})
        if self.ids is not None and self.texts is not None:
            problem = f"texts are {str(self.texts)!r}"
            raise refusal("ids", "be given in place of texts", problem, "leave one of them out")
        for name in ("most_texts", "length", "depth", "heads"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: check_integer(getattr(self, name), name, most=MOST_OF_NETWORK)})
        if not isinstance(self.parameters, Mapping) or not all(isinstance(name, str) for name in self.parameters):
            problem = f"it is {shown(self.parameters)}"
            raise refusal("parameters", "be a dict of values by name", problem, 'pass {"beta": 5}, for example')
        # The settings keep a copy, so that later changes to the dict of the caller do not change the record.
        set_fields(self, parameters=dict(self.parameters))

    def read(self, kind: type[_P]) -> _P:
        """An instance of a class of parameters, with the values of `parameters` and otherwise the defaults.

        **Arguments:**

        - `kind`: The class, a frozen dataclass whose fields are made by `parameter`.

        **Returns:**

        The instance.

        **Raises:**

        - `ValueError` for a parameter that the class does not declare, or a value that the class does not allow.
        """
        declared = {entry.name: entry for entry in parameters_of(kind, "kind")}
        if unknown := [name for name in self.parameters if name not in declared]:
            raise undeclared(unknown, {kind.__qualname__: tuple(declared.values())})
        values = {name: entry.quick if self.quick else entry.default for name, entry in declared.items()}
        # `__post_init__` of the class checks conditions on several parameters.
        return kind(**(values | {name: declared[name].check(value) for name, value in self.parameters.items()}))


def changed_parameters(settings: Settings, kind: type) -> str:
    """The parameters of `kind` that the settings change, with their defaults, in words; empty if there are none."""
    # Values are compared, because a parameter that is set to its default is not changed.
    values, defaults = (asdict(variant.read(kind)) for variant in (settings, replace(settings, parameters={})))
    return ", ".join(
        f"{name} = {values[name]:.10g} in place of {default:.10g}"
        for name, default in defaults.items()
        if values[name] != default
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, and the number that decides it; `Outcome.verdict` gives the verdict.

    **Attributes:**

    - `says`: The claim, in words.
    - `measured`: The measurement, in words and numbers.
    - `criterion`: The condition under which the claim holds, in words.
    - `holds`: Whether the condition is met.
    - `kind`: "identity" for a proved statement, which must hold; "paper" for a claim of a paper; "finding" for a claim
        of this project.
    - `value`, `error`: The number that decides, and its standard error, if there is one.
    - `source`: The network, data and size of which the paper makes the claim, for claims of kind "paper" only.
    - `on`: The network, data and size of this measurement, if they differ from those of the outcome.
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
        check_choice(self.kind, "kind", get_args(Kind))
        numbers = {name: _number_or_none(getattr(self, name), name) for name in ("value", "error")}
        set_fields(self, holds=check_flag(self.holds, "holds"), **numbers)
        if self.source is not None:
            check_instance(self.source, "source", Source, "a Source", "say what the paper measured it on")
        if self.on is not None:
            check_instance(self.on, "on", Measured, "a Measured", "say what this claim was measured on")
        if (self.kind == "paper") != (self.source is not None):
            raise ValueError(
                f"source must be given for a claim of kind 'paper' and for no other, but the claim {self.says!r} is of "
                f"kind {self.kind!r} and its source is {self.source!r}; say what the paper measured it on."
            )


@dataclass(frozen=True)
class Film:
    """A run that is shown as a film.

    **Attributes:**

    - `ts`: (times,), the save times.
    - `xs`: (times, n, d), the tokens, with d = 2 or 3.
    - `highlight`: The index of the token in red; None highlights no token.
    - `trail`: Whether the path of that token is drawn.
    """

    ts: np.ndarray
    xs: np.ndarray
    highlight: int | None = 0
    trail: bool = False

    def __post_init__(self):
        xs = check_host_array(self.xs, "xs", shape=("times", "n", "d"), remedy="pass the tokens at each save time")
        if xs.shape[2] not in (2, 3):
            problem, remedy = f"their dimension is {xs.shape[2]}", "choose two or three of their coordinates"
            raise refusal("xs", "be tokens of the plane or of space", problem, remedy)
        remedy = "pass the time of each entry of xs"
        set_fields(self, xs=xs, ts=check_host_array(self.ts, "ts", shape=(len(xs),), remedy=remedy))
        if self.highlight is not None:
            remedy = "pass the index of a token"
            check_integer(self.highlight, "highlight", least=0, most=xs.shape[1] - 1, remedy=remedy)
        check_flag(self.trail, "trail")


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment.

    **Attributes:**

    - `caption`: The caption of the picture.
    - `claims`: The claims, each with its number.
    - `parameters`: All numbers that are needed to repeat the run, by name.
    - `series`: Numbers against time, for `results.json`: lists or arrays by name.
    - `draw`: A function that makes the still picture.
    - `film`: The run that the film shows, or a function that writes a film to a path as a GIF; None makes no film.
    - `on`: The network, the data and the size of the measurement.
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
        set_fields(self, claims=tuple(check_sequence(self.claims, "claims", Claim, "claims, each a Claim", least=0)))
        for name in ("parameters", "series"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise refusal(name, "be a dict by name", f"it is {shown(value)}", "pass {} if there are none")
        try:
            # Values that JSON does not have are refused before anything is drawn.
            json.dumps(self.parameters)
        except (TypeError, ValueError) as error:
            remedy = "pass numbers, texts, lists and dicts"
            raise refusal("parameters", "be what JSON can hold", f"it is not ({error})", remedy) from None
        for name, values in self.series.items():
            # NaN is accepted, and is written as null.
            check_host_array(values, f"series[{name!r}]", finite=False, remedy="pass numbers against time")
        check_callable(self.draw, "draw", "a function that makes the still picture")
        if self.film is not None and not isinstance(self.film, Film):
            check_callable(self.film, "film", "a Film, a function of a path, or None")
        check_instance(self.on, "on", Measured, "a Measured", "say what was measured: network, data and size")

    def verdict(self, claim: Claim) -> str:
        """The verdict on one of the claims; see `clusterjax.experiments.framework.verdict`."""
        apart = self.apart(claim)  # checks the claim, before its attributes are read
        return judge(claim.kind, claim.holds, apart, claim.value)

    def apart(self, claim: Claim) -> tuple[str, ...]:
        """Those of "network", "data" and "size" in which the measurement of a claim differs from that of the paper."""
        check_instance(claim, "claim", Claim, "a Claim", "pass one of `claims`")
        return () if claim.source is None else differences(claim.source, claim.on or self.on)

    @property
    def heading(self) -> str:
        """The text above the picture: the network and the data if they are not those of the paper, and the parameters
        that were set by hand; otherwise empty."""
        # All claims are compared, because some are measured on another network than the rest.
        notes = [
            f"{DIFFERENT[part]}: {getattr(claim.on or self.on, part).words}"
            for part in ("network", "data")
            for claim in self.claims
            if part in self.apart(claim)
        ]
        # dict.fromkeys keeps each text once, in order.
        return "; ".join([*dict.fromkeys(notes), *([f"Set: {self.on.changed}"] if self.on.changed else [])])


def _number_or_none(value: Any, name: str) -> Any:
    """`value` as a Python number, which may be NaN or infinite, or None."""
    if value is None:
        return None
    # Measurements are often NumPy or jax scalars, which JSON does not take.
    if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0:
        value = np.asarray(value).item()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(name, "be a number, or None", f"it is {shown(value)}", "pass float(...) of it")
    return value


def with_changed(outcome: Outcome, words: str) -> Outcome:
    """The outcome with `words` as the changed parameters of each measurement, so that every verdict takes them into
    account."""
    # A claim without `on` of its own has the measurement of the outcome.
    mark = lambda claim: claim if claim.on is None else replace(claim, on=replace(claim.on, changed=words))
    return replace(outcome, on=replace(outcome.on, changed=words), claims=tuple(map(mark, outcome.claims)))


@dataclass(frozen=True)
class Cost:
    """The approximate duration of an experiment on two cores, in seconds.

    **Attributes:**

    - `full`: The duration with the default settings.
    - `quick`: The duration with `quick` and 64 starts.
    """

    full: int | float
    quick: int | float

    def __post_init__(self):
        for name in ("full", "quick"):
            check_number(getattr(self, name), name, least=0)


class Inapplicable(ValueError):
    """The error of `Experiment.check` for settings whose network cannot have the figure at all."""


@dataclass(frozen=True)
class Experiment:
    """A figure of a paper, or a figure of a user's own, as an experiment: simulate, measure, judge claims, draw.

    **Attributes:**

    - `name`: The name in the command, and of the folder in the gallery: at most 80 letters, digits, - and _.
    - `alias`: Another name, of the same form.
    - `title`: The title in the gallery.
    - `claim`: The claim of the paper, in its own terms, or a question.
    - `run`: The function that runs the experiment, of the settings and of a function that reports progress.
    - `reads_reviews`: Whether the experiment depends on `Settings.imdb`.
    - `reads_network`: Whether the experiment depends on `Settings.albert`.
    - `reads_texts`: Whether the experiment depends on `Settings.albert` and `Settings.texts`.
    - `reads_depth`: Whether the experiment depends on `Settings.depth`.
    - `reads_package`: Whether the experiment depends on the network of the package, whatever `Settings.albert` is.
    - `reads_causal`: Whether the experiment depends on SmolLM2, if it is installed, and on `Settings.texts`.
    - `least_texts`: The smallest number of texts with which the experiment has an error bar.
    - `asks`: Whether `claim` is a question, and not a claim of a paper.
    - `parameters`: The parameters that a user may set: a frozen dataclass whose fields are made by `parameter`.
    - `check`: A function of the settings, called before anything is computed, which raises a ValueError for settings
        with which the experiment cannot run, an `Inapplicable` where the network cannot have the figure; None accepts
        all settings.
    - `cost`: The approximate duration; None if unknown.
    - `version`: The version of a user's own experiment, which must change when the experiment does, so that its figure
        is drawn again. None takes the text of the file that defines `run` as the version.
    """

    name: str
    alias: str
    title: str
    claim: str
    run: Callable[[Settings, Say], Outcome] = field(repr=False)
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
        set_fields(self, **{flag: check_flag(getattr(self, flag), flag) for flag in flags})
        check_integer(self.least_texts, "least_texts")
        if self.check is not None:
            check_callable(self.check, "check", "a function of settings, or None")
        if self.cost is not None:
            check_instance(self.cost, "cost", Cost, "a Cost", "pass Cost(full=60, quick=5), for example")
        if self.version is not None:
            check_text(self.version, "version")
        parameters_of(self.parameters)


def within(value: float, expected: float, tolerance: float) -> bool:
    """True if `value` is within `tolerance` of `expected`; False for NaN."""
    return bool(abs(value - expected) <= tolerance)


def plus_minus(value: SupportsFloat, error: SupportsFloat, digits: int = 2) -> str:
    """A mean and its standard error, as text."""
    return f"{float(value):.{digits}f} ± {float(error):.{digits}f}"


def percent(share: SupportsFloat, error: SupportsFloat, digits: int = 1) -> str:
    """A share of independent units and its standard error, as text: `94.1 ± 1.5 %`, `all` or `none`.

    If all of N units have a property, the estimated standard error is zero and meaningless: with 95 % confidence the
    share is above 1 - 3 / N. If none of N units has it, the share is below 3 / N.
    """
    # `share_and_error` returns an error of up to 1e-6 for such shares.
    if float(error) <= 1e-6 and float(share) in (0.0, 1.0):
        return "all" if share else "none"
    return f"{plus_minus(100 * float(share), 100 * float(error), digits)} %"


def with_units(units: str, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims, with the independent units of their standard errors (`clustered_error`), such as "15 articles", after
    each measurement that has a ±. A measurement that states its units already is not changed."""
    suffix = f"(± over {units})"
    return tuple(
        replace(claim, measured=f"{claim.measured} {suffix}")
        if "±" in claim.measured and "(± over " not in claim.measured
        else claim
        for claim in claims
    )


def identity_of(experiment: Experiment) -> dict[str, Any] | None:
    """The identity of a user's experiment, for a JSON file, by which earlier versions are recognised; None if unknown.

    The identity is the `version` of the experiment, or the hash of the file that defines `run`. A function that was
    typed at a prompt or in a notebook, or that has values from outside (a closure, defaults, a `functools.partial`) has
    no known identity. Its experiment is run each time: a figure that is drawn twice costs time, while a figure that is
    wrongly taken for done is false.
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
