"""Damaged files of every loader are read or refused in one sentence, and cause no fault as `try_many` defines it."""

import pytest

from tests.fuzz.loaders import LOADERS
from tests.fuzz.trial import try_many
from tests.helpers import as_a_user


@pytest.mark.exhaustive_cases("ALBERT in shards")
@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.name)
def test_a_hundred_damaged_files(loader):
    with as_a_user():
        report = try_many(loader, 100 // loader.few)
    assert report.counts["clean"] and not report.faults, "\n".join(report.faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.name)
def test_a_thousand_damaged_files(loader):
    with as_a_user():
        report = try_many(loader, 1000, seed=1)
    assert report.counts["clean"] > 100 and not report.faults, "\n".join(report.faults)
