"""Runs the first snippet of a Markdown file and compares its output with the first block of text: `FILE`."""

import contextlib
import io
import re
import sys
from pathlib import Path


text = Path(sys.argv[1]).read_text("utf-8")
(code, *_), (wanted, *_) = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S) for kind in ("python", "text"))
found = io.StringIO()
with contextlib.redirect_stdout(found):
    exec(compile(code, sys.argv[1], "exec"))
sys.exit(None if found.getvalue() == wanted else f"it prints {found.getvalue()!r}, but should {wanted!r}")
