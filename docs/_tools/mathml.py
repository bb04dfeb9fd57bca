"""Formulas as MathML, which is made while the site is built, and needs no script, no font and no other server.

Pages have formulas in LaTeX. Docstrings, which `help` shows in a terminal, have them in Unicode: a formula without a
backslash is translated to LaTeX first.
"""

import html as html_module
import re
import unicodedata
from itertools import accumulate

from latex2mathml.commands import FUNCTIONS, LIMIT
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError


# pymdownx.arithmatex writes formulas as \(...\) in a span and \[...\] in a div.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
LEFT_OVER = re.compile(r"\\[a-zA-Z]+")
# Angle brackets, ±, colons and semicolons, which latex2mathml takes for variables.
OPERATOR = re.compile("<mi>(&#x027E[89];|&#x000B1;|[:;])</mi>")

# The characters of formulas in Unicode beside ASCII, Greek letters, and these two letters, which stay as they are.
LETTERS = "ℝℓ"
# fmt: off
COMMANDS = {
    "∑": r"\sum", "∏": r"\prod", "∫": r"\int", "∬": r"\iint", "∮": r"\oint", "∇": r"\nabla", "∂": r"\partial",
    "⟨": r"\langle", "⟩": r"\rangle", "‖": r"\|", "≤": r"\le", "≥": r"\ge", "≠": r"\ne", "≈": r"\approx",
    "≪": r"\ll", "≫": r"\gg", "≲": r"\lesssim", "∝": r"\propto", "∈": r"\in", "∪": r"\cup", "⊕": r"\oplus",
    "⊙": r"\odot", "×": r"\times", "·": r"\cdot", "±": r"\pm", "∞": r"\infty", "⊥": r"\perp", "→": r"\to",
    "←": r"\leftarrow", "↦": r"\mapsto", "⋯": r"\cdots", "½": r"\frac12", "²": "^2", "³": "^3", "₀": "{}_0", "₁": "_1",
}
# fmt: on
# Three letters in a row are a word, and so are these pairs; all other letters are variables.
WORD = re.compile(
    r"( ?)(?<![A-Za-z\\{])([A-Za-z]{3,}|Ei|Im|LN|PE|Re|ff|tr)(?![A-Za-z])((?:[_^](?:\{[^{}]*\}|.)|²)?)( ?)"
)


def formula(text: str, *, block: bool, page: str = "") -> str:
    """The MathML of one formula, which is in LaTeX or, if it has no backslash, in Unicode.

    **Raises:**

    - `PluginError`, which names the page, if the formula has a command or a character that is not known.
    """
    try:
        latex = text.strip() if "\\" in text else in_latex(text.strip())
        converted = convert(latex, display="block" if block else "inline")
    except Exception as error:  # the converter raises errors of many types
        raise PluginError(f"{page}: the formula ${text}$ is not understood: {type(error).__name__} {error}") from error
    if unknown := LEFT_OVER.findall(converted):
        raise PluginError(f"{page}: the formula ${text}$ has {', '.join(unknown)}, which latex2mathml does not know")
    return OPERATOR.sub(r'<mo stretchy="false">\1</mo>', converted)


def in_latex(text: str) -> str:
    """The LaTeX of a formula in Unicode, such as "ẋ_i = P_{x_i}(∑_j w_{ij} V x_j)" or "max_i |x_i| ≤ √(2T)".

    Braces group after _ and ^, and are visible elsewhere. √ extends over the bracket, the number or the letter with its
    index that follows. ^T is the transpose. The names of functions, and other words, are upright.

    **Raises:**

    - `ValueError` if a character is not known.
    """
    text = _with_visible_braces(text.replace("∣", "|"))  # ∣ stands for a bar in tables, whose cells end at bars
    while (root := text.find("√")) >= 0:
        text = text[:root] + _with_root(text[root + 1 :])
    # The spaces in front of differentials and around words are visible.
    text = re.sub(r"(?<=[\w)}|⟩²]) (?=d[^\W\d_](?![A-Za-z]))", r"\\,", text)
    text = WORD.sub(_word, text)
    text = text.replace("^T", r"^\top ").replace("...", r"\dots ").replace(" | ", r"\mid ")
    dotted = re.sub("(.)\N{COMBINING DOT ABOVE}", r"\\dot \1", unicodedata.normalize("NFD", text))
    text = unicodedata.normalize("NFC", dotted)
    text = "".join(f"{COMMANDS[c]} " if c in COMMANDS else c for c in text)
    if unknown := [c for c in text if not (c.isascii() or c in LETTERS or "GREEK" in unicodedata.name(c, ""))]:
        raise ValueError(f"COMMANDS has no {', '.join(unknown)}")
    return text


def _with_visible_braces(text: str) -> str:
    """`text` with a backslash before each brace that does not group."""
    pieces, visible = [], []
    for before, character in zip(f" {text}", text, strict=False):
        if character == "{":
            visible.append(before not in "_^")
            pieces.append(r"\{" if visible[-1] else "{")
        elif character == "}" and not visible:
            raise ValueError("a brace is closed that was not opened")
        elif character == "}":
            pieces.append(r"\}" if visible.pop() else "}")
        else:
            pieces.append(character)
    return "".join(pieces)


def _with_root(text: str) -> str:
    """The LaTeX of a root of what `text` begins with, and the rest of `text`."""
    if text.startswith("("):
        depths = accumulate({"(": 1, ")": -1}.get(character, 0) for character in text)
        end = next((place for place, depth in enumerate(depths) if depth == 0), 0)
        under, rest = text[1:end], text[end + 1 :]
    else:
        under = re.match(r"\d+|\w_\w|\w_\{[^{}]*\}|\w?", text)[0]
        rest = text[len(under) :]
    if not under:
        raise ValueError("√ needs a number, a letter or a closed bracket behind it")
    return f"\\sqrt{{{under}}}{rest}"


def _word(match: re.Match) -> str:
    """The LaTeX of a word with its index or power, and with its spaces beside letters, numbers and brackets."""
    before, word, script, after = match.groups()
    left = before and re.search(r"[\w)}|⟩²½,] $", match.string[: match.start() + 1])
    right = after and re.match(r"[\w(|⟨∇√\\]", match.string[match.end() :])
    if f"\\{word}" in LIMIT:
        return f"\\{word}{script} "
    if f"\\{word}" in FUNCTIONS:
        return ("\\," if left else "") + f"\\{word}{script} " + ("\\," if right else "")
    if script:
        return f"\\text{{{' ' if left else ''}{word}}}{script}{after}"
    return f"\\text{{{' ' if left else ''}{word}{' ' if right else ''}}}"


def render(html: str, page: str = "") -> str:
    """`html` with all formulas as MathML."""
    return FORMULA.sub(lambda m: formula(html_module.unescape(m[3]), block=m[2] == "[", page=page), html)
