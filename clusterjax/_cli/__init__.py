"""The command `clusterjax`."""

from ._main import main as main
