"""Cases of `clusterjax.experiments`: settings, files, names of figures, and one figure of two starts."""

import functools
import tempfile
from dataclasses import dataclass

from clusterjax.experiments import Claim, Files, Outcome, Settings, parameter
from clusterjax.experiments.shared.sources import particles, peat
from tests.doors.cases import Case, case


gallery = functools.cache(lambda: tempfile.mkdtemp())


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
        "Settings": case({"starts": 2}),
        "Settings.read": case({"kind": Parameters}, settings),
        "parameter": case({"default": 1.0, "says": "it"}),
        "Cost": case({"full": 2.0, "quick": 1.0}),
        "Files": case({"formats": ("png",)}),
        "find_experiments": case({"names": ["figure3"]}),
        "reproduce": case(
            lambda: dict(names=["figure3"], out=gallery(), settings=settings(), files=files(), say=lambda line: None),
            seconds=60,
        ),
        "Outcome.verdict": case(lambda: {"claim": claim()}, outcome),
        "Outcome.apart": case(lambda: {"claim": claim()}, outcome),
    }


CASES = {f"experiments.{name}": one for name, one in _cases().items()}
