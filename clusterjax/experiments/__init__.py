"""One file for each figure of the papers: simulate, measure, assert, draw; and the gallery of the figures."""

from typing import Any

import lazy_loader

from .._base.extras import require


_attached, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    # Only the list of the figures, which the command shows, is read without matplotlib.
    if name in __all__:
        require(__name__, "plot", "matplotlib")
    return _attached(name)
