"""The experiments as a plain table: names, what each costs, what it claims, what of it can be set."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .declared import Row, declared


if TYPE_CHECKING:
    from .experiment import Experiment


WIDE = 100  # letters in a line
_HARD = "\N{NO-BREAK SPACE}"  # where textwrap does not break a line
_HEAD = ("name, alias", "full", "quick", "claim, and what --set takes")


def listed() -> list[str]:
    """The lines of all experiments of the package, without importing them where their sources say it all."""
    rows = declared()
    if rows is None:
        from .registry import EXPERIMENTS

        return table(EXPERIMENTS)
    return _lines(rows)


def table(experiments: "Sequence[Experiment]") -> list[str]:
    """The lines of the table, at most `WIDE` letters each, with a line between experiments."""
    return _lines([row_of(experiment) for experiment in experiments])


def row_of(experiment: "Experiment") -> Row:
    """An experiment as a row."""
    from .parameters import parameters_of

    cost, words = experiment.cost, tuple(each.words for each in parameters_of(experiment.parameters))
    full, quick = (None, None) if cost is None else (cost.full, cost.quick)
    return Row(experiment.name, experiment.alias, full, quick, experiment.claim, words)


def _lines(rows: Sequence[Row]) -> list[str]:
    first = max(len(_HEAD[0]), *(len(name) for row in rows for name in (row.name, row.alias)))
    # Widths of the columns; the last one takes what is left of WIDE.
    left = [first, 8, 8]
    text = WIDE - sum(left) - 2 * len(left)
    lines = [_row([*_HEAD], left)]
    for row in rows:
        full, quick = (("" if seconds is None else _time(seconds)) for seconds in (row.full, row.quick))
        right = textwrap.wrap(row.claim or "needs the extra probe: pip install 'clusterjax[probe]'", text)
        # A parameter with its default is one word to textwrap, so that no line breaks within it.
        words = ", ".join(each.replace(" ", _HARD) for each in row.parameters)
        right += [line.replace(_HARD, " ") for line in textwrap.wrap(words, text)]
        # The alias stands below the name, beside the second line of the claim.
        names = [row.name, row.alias] + [""] * (len(right) - 2)
        lines += ["", _row([row.name, full, quick, right[0]], left)]
        right += [""] * (len(names) - len(right))
        lines += [_row([name, "", "", words], left) for name, words in zip(names[1:], right[1:], strict=True)]
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
    return "  ".join([*padded, *cells[len(widths) :]]).rstrip()


def _time(seconds: int | float) -> str:
    """About so long, in one unit."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
