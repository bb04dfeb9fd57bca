"""Formulas as MathML, which is made while the site is built, and needs no script, no font and no other server."""

import html as html_module
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError


# pymdownx.arithmatex writes formulas as \(...\) in a span and \[...\] in a div.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
LEFT_OVER = re.compile(r"\\[a-zA-Z]+")


def formula(latex: str, *, block: bool, page: str = "") -> str:
    """The MathML of one formula in LaTeX.

    **Raises:**

    - `PluginError`, which names the page, if the formula has a command that the converter does not know.
    """
    try:
        converted = convert(latex.strip(), display="block" if block else "inline")
    except Exception as error:  # the converter raises errors of many types
        raise PluginError(f"{page}: the formula ${latex}$ is not understood: {type(error).__name__} {error}") from error
    if unknown := LEFT_OVER.findall(converted):
        raise PluginError(f"{page}: the formula ${latex}$ has {', '.join(unknown)}, which latex2mathml does not know")
    return converted


def render(html: str, page: str = "") -> str:
    """`html` with all formulas as MathML."""
    return FORMULA.sub(lambda m: formula(html_module.unescape(m[3]), block=m[2] == "[", page=page), html)
