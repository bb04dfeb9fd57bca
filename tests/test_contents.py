"""`help(clusterjax)` lists what there is: every public name of every part, with a sentence, and loads no library."""

import importlib
import pydoc
import subprocess
import sys

import pytest

import clusterjax
from clusterjax._base.lazy import first_sentence, sentence
from tests.helpers import fresh_environment


PARTS = ("", "hardmax", "phase", "plot", "probe", "sentiment", "sweep", "transformer", "experiments")


def module_of(part):
    try:
        return importlib.import_module(f"clusterjax.{part}".rstrip("."))
    except ImportError as error:
        pytest.skip(str(error))


def listed(text):
    """The names at the beginning of indented lines, with what stands behind them."""
    lines = (line.strip().partition(" ") for line in text.splitlines() if line.startswith("    "))
    return {name: words.strip() for name, _, words in lines}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part or "clusterjax")
def test_every_public_name_is_listed_with_a_sentence(part):
    module = module_of(part)
    found = listed(module.__doc__)
    assert set(module.__all__) <= set(found)
    assert [name for name in module.__all__ if not found[name]] == []
    assert all(len(line) < 160 for line in module.__doc__.splitlines())


def test_the_parts_are_listed():
    found = listed(clusterjax.__doc__)
    assert found["hardmax"].startswith("The discrete hardmax dynamics")
    assert {part for part in PARTS if part not in ("", "experiments")} <= set(found)


def test_help_shows_it_and_the_sentence_of_the_source_first():
    text = pydoc.render_doc(clusterjax, renderer=pydoc.plaintext)
    assert "clusterjax - How tokens cluster as they pass through attention" in text
    assert "simulate                 Integrate $\\dot x" in text
    assert clusterjax.__doc__.startswith(
        "How tokens cluster as they pass through attention: a differentiable laboratory."
    )


def test_sentences_are_those_of_the_docstrings():
    """Read from the source, they are what the objects say of themselves."""
    for name in clusterjax.__all__:
        value = getattr(clusterjax, name)
        assert sentence("clusterjax", "none") == ""
        if value.__doc__:
            words = listed(clusterjax.__doc__)[name].removesuffix(" ...")
            assert first_sentence(value.__doc__).startswith(words)


def test_first_sentences():
    assert first_sentence("One. Two.\n\nThree.") == "One."
    assert first_sentence("Of two\n    lines: a sentence.\n\nMore.") == "Of two lines: a sentence."
    assert first_sentence("") == ""


def test_nothing_is_imported_and_nothing_read_before_it_is_asked_for():
    code = "import sys, clusterjax; len(clusterjax.__doc__); assert not {'jax', 'numpy', 'equinox'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=fresh_environment())
