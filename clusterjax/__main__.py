"""`python -m clusterjax`: the command."""

import sys

from clusterjax_command import run


if __name__ == "__main__":
    sys.exit(run())
