"""The line of each planted fault still exists, so that `make mutants` plants the described fault."""

import ast

import pytest

from tests.mutants.catalogue import MUTANTS, ROOT, planted


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own():
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_each_fault_can_be_planted_and_its_tests_are_there():
    for mutant in MUTANTS:
        changed = planted(mutant, (ROOT / mutant.file).read_text("utf-8"))
        assert mutant.fault.split() != mutant.line.split(), mutant.name
        if mutant.file.endswith(".py"):
            ast.parse(changed)
        for test in mutant.tests:
            file, _, function = test.partition("::")
            text = (ROOT / file).read_text("utf-8")
            assert not function or f"\ndef {function.partition('[')[0]}(" in text, f"{mutant.name}: no {test}"


def test_a_line_that_is_gone_is_named():
    with pytest.raises(ValueError, match="must hold the line once, but holds it 0 times"):
        planted(MUTANTS[0]._replace(line="nowhere"), "somewhere")
