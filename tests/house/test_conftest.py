"""The rules of conftest.py for the cases that `make test` runs, and the check of types in the tests."""

from itertools import product
from types import SimpleNamespace

import jaxtyping
import pytest

import clusterjax as cjx
from tests.conftest import leave_cases_out, leave_combinations_out
from tests.type_checks import ENOUGH, at_first_call


class Case:
    """The attributes of an item of pytest that the rule reads."""

    def __init__(self, name, lists, left_out=False, **of_fixtures):
        self.nodeid = f"{name}[{lists}]"
        self.callspec = SimpleNamespace(params={k: v for names, row in lists for k, v in zip(names, row, strict=True)})
        self.callspec.params |= of_fixtures
        self.lists = [pytest.mark.parametrize(",".join(names), []).mark for names, _ in lists]
        self.left_out = left_out

    def iter_markers(self, name):
        return iter(self.lists)

    def get_closest_marker(self, name):
        return self.left_out or None

    def add_marker(self, mark):
        assert mark == pytest.mark.exhaustive
        self.left_out = True


def taken(cases):
    leave_combinations_out(cases)
    return [case.callspec.params for case in cases if not case.left_out]


def test_each_value_is_taken_and_not_all_combinations():
    cases = [Case("t", [(("d",), (d,)), (("mask",), (m,))]) for d, m in product((2, 3, 4), ("full", "causal"))]
    kept = taken(cases)
    assert len(kept) == 3
    assert {params["d"] for params in kept} == {2, 3, 4} and {params["mask"] for params in kept} == {"full", "causal"}


def test_rows_of_one_list_are_all_taken():
    rows = list(product((2, 3), ("full", "causal")))
    assert len(taken([Case("t", [(("d", "mask"), row)]) for row in rows])) == len(rows)


def test_what_is_left_out_already_takes_no_value_with_it():
    cases = [Case("t", [(("d",), (2,)), (("mask",), (m,))], m == "full") for m in ("full", "causal", "window")]
    assert [params["mask"] for params in taken(cases)] == ["causal", "window"]


def test_tests_do_not_stand_for_each_other():
    assert len(taken([Case(name, [(("d",), (2,))]) for name in ("one", "two")])) == 2


def test_parameters_of_fixtures_are_values():
    cases = [Case("t", [(("d",), (d,))], network=network) for d, network in product((2, 3), ("albert", "t5"))]
    assert [set(params.values()) for params in taken(cases)] == [{2, "albert"}, {3, "t5"}]


@jaxtyping.jaxtyped(typechecker=at_first_call)
def half(x: float) -> float:
    return x / 2 if x > 0 else "none"  # pyright: ignore[reportReturnType]


def test_types_are_checked_until_a_function_was_called_often():
    """The types of arguments and of results are checked, also in the package."""
    for _ in range(2):
        assert half(1.0) == 0.5
        for wrong in ("1", -1.0):
            with pytest.raises(jaxtyping.TypeCheckError):
                half(wrong)  # pyright: ignore[reportArgumentType]
    for _ in range(ENOUGH):
        half(1.0)
    assert half(-1.0) == "none"
    with pytest.raises(jaxtyping.TypeCheckError):
        cjx.neural_collapse("features", "labels", "weights")  # pyright: ignore[reportArgumentType]


class Named:
    """A case of a test with `exhaustive_cases`, as `leave_cases_out` reads it."""

    def __init__(self, case, *ids):
        self.nodeid, self.ids, self.left_out = f"tests/t.py::test[{case}]", ids, False

    def get_closest_marker(self, name):
        return pytest.mark.exhaustive_cases(*self.ids).mark

    def add_marker(self, mark):
        self.left_out = mark == pytest.mark.exhaustive


def test_the_named_cases_are_left_out_and_an_id_of_no_case_is_refused():
    cases = [Named(case, "b", "a[1]") for case in ("a", "b", "a[1]")]
    leave_cases_out(cases)
    assert [case.left_out for case in cases] == [False, True, True]
    with pytest.raises(pytest.UsageError, match="'c'.*its cases: a, b"):
        leave_cases_out([Named("a", "c"), Named("b", "c")])
    leave_cases_out([Named("a", "c")], all_collected=False)
