"""The playground, in a browser."""

from pathlib import Path


PAGE = Path(__file__).resolve().parents[2] / "docs" / "playground" / "index.html"
