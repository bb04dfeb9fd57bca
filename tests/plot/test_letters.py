"""No word piece is drawn as a box: letters that the font lacks are escaped, in every picture that names words."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from clusterjax import plot, probe, transformer
from clusterjax.experiments.figures.albert_spectra import listed
from clusterjax.experiments.shared.layout import drawable
from clusterjax.plot._labels import one_line


LACKED = "\u6771"  # east; DejaVu Sans has no Chinese


def draw(words):
    """Draws words as plain text, a hundred in a line: matplotlib warns of each letter that the font lacks."""
    figure = Figure(figsize=(20, 20))
    with plot.style():
        for line in range(0, len(words), 100):
            figure.text(0, line / len(words), " ".join(words[line : line + 100]), parse_math=False)
        figure.draw_without_rendering()


def vocabularies():
    return {
        "albert": list(probe.load().tokenizer.get_vocab()),
        "language model": list(transformer.load_tokenizer().get_vocab()),
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ("albert", "language model"))
def test_every_piece_of_the_package_is_drawn(name):
    """Matplotlib warns of a raw piece, which is an error here; as labels the pieces cause no warning and all differ."""
    pieces = vocabularies()[name]
    assert len(pieces) > 2000 and LACKED in pieces and "🙂" in pieces
    with pytest.warns(UserWarning, match="Glyph .* missing from font"):
        draw([LACKED])
    labels = [one_line(piece) for piece in pieces]
    draw(labels)
    draw([drawable(piece) for piece in pieces])
    assert len(set(labels)) == len(pieces) and not any("□" in label for label in labels)


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("a\u30e9", r"a\u30e9"), ("##\u0303o\u0303", "##\\u0303o\u0303"), ("a\u200bb", r"a\u200bb"), ("\x07", r"\x07"),
        ("\U0001f642", r"\U0001f642"), ("a\tb\n", "a⇥b↵"), ("  ", "␣␣"), ("", ""), ("naïve", "naïve"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_escaped(word, label):
    assert one_line(word) == label


def pictures():
    word = f"{LACKED}$x$"
    number = np.zeros((1, 1), int)
    memory = transformer.KeyValueMemory(number + 1.0, number, number, number, number + 1.0, np.zeros(1), np.ones(1))
    yield plot.neuron_memory(memory, 0, [word], np.zeros((1, 2), int)).figure
    yield plot.logit_lens(np.zeros((1, 1, 1)), [word], tokens=[word]).figure
    yield plot.words(np.array([[0.0, 0.0], [1.0, 1.0]]), [word, word], leaders=[0]).figure
    yield plot.residual_flow(np.ones((1, 1, 2, 2)), tokens=[word, word]).figure
    yield plot.causal_trace(SimpleNamespace(restored=np.ones((1, 1)), clean=0.0, corrupted=1.0), tokens=[word]).figure
    yield plot.heatmap(np.ones((1, 1)), xnames=[word], ynames=[word]).figure


def test_every_picture_of_words_escapes_them():
    """A dollar sign in a word begins no formula."""
    for figure in pictures():
        figure.draw_without_rendering()
        texts = figure.findobj(lambda artist: hasattr(artist, "get_text"))
        written = " ".join(text.get_text() for text in texts)
        assert LACKED not in written and r"\u6771$x$" in written
        assert not any("$" in text.get_text() and text.get_parse_math() for text in texts)
    assert listed([LACKED, "a"]) == r"\u6771  a"
