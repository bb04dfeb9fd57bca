"""A verdict follows from what the paper measured and from what was run; nobody writes one."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import clusterjax.experiments
from clusterjax.experiments.framework.experiment import Claim, Experiment, Outcome
from clusterjax.experiments.framework.record import lines_of, record_of, told
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
    PARTICLES,
    UNIFORM,
    particles,
    peat,
)


PACKAGE = Subject("clusterjax-albert", "the ALBERT of this package")
PASSAGES = Subject("texts", "passages")
SOURCE = Source("A paper", ALBERT_XL, C4, {"heads": 16}, {"layers": 90})
SAME = Measured(ALBERT_XL, C4, {"heads": 16, "layers": 96, "texts": 48})

# What is run, and which parts are not the paper's.
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
def test_what_is_not_the_papers_is_found(case):
    measured, apart = RUNS[case]
    assert differences(SOURCE, measured) == apart


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("holds", (True, False))
def test_reproduces_only_where_nothing_differs(case, holds):
    """The one who runs it has no say: `holds` decides only where network, data and size are the paper's."""
    measured, apart = RUNS[case]
    verdict = judge("paper", holds, 0.5, SOURCE, measured)
    if apart:
        assert verdict == f"not the paper's {apart[0]}"
    else:
        assert verdict == ("reproduces" if holds else "does not reproduce")
    assert verdict in VERDICTS


def test_other_kinds_of_claims():
    said = {
        (kind, holds): judge(kind, holds, 1.0, None, SAME)
        for kind in ("identity", "finding")
        for holds in (0 < 1, 0 > 1)
    }
    assert said == {
        ("identity", True): "holds", ("identity", False): "VIOLATED",
        ("finding", True): "holds", ("finding", False): "does not hold",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ("identity", "paper", "finding"))
def test_what_is_no_number_was_not_measured(kind):
    source = SOURCE if kind == "paper" else None
    assert judge(kind, False, float("nan"), source, SAME) == "not measured"
    assert judge(kind, False, float("inf"), source, SAME) != "not measured"


@pytest.mark.parametrize("subject", (ANY, UNSAID))
def test_what_a_paper_claims_of_all_or_does_not_say_cannot_differ(subject):
    assert differences(Source("A theorem", subject, subject), Measured(PACKAGE, PASSAGES, {})) == ()


def test_any_of_several_networks_will_do():
    source = Source("A paper", ALBERT, ANY)
    assert [differences(source, replace(SAME, network=one)) for one in (*ALBERT, PACKAGE)] == [()] * 4 + [("network",)]


def test_what_is_measured_never_passes_for_any():
    """A run cannot call its data `ANY` to be those of every paper."""
    assert differences(SOURCE, replace(SAME, data=ANY)) == ("data",)
    assert differences(SOURCE, replace(SAME, network=UNSAID)) == ("network",)


@pytest.mark.parametrize("name", ("heads", "layers"))
def test_a_size_that_the_run_does_not_state_is_refused(name):
    size = {other: value for other, value in SAME.size.items() if other != name}
    with pytest.raises(ValueError, match=f"must state the size that A paper names, but it has no '{name}'"):
        differences(SOURCE, replace(SAME, size=size))


def test_sizes_are_numbers_and_not_their_digits():
    source = peat("Figure 3", size={"beta": 1, "t": 0.3})
    assert differences(source, particles(beta=1.0, t=0.1 + 0.2)) == ()
    assert differences(source, particles(beta=1.001, t=0.3)) == ("size",)


@pytest.mark.parametrize(("kind", "source"), (("paper", None), ("finding", SOURCE), ("identity", SOURCE)))
def test_a_claim_of_a_paper_has_a_source_and_no_other_has(kind, source):
    with pytest.raises(ValueError, match="source must be given for what a paper says and for nothing else"):
        Claim(says="It is so.", measured="1", criterion="1", holds=True, kind=kind, source=source)


def test_an_outcome_without_what_was_measured_cannot_be_made():
    with pytest.raises(TypeError, match="on"):
        Outcome("Caption.", (), {}, {}, lambda: None, None)


