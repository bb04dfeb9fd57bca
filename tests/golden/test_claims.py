"""The figures of `claims.json` make its claims at `--quick`, which were written before the package was restructured."""

import pytest

from .claims import differences, measure, stored


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(stored()))
def test_a_figure_makes_the_claims_of_the_file(name, tmp_path):
    wrong = differences(measure(name, tmp_path), stored()[name])
    assert not wrong, "\n".join(f"{name}: {words}" for words in wrong)


def test_a_difference_of_claims_is_described():
    claim = {"kind": "paper", "value": 2.0, "error": None, "holds": True, "verdict": "reproduces"}
    assert differences([claim], [claim | {"value": 2.0 + 1e-7}]) == []
    assert differences([claim], [claim | {"value": 2.0 + 1e-5, "holds": False}]) == [
        "claim 0: value is 2.0, but the file has 2.00001", "claim 0: holds is True, but the file has False",
    ]  # fmt: skip
    assert differences([], [claim]) == ["there are 0 claims, but the file has 1"]
    assert len(differences([claim], [claim | {"value": None}])) == 1
