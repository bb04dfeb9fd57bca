"""Cases of `clusterjax.experiments`: settings, files, names of figures, and one figure of two starts."""

import functools
import tempfile
from dataclasses import dataclass

from clusterjax.experiments import Claim, Files, Outcome, Settings, parameter
from clusterjax.experiments.shared.sources import particles, peat
from tests.doors.cases import Case, case
from tests.doors.rules import CALLABLE, COUNT, EMPTY, FLAG, NONE, NUMBER, OF_NONE, PATH, TEXT, Rule


FILE, BOUND = NONE | PATH, NONE | NUMBER
SECONDS = Rule(NUMBER.accepts - {"minus one"}, "any time")
ALL = Rule(EMPTY.accepts, "no names are all figures, which take hours", endless=True)


@functools.cache
def gallery() -> str:
    """A folder of an absolute name: the tests go from one folder to the next, and a figure that is there is kept."""
    return tempfile.mkdtemp()


settings = functools.cache(lambda: Settings(starts=2, quick=True))
files = functools.cache(lambda: Files(("png",), film=False))
claim = functools.cache(
    lambda: Claim(
        says="It holds.",
        measured="1",
        criterion="above 0",
        holds=True,
        kind="paper",
        value=1.0,
        source=peat("Section 1", size={"d": 2}),
    )
)


@dataclass(frozen=True)
class Parameters:
    """Of one number."""

    n: int = parameter(2, "a number")


@functools.cache
def outcome() -> Outcome:
    def draw():
        raise AssertionError("it is not drawn")

    return Outcome("A caption.", (claim(),), {}, {}, draw, None, on=particles(d=2))


def _cases() -> dict[str, Case]:
    return {
        "Settings": case(
            {"starts": 2}, seed=COUNT, quick=FLAG, albert=FILE, imdb=FILE, texts=FILE, store=FILE, ids=FILE,
            most_texts=NONE, length=NONE, depth=NONE, heads=NONE, parameters=OF_NONE,
        ),
        "Settings.read": case({"kind": Parameters}, settings),
        "parameter": case(
            {"default": 1.0, "says": "it"}, default=NUMBER, says=TEXT, quick=BOUND, least=BOUND, most=BOUND,
            above=BOUND,
        ),
        "Cost": case({"full": 2.0, "quick": 1.0}, full=SECONDS, quick=SECONDS),
        "Files": case({"formats": ("png",)}, film=FLAG),
        "find_experiments": case({"names": ["figure3"]}, names=EMPTY),
        "reproduce": case(
            lambda: {
                "names": ["figure3"], "out": gallery(), "settings": settings(), "files": files(),
                "say": lambda line: None,
            },
            dear=True, seconds=60, names=ALL, out=PATH, force=FLAG, jobs=COUNT, say=CALLABLE,
        ),
        "Outcome.verdict": case(lambda: {"claim": claim()}, outcome),
        "Outcome.apart": case(lambda: {"claim": claim()}, outcome),
    }  # fmt: skip


CASES = {f"experiments.{name}": one for name, one in _cases().items()}
