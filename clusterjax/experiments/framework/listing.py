"""The experiments as a plain table: names, what each costs, what it claims, what of it can be set."""

import textwrap
from collections.abc import Sequence

from .experiment import Experiment
from .parameters import parameters_of


WIDE = 100  # letters in a line
_HARD = "\N{NO-BREAK SPACE}"  # where textwrap does not break a line
_HEAD = ("name, alias", "full", "quick", "claim, and what --set takes")


def table(experiments: Sequence[Experiment]) -> list[str]:
    """The lines of the table, at most `WIDE` letters each, with a line between experiments."""
    first = max(
        len(_HEAD[0]), *(len(name) for experiment in experiments for name in (experiment.name, experiment.alias))
    )
    # Widths of the columns; the last one takes what is left of WIDE.
    left = [first, 8, 8]
    text = WIDE - sum(left) - 2 * len(left)
    lines = [_row([*_HEAD], left)]
    for experiment in experiments:
        full, quick = (
            ("", "") if experiment.cost is None else (_time(experiment.cost.full), _time(experiment.cost.quick))
        )
        right = textwrap.wrap(experiment.claim or "needs the extra probe: pip install 'clusterjax[probe]'", text)
        # A parameter with its default is one word to textwrap, so that no line breaks within it.
        declared = ", ".join(each.words.replace(" ", _HARD) for each in parameters_of(experiment.parameters))
        right += [line.replace(_HARD, " ") for line in textwrap.wrap(declared, text)]
        # The alias stands below the name, beside the second line of the claim.
        names = [experiment.name, experiment.alias] + [""] * (len(right) - 2)
        lines += ["", _row([experiment.name, full, quick, right[0]], left)]
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
