"""What an experiment is, what it is told and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .._check import check_flag, check_instance, check_integer, check_path
from ._verdict import DIFFERENT, Kind, Measured, Source, differences, judge


MOST_STARTS, MOST_OF_NETWORK = 10**5, 10**6  # more starts, texts, tokens or layers fit no memory


@dataclass(frozen=True)
class Settings:
    """How an experiment is to be run.

    **Attributes:**

    - `seed`: Of every random draw.
    - `starts`: How many random starts each number is taken over.
    - `quick`: Whether shorter runs will do; the caption then says so.
    - `albert`: The trained network of the figures that show one, as `probe.load` takes it; None is the one of the
        package.
    - `imdb`: Where the film reviews are, as `sentiment.load_imdb` takes it; None makes reviews up, with planted words.
    - `texts`: What that network reads, a file as `probe.read_texts` takes it; None is the texts that belong to it.
    - `most_texts`, `length`: How many of the texts it reads, evenly spread, and to how many tokens they are cut; None
        is 48 and 128, with `quick` 16 and 64, and never more than its positions.
    - `depth`: How many layers figure 1 goes through; None is eight times those of training, with `quick`
        twice if the network is wide.
    - `heads`: Cuts the matrices of an ALBERT into another number of heads, as `probe.load` does.
    - `store`: A folder for what is measured before a figure is done, so that a run that was killed goes on; None keeps
        nothing. It does not change what comes out.

    Source: this library.
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

    def __post_init__(self):
        check_integer(self.seed, "seed", least=0, most=2**32 - 1)
        check_integer(self.starts, "starts", least=2, most=MOST_STARTS)
        check_flag(self.quick, "quick")
        for name in ("albert", "imdb", "texts", "store"):
            if getattr(self, name) is not None:
                check_path(getattr(self, name), name)
        for name in ("most_texts", "length", "depth", "heads"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, most=MOST_OF_NETWORK)


@dataclass(frozen=True)
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

    Source: this library.
    """

    says: str
    measured: str
    criterion: str
    holds: bool
    kind: Kind
    value: float | None = None
    error: float | None = None
    source: Source | None = field(default=None, kw_only=True)
    on: Measured | None = field(default=None, kw_only=True)

    def __post_init__(self):
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

    Source: this library.
    """

    ts: np.ndarray
    xs: np.ndarray
    highlight: int | None = 0
    trail: bool = False


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

    Source: this library.
    """

    caption: str
    claims: tuple[Claim, ...]
    parameters: dict[str, Any]
    series: dict[str, Any]
    draw: Callable[[], Figure]
    film: Film | Callable[[Path], Any] | None
    on: Measured = field(kw_only=True)

    def verdict(self, claim: Claim) -> str:
        """That on one of its claims, by what it was measured on."""
        claim = _checked(claim)
        return judge(claim.kind, claim.holds, claim.value, claim.source, claim.on or self.on)

    def apart(self, claim: Claim) -> tuple[str, ...]:
        """Which of network, data and size are not those that the paper made the claim of."""
        claim = _checked(claim)
        return () if claim.source is None else differences(claim.source, claim.on or self.on)

    @property
    def heading(self) -> str:
        """What stands above the picture: network and data, where they are not those of the paper; else nothing."""
        told = [
            f"{DIFFERENT[part]}: {getattr(claim.on or self.on, part).words}"
            for part in ("network", "data")
            for claim in self.claims
            if part in self.apart(claim)
        ]
        return "; ".join(dict.fromkeys(told))


def _checked(claim: Any) -> Claim:
    return check_instance(claim, "claim", Claim, "a Claim", "pass one of claims")


@dataclass(frozen=True)
class Experiment:
    """One figure of a paper: simulate, measure, decide, draw.

    **Attributes:**

    - `name`: What the command calls it.
    - `alias`: Another name for it.
    - `title`: Above it in the gallery.
    - `claim`: What the paper says of it, in its own terms.
    - `run`: The experiment; told the settings and a function that reports progress.
    - `reads_reviews`: Whether it depends on `Settings.imdb`.
    - `reads_network`: Whether it depends on `Settings.albert`.
    - `reads_texts`: Whether it depends on `Settings.texts` as well.
    - `reads_depth`: Whether it depends on `Settings.depth`.
    - `reads_package`: Whether it depends on the network of the package, whatever `Settings.albert` is.
    - `least_texts`: With fewer it has no error bar.
    - `asks`: Whether `claim` is a question of this project, and not what a paper says.

    Source: this library.
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
    least_texts: int = 2
    asks: bool = False


def within(value: float, expected: float, tolerance: float) -> bool:
    """Whether `value` is a number within `tolerance` of `expected`."""
    return bool(abs(value - expected) <= tolerance)


def plus_minus(value: Any, error: Any, digits: int = 2) -> str:
    """A mean and its standard error, as text."""
    return f"{float(value):.{digits}f} ± {float(error):.{digits}f}"
