"""Each planted fault still has its line, so that `make mutants` plants what it says."""

import ast

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, planted


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own():
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_can_be_planted(mutant):
    text = (ROOT / mutant.file).read_text("utf-8")
    changed = planted(mutant, text)
    read = (lambda source: ast.dump(ast.parse(source))) if mutant.file.endswith(".py") else str
    assert read(changed) != read(text)
    for test in mutant.tests:
        assert (ROOT / test.split("::")[0]).is_file()


def test_a_line_that_is_gone_is_named():
    with pytest.raises(ValueError, match="must hold the line once, but holds it 0 times"):
        planted(MUTANTS[0]._replace(line="nowhere"), "somewhere")
