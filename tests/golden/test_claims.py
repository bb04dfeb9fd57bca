"""At `--quick` the figures make the claims of `claims.json`, which were written before the package was restructured."""

import pytest

from .claims import differences, measure, stored


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(stored()))
def test_a_figure_makes_the_claims_of_the_file(name, tmp_path):
    wrong = differences(measure(name, tmp_path), stored()[name])
    assert not wrong, "\n".join(f"{name}: {words}" for words in wrong)
