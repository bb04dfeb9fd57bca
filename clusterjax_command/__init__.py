"""The entry point of the command `clusterjax`, which handles signals from its first line on.

The package `clusterjax` is imported later, because its import loads jax, and takes seconds in which Ctrl-C should end
the command quietly as well.

A signal does not raise an exception, since an exception would abort compiled code that calls Python back. The files on
the disk are consistent at every moment, because a process can also be killed. The handler therefore removes the drafts
and locks of the process, prints one line, and ends the process immediately.
"""

from clusterjax_command._run import run as run
