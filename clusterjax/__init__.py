"""How tokens cluster as they pass through attention: a differentiable laboratory."""

from importlib.metadata import version as _version

from . import hardmax as hardmax
