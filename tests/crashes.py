"""A simulated process that dies at a chosen operation on the file system and changes nothing afterwards."""

import builtins
import os

from clusterjax._files import disk as _disk


# Every change of a folder uses one of these operations, in `pathlib` and `shutil` too.
OPERATIONS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "open", "fsync", "truncate")


class Crash(BaseException):
    """The end of the process: no handler of the package catches this exception, and further operations raise it."""


class Crasher:
    """Counts operations; the process is dead from operation `at` on. An interrupted write stores half of its content.

    **Arguments:**

    - `patch`: The `monkeypatch` of a test.
    - `at`: The number of the first operation that fails, counted from 1; None lets all operations succeed.
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
    """A file whose last write may be cut short."""

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
