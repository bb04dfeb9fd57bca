"""The guide to sweeps runs as a reader would run it, each snippet after the other."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest


GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "sweeps.md").read_text("utf-8")
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
def test_the_snippets_of_the_guide_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    snippets, names = SNIPPET.findall(GUIDE), {"__name__": "guide"}
    assert len(snippets) == 4
    with jax.numpy_dtype_promotion("standard"):
        for snippet in snippets:
            exec(compile(snippet, "guide", "exec"), names)
    found, partly = names["found"], names["partly"]
    assert found["count"].dims == ("beta", "n", "draw", "time") and not found.status.any()
    means = found["count"].mean("draw").sel(n=16)
    assert (means.diff("time") <= 0).all() and (means.sel(time=10.0).diff("beta") > 0).all()
    assert partly.reason.values.tolist() == ["not finite: result", "", "EquinoxRuntimeError: beta is too hot"]
    np.testing.assert_array_equal(partly.result, [np.nan, 1.0, np.nan])
    printed = capsys.readouterr().out
    assert "0 points are not finished" in printed and "True 48 draws" in printed
