"""A verdict follows from the measurement of the paper and from the run; nobody writes a verdict."""

from dataclasses import replace

import pytest

from clusterjax.experiments.framework.experiment import Claim, Outcome
from clusterjax.experiments.framework.verdict import (
    ANY,
    UNSAID,
    VERDICTS,
    Measured,
    Source,
    Subject,
    differences,
    judge,
)
from clusterjax.experiments.shared.sources import (
    ALBERT,
    ALBERT_XL,
    C4,
    HARDMAX_CLASSIFIER,
    IMDB,
    MADE_UP,
    particles,
    peat,
)


PACKAGE = Subject("clusterjax-albert", "the ALBERT of this package")
PASSAGES = Subject("texts", "passages")
SOURCE = Source("A paper", ALBERT_XL, C4, {"heads": 16}, {"layers": 90})
SAME = Measured(ALBERT_XL, C4, {"heads": 16, "layers": 96, "texts": 48})

# Runs, and the parts of each that are not the paper's.
RUNS = {
    "the same": (SAME, ()),
    "more layers than asked": (replace(SAME, size={"heads": 16, "layers": 1000}), ()),
    "several sizes, one of them the paper's": (replace(SAME, size={"heads": (8, 16), "layers": (12, 90)}), ()),
    "another network": (replace(SAME, network=PACKAGE), ("network",)),
    "another network of the same words": (replace(SAME, network=Subject("other", ALBERT_XL.words)), ("network",)),
    "other texts": (replace(SAME, data=PASSAGES), ("data",)),
    "too few layers": (replace(SAME, size={"heads": 16, "layers": 89}), ("size",)),
    "other heads": (replace(SAME, size={"heads": 8, "layers": 96}), ("size",)),
    "more heads": (replace(SAME, size={"heads": 32, "layers": 96}), ("size",)),
    "nothing is the paper's": (Measured(PACKAGE, PASSAGES, {"heads": 8, "layers": 12}), ("network", "data", "size")),
}


@pytest.mark.parametrize("case", RUNS)
def test_reproduces_only_where_nothing_differs(case):
    """`holds` decides the verdict only where network, data and size are the paper's."""
    measured, apart = RUNS[case]
    assert differences(SOURCE, measured) == apart
    for holds in (True, False):
        verdict = judge("paper", holds, differences(SOURCE, measured), 0.5)
        same = "reproduces" if holds else "does not reproduce"
        assert verdict == (f"not the paper's {apart[0]}" if apart else same) and verdict in VERDICTS


@pytest.mark.parametrize(
    ("kind", "words"),
    (
        ("identity", ("holds", "VIOLATED")),
        ("finding", ("holds", "does not hold")),
        ("paper", ("reproduces", "does not reproduce")),
    ),
)
def test_kinds_of_claims_and_what_was_not_measured(kind, words):
    of = lambda holds, value: judge(kind, holds, (), value)
    assert (of(True, 1.0), of(False, 1.0), of(False, float("inf"))) == (*words, words[1])
    assert of(False, float("nan")) == "not measured"


@pytest.mark.parametrize("name", ("heads", "layers"))
def test_a_size_that_the_run_does_not_state_is_refused(name):
    size = {other: value for other, value in SAME.size.items() if other != name}
    with pytest.raises(ValueError, match=f"must state the size that A paper names, but it has no '{name}'"):
        differences(SOURCE, replace(SAME, size=size))


def test_sizes_are_numbers_and_not_their_digits():
    source = peat("Figure 3", size={"beta": 1, "t": 0.3})
    assert differences(source, particles(beta=1.0, t=0.1 + 0.2)) == ()
    assert differences(source, particles(beta=1.001, t=0.3)) == ("size",)


POSTER = Source("The poster", HARDMAX_CLASSIFIER, IMDB, {"d": 2})
MADE = Measured(HARDMAX_CLASSIFIER, MADE_UP, {"d": 2, "reviews": 6000})


def outcome(*changes, on=MADE):
    """The outcome with a claim of the poster for each dict of changes."""
    claim = Claim(
        says="Leaders convey sentiment.", measured="12 of 15", criterion="at least 11", holds=True, kind="paper",
        value=12.0, source=POSTER,
    )  # fmt: skip
    claims = tuple(replace(claim, **each) for each in changes)
    return Outcome("Seen.", claims, {}, {}, lambda: None, None, on=on)


def test_made_up_reviews_never_reproduce_and_stand_above_the_picture():
    """One claim may be measured on other data than the rest."""
    mixed = outcome({}, {"on": replace(MADE, data=IMDB)})
    assert [mixed.verdict(claim) for claim in mixed.claims] == ["not the paper's data", "reproduces"]
    assert mixed.heading == "not the paper's data: made-up reviews with planted words"
    assert outcome({}, on=replace(MADE, data=IMDB)).heading == ""


def test_what_the_source_leaves_open_cannot_differ_and_a_run_leaves_nothing_open():
    for subject in (ANY, UNSAID):
        assert differences(Source("A theorem", subject, subject), Measured(PACKAGE, PASSAGES, {})) == ()
    assert differences(SOURCE, replace(SAME, data=ANY)) == ("data",)
    assert differences(SOURCE, replace(SAME, network=UNSAID)) == ("network",)
    several = Source("A paper", ALBERT, ANY)
    assert [differences(several, replace(SAME, network=one)) for one in (*ALBERT, PACKAGE)] == [()] * 4 + [("network",)]
