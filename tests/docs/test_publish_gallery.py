"""A published gallery holds the numbers and a small picture of each figure, and nothing about the machine."""

import json

import pytest
from PIL import Image

from clusterjax.experiments.framework.listing import papers
from tests.docs.tools import tool
from tests.experiments.test_gallery import RECORD, written


publish = tool("publish_gallery")
COMMAND = "clusterjax reproduce figure3 --albert '/home/me/my net' --texts '~/texts.txt' --seed 0"
WHOLE = RECORD | {"command": COMMAND}


@pytest.fixture
def gallery(tmp_path):
    """A gallery of a full run, a quick run, a run with set parameters, a run of a user and a broken record."""
    folder = tmp_path / "gallery"
    parameters = {"n": 64, "times": list(range(50)), "by": {str(k): k for k in range(50)}, "few": [1, 2]}
    series = {"t": [0.0] * 61, "layer": [0, 1], "cosine": [0.1234567, 22467.168], "by_head": [[1.0], [2.0]]}
    place = written(folder, WHOLE | {"parameters": parameters, "series": series})
    Image.new("RGB", (1500, 900), "white").save(place / "figure3.png")
    written(folder, WHOLE | {"name": "figure4", "fingerprint": {"quick": True}, "asks": False})
    written(
        folder,
        WHOLE | {"name": "figure5", "measured_on": RECORD["measured_on"] | {"changed": "beta = 2 in place of 1"}},
    )
    written(folder, WHOLE | {"name": "mine"})
    written(folder, "{", "figure6")
    return folder


def test_what_is_whole_is_published_and_the_rest_is_named(gallery, tmp_path, capsys):
    out = tmp_path / "out"
    assert publish.main([str(gallery), "--out", str(out)]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["figure3.json", "figure3.webp"]
    said = capsys.readouterr()
    assert "1 figure in" in said.out
    for words in ("figure4: left out, it was a quick run", "mine: left out, it is no figure of the package",
                  "figure5: left out, its parameters were set: beta = 2", "results.json must"):  # fmt: skip
        assert words in said.err
    figure = json.loads((out / "figure3.json").read_text("utf-8"))
    assert figure["parameters"] == {"n": 64, "times": "50 values", "by": "50 values by name", "few": [1, 2]}
    assert figure["series"] == {"layer": [0, 1], "cosine": [0.12346, 22467.0]}
    assert figure["command"] == "clusterjax reproduce figure3 --albert 'my net' --texts texts.txt --seed 0"
    assert figure["paper"] == papers()[0].title and figure["place"] == 2 and figure["quick"] is False
    assert not figure.keys() & {"machine", "fingerprint", "measured_on", "files"}
    assert figure["claims"][1]["source"] == "A paper, Figure 1" and figure["claims"][0]["source"] is None


def test_what_was_published_before_stays(gallery, tmp_path):
    out = tmp_path / "out"
    publish.publish(gallery, out, quick_too=True)
    (gallery / "figure4" / "results.json").unlink()
    publish.publish(gallery, out)
    assert (out / "figure4.json").is_file()
