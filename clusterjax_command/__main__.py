"""`python -m clusterjax_command`: the command."""

import sys

from clusterjax_command._run import run


if __name__ == "__main__":
    sys.exit(run())
