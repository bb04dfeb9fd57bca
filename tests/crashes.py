"""A process that dies at a chosen operation on the file system, and does nothing more from then on."""

import builtins
import os

from clusterjax._files import disk as _disk


# Whatever changes a folder goes through one of these, in `pathlib` and `shutil` too.
OPERATIONS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "open", "fsync", "truncate")


class Crash(BaseException):
    """Stands for the end of the process: no handler of the package catches it, and what one does then fails again."""


class Crasher:
    """Counts operations; from number `at` on the process is dead. Of a file that is being written then, half is there.

    **Arguments:**

    - `patch`: The `monkeypatch` of a test.
    - `at`: The first operation that is not made, from 1; None lets all be made.
    """

    def __init__(self, patch, at=None):
        self.at, self.count = at, 0
        for name in OPERATIONS:
            patch.setattr(os, name, self._counted(getattr(os, name)))
        patch.setattr(_disk, "open", self._open, raising=False)

    def is_dead(self):
        self.count += 1
        return self.at is not None and self.count >= self.at

    def _counted(self, function):
        def call(*arguments, **options):
            if self.is_dead():
                raise Crash
            return function(*arguments, **options)

        return call

    def _open(self, *arguments, **options):
        file = builtins.open(*arguments, **options)
        if file.writable():
            return _Writer(file, self)
        return file


class _Writer:
    """A file whose last writing may be cut short."""

    def __init__(self, file, crasher):
        self.file, self.crasher = file, crasher

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        if self.crasher.is_dead():
            self.file.write(content[: len(content) // 2])
            raise Crash
        return self.file.write(content)
