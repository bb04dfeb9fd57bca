"""The command as a process: signals from its first line on, and output that cannot be printed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterjax._base.log import log_line, printable


ROOT = Path(__file__).resolve().parents[2]

# A function that is run in the child needs a fork; the child then executes another program at once.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
ENTRY = "import sys; sys.argv[0] = 'clusterjax'; from clusterjax_command import run; sys.exit(run())"
# Code like `ENTRY`, which prints a line once signals are handled and before anything else is imported.
SAYS_WHEN_READY = """
import sys
import clusterjax_command._run as command
sys.argv[0] = 'clusterjax'
see_to_signals = command.end_quietly_on_signals
command.end_quietly_on_signals = lambda: (see_to_signals(), print('ready', flush=True))
sys.exit(command.run())
"""
# A stub in place of the package, so that a child starts at once; {} is the body of its main.
STUB = """
import sys, types
for name in ("clusterjax", "clusterjax._cli", "clusterjax._files.lock"):
    sys.modules[name] = types.ModuleType(name)
def main():
{}
sys.modules["clusterjax._cli"].main = main
sys.modules["clusterjax._files.lock"].abandon = lambda: print("abandoned", flush=True)
"""


def start(*argv, main=None, entry=ENTRY, **options):
    stub = "" if main is None else STUB.format("".join(f"    {line}\n" for line in main.splitlines()))
    restore = lambda: [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGPIPE)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": restore, "text": True, **options}
    return subprocess.Popen([sys.executable, "-c", stub + entry, *argv], cwd=ROOT, **options)


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# A lock that is taken twice, in C: the call never returns to Python, whatever signal arrives.
NATIVE = """
import ctypes
mutex, take = ctypes.create_string_buffer(128), ctypes.CDLL(None).pthread_mutex_lock
take(mutex)
print('up', flush=True)
take(mutex)
"""
# Python code that C calls, as compiled code does: an exception could not pass through C.
CALLED_BACK = """
import ctypes, os, signal
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def compare(a, b):
    print('up', flush=True)
    while True:
        pass
numbers = (ctypes.c_int * 2)(2, 1)
ctypes.CDLL(None).qsort(numbers, 2, 4, kind(compare))
"""


BUSY = {"called back": CALLED_BACK, "native": NATIVE}
SIGNALS = ((signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143))


@pytest.mark.exhaustive_cases("native-SIGTERM")
@pytest.mark.parametrize(("number", "word", "status"), SIGNALS, ids=("SIGINT", "SIGTERM"))
@pytest.mark.parametrize("main", BUSY.values(), ids=BUSY)
def test_a_signal_ends_the_command_with_one_line(number, word, status, main):
    """The command ends even where an exception would be caught, could not pass compiled code, or would be delayed."""
    process = start("train", "sentiment", main=main)
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert ended(process) == (status, "abandoned\n", f"clusterjax train: {word}; finished results are kept.\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_a_signal_during_imports_is_quiet(number):
    """Signals come at moments spread over the imports, which take most of the time of a refused call."""
    stopped = 0
    for part in range(4):
        process = start("predict", "absent", "text", entry=SAYS_WHEN_READY)
        assert process.stdout.readline() == "ready\n"  # before that, Python itself is starting
        try:
            process.wait(0.4 * part)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            stopped += 1
        status, _, err = ended(process)
        assert status in (128 + number, 2) and err.count("\n") == 1 and "Traceback" not in err
        assert "finished results are kept" in err if status != 2 else "DIR must hold a trained model" in err
    assert stopped > 0


@pytest.mark.exhaustive_cases(
    "Late.last = Late()-15", "Late.last = Late()-2", "import atexit; atexit.register(time.sleep, 5)-2"
)
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
@pytest.mark.parametrize("late", ("import atexit; atexit.register(time.sleep, 5)", "Late.last = Late()"))
def test_a_signal_after_the_end_does_not_change_it(number, late):
    """Signals come while functions run at the exit, or later, while modules are taken down."""
    slow = "import time\nclass Late:\n    def __del__(self, time=time):\n        time.sleep(2)"
    main = f"{slow}\n{late}\nprint('up', flush=True)\nreturn 2"
    process = start("predict", main=main)
    assert process.stdout.readline() == "up\n"
    time.sleep(0.5)
    process.send_signal(number)
    status, _, err = ended(process)
    assert (status, err) == (2, "")


def test_nothing_heavy_is_imported_before_signals_are_seen_to():
    code = "import sys; before = set(sys.modules); import clusterjax_command; print(*(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    heads = {name.split(".")[0] for name in found.stdout.split()}
    assert "clusterjax_command" in heads and heads <= sys.stdlib_module_names | {"clusterjax_command"}


def test_a_job_whose_signals_are_ignored_keeps_them_so():
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = start(main="print('up', flush=True)\nimport time\ntime.sleep(1)\nreturn 0", preexec_fn=ignore)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert ended(process) == (0, "", "")


def closed_pipe():
    read, write = os.pipe()
    os.close(read)
    return write


def saves():
    """A main that says a line and then writes a file, with the real `log_line`, which needs no package."""
    loads = (
        "import importlib.util as u\nspec = u.spec_from_file_location('said', {!r})\nsaid = u.module_from_spec(spec)\n"
    )
    loads = loads.format(str(ROOT / "clusterjax" / "_base" / "log.py")) + "spec.loader.exec_module(said)\n"
    return loads + "for _ in range(3): said.log_line('caf\\u00e9 \\u2764')\nopen(sys.argv[1], 'w').close()\nreturn 0"


def test_a_closed_pipe_keeps_nothing_from_being_written(tmp_path):
    pipe = closed_pipe()
    process = start(str(tmp_path / "model"), main=saves(), stdout=pipe)
    os.close(pipe)
    status, _, err = ended(process)
    assert status in (0, 141) and err == "" and (tmp_path / "model").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_under_the_output_keeps_nothing_from_being_written(tmp_path):
    with open("/dev/full", "w") as full:
        status, _, err = ended(start(str(tmp_path / "model"), main=saves(), stdout=full))
    assert status in (0, 141) and err == "" and (tmp_path / "model").exists()


@pytest.mark.parametrize("encoding", ("ascii", "latin-1", "utf-8"))
def test_letters_that_the_terminal_lacks_are_escaped(tmp_path, encoding):
    env = os.environ | {"PYTHONIOENCODING": encoding}
    status, out, err = ended(start(str(tmp_path / "model"), main=saves(), env=env, text=False))
    assert (status, err) == (0, b"") and (tmp_path / "model").exists()
    e, heart = ("\\xe9" if encoding == "ascii" else "é"), ("❤" if encoding == "utf-8" else "\\u2764")
    assert out.decode(encoding) == 3 * f"caf{e} {heart}\n"


class Strict:
    """A stream of another encoding, which raises for letters that it lacks."""

    def __init__(self, encoding):
        self.encoding, self.text = encoding, ""

    def write(self, text):
        text.encode(self.encoding)
        self.text += text

    def flush(self):
        pass


def test_say_escapes_and_never_raises(monkeypatch):
    stream = Strict("ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    log_line("café")
    log_line("plain")
    assert stream.text == "caf\\xe9\nplain\n"
    for fault in (BrokenPipeError(), OSError(28, "No space left"), ValueError("I/O operation on closed file")):
        monkeypatch.setattr(stream, "write", lambda text, fault=fault: (_ for _ in ()).throw(fault))
        log_line("café")
    assert printable("\udcff é", Strict("utf-8")) == "\\udcff é"
    assert printable("é", object()) == "\\xe9"