def paper(source, *, holds=True, **more):
    return Claim(
        says="Leaders convey sentiment.",
        measured="12 of 15",
        criterion="at least 11",
        holds=holds,
        kind="paper",
        value=12.0,
        source=source,
        **more,
    )


POSTER = Source("The poster", HARDMAX_CLASSIFIER, IMDB, {"d": 2})
MADE = Measured(HARDMAX_CLASSIFIER, MADE_UP, {"d": 2, "reviews": 6000})


def outcome(*claims, on=MADE):
    return Outcome("What is seen.", claims, {}, {}, lambda: None, None, on=on)


def record(*claims, on=MADE):
    experiment = Experiment("one", "the_one", "Title", "Claim", lambda settings, say: None)
    return record_of(experiment, outcome(*claims, on=on), {"seed": 0}, [], {"total": 1.0, "simulation": 1.0})


def test_made_up_reviews_never_reproduce_and_stand_above_the_picture():
    made = outcome(paper(POSTER))
    assert made.verdict(made.claims[0]) == "not the paper's data"
    assert made.heading == "not the paper's data: made-up reviews with planted words"
    assert outcome(paper(POSTER), on=replace(MADE, data=IMDB)).heading == ""


def test_a_claim_may_be_measured_on_something_else_than_the_rest():
    mixed = outcome(paper(POSTER), paper(POSTER, on=replace(MADE, data=IMDB)))
    assert [mixed.verdict(claim) for claim in mixed.claims] == ["not the paper's data", "reproduces"]


@pytest.mark.parametrize(("holds", "words"), ((True, "would agree"), (False, "would not agree")))
def test_record_lines_and_caption_name_network_data_and_size(holds, words):
    found = record(
        paper(POSTER, holds=holds), Claim(says="One.", measured="1", criterion="1", holds=True, kind="identity")
    )
    assert found["schema"] == 2
    assert found["measured_on"] == {
        "network": {"key": "hardmax-classifier", "words": HARDMAX_CLASSIFIER.words},
        "data": {"key": "made-up", "words": MADE_UP.words},
        "size": {"d": 2, "reviews": 6000},
    }
    first = found["claims"][0]
    assert first["verdict"] == "not the paper's data" and first["apart"] == ["data"]
    assert first["source"]["data"] == [IMDB.words] and told(first) == f"12 of 15 ({words}: at least 11)"
    for text in (found["caption"], *(claim["on"] for claim in found["claims"])):
        assert all(part in text for part in (HARDMAX_CLASSIFIER.words, MADE_UP.words, "d = 2, reviews = 6000"))
    assert "not the paper's data: 1 (of those not measured as the paper did, " in found["caption"]
    lines = lines_of(found)
    assert sum(MADE.words in line for line in lines) == 2, "one for each claim"
    assert any("paper: The poster: " in line and IMDB.words in line for line in lines)
    assert not any("reproduce" in line for line in (*lines, found["caption"]))


def test_a_claim_that_reproduces_is_not_hedged():
    found = record(paper(POSTER), on=replace(MADE, data=IMDB))
    assert found["claims"][0]["apart"] == [] and told(found["claims"][0]) == "12 of 15"
    assert found["caption"].endswith("Claims of the paper by verdict: reproduces: 1.")
    assert not any("paper:" in line for line in lines_of(found))


SOURCES = sorted(Path(clusterjax.experiments.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_no_experiment_writes_a_verdict(path):
    """The words stand in one file, so that they follow from a comparison wherever they are read."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value for parent in ast.walk(tree) if id(parent) not in inner
        for node in ast.iter_child_nodes(parent) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]  # fmt: skip
    written = [text for text in texts if "reproduces" in text or "not reproduce" in text or "not the paper's" in text]
    assert not written or path.stem == "verdict", written


def test_a_claim_takes_its_fields_by_name_alone():
    with pytest.raises(TypeError, match="positional"):
        Claim("It is so.", "1", "1", True, "identity")


def test_the_words_of_the_particles_are_those_of_the_seed():
    assert differences(peat("Figure 3", size={"tokens": 64}), Measured(PARTICLES, UNIFORM, {"tokens": 64})) == ()
    assert differences(peat("Figure 3", size={"tokens": 64}), Measured(PACKAGE, UNIFORM, {"tokens": 64})) == (
        "network",
    )
