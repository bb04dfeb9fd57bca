"""The command `clusterjax` from its first line on: what a signal does is settled before anything heavy is imported.

It stands outside the package, whose import is that of jax and takes seconds in which Ctrl-C should be quiet as well.

A signal does not raise an exception: that would go through whatever runs at the moment, and compiled code that calls
Python back answers an exception with an abort. What is finished is on the disk at every moment, since a kill must leave
it so too; hence the process takes away its drafts and locks, says one line, and ends on the spot.
"""

from clusterjax_command._run import run as run
