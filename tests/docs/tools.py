"""The tools of the documentation, which are scripts and no package."""

import importlib.util
import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "docs" / "_tools"


def tool(name):
    """Imports the module of this name from docs/_tools."""
    label = f"docs_tools_{name}"
    if label not in sys.modules:
        spec = importlib.util.spec_from_file_location(label, TOOLS / f"{name}.py")
        sys.modules[label] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(TOOLS))  # they import each other
        try:
            spec.loader.exec_module(sys.modules[label])
        finally:
            sys.path.remove(str(TOOLS))
    return sys.modules[label]
