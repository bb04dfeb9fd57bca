"""Formulas as MathML, made while the site is built: they need no program, no font and no other host."""

import html as html_module
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError


# What pymdownx.arithmatex leaves: \(...\) in a span, \[...\] in a div.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
LEFT_OVER = re.compile(r"\\[a-zA-Z]+")


def formula(latex: str, *, block: bool, page: str = "") -> str:
    """The MathML of one formula in LaTeX.

    **Raises:**

    - `PluginError` if it has a command that the converter does not know; the page is named.
    """
    try:
        out = convert(latex.strip(), display="block" if block else "inline")
    except Exception as error:  # the converter has a dozen kinds
        raise PluginError(f"{page}: the formula ${latex}$ is not understood: {type(error).__name__} {error}") from error
    if unknown := LEFT_OVER.findall(out):
        raise PluginError(f"{page}: the formula ${latex}$ has {', '.join(unknown)}, which latex2mathml does not know")
    return out


def render(html: str, page: str = "") -> str:
    """`html` with each formula as MathML."""
    return FORMULA.sub(lambda m: formula(html_module.unescape(m[3]), block=m[2] == "[", page=page), html)
