"""Bad commands, made from the parser itself: each ends with status 2 and one sentence, at once, and writes nothing."""

import argparse
import signal
import sys

import pytest

import clusterjax.experiments
import clusterjax.probe
import clusterjax.sweep  # noqa: F401  # so that no call pays for the imports of all
from clusterjax._cli import _parser, main


def leaves(parser, words=()):
    """Yields the words and the parser of every command that can be run."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield words, parser
    for action in below:
        for word, inner in action.choices.items():
            yield from leaves(inner, (*words, word))


COMMANDS = dict(leaves(_parser()))
# The words that a call needs beside the bad option; {0} is the folder of the fixture `place`.
NEEDS = {
    ("reproduce",): "figure3 --out {0}/out",
    ("probe",): "--out {0}/out",
    ("train", "sentiment"): "{0}/reviews.csv --out {0}/out",
    ("train", "albert"): "--texts {0}/texts.txt --out {0}/out",
    ("train", "language-model"): "--texts {0}/texts.txt --out {0}/out",
    ("predict",): "{0}/folder text",
    ("complete",): "language-model text",
    ("sweep", "phase-diagram"): "--store {0}/out --times 3 --n 3 --samples 2 --betas 1:2:2",
}
# A figure that reads the file that an option names.
READERS = {
    "--albert": "figure7", "--texts": "figure1", "--imdb": "sentiment-words", "--ids": "figure1",
}  # fmt: skip
HUGE = "1" + 30 * "0"
WHOLE = ("", "x", "1.5", "-1", "nan", "inf", "1e3", HUGE, 5000 * "9")
NUMBER = ("", "x", "-1", "nan", "inf", "-inf", "1e300", "1e-300", 400 * "9")
# Options for which 0 is a good value: in every command, and in one.
NO_ZERO = {"--seed", "--snapshots", "--temperature", "--noise", "--drop"}
NO_LAYERS = {("train", "sentiment"): {"--num-layers"}}
PLACES = ("", "  ", "{0}/file/below", 5000 * "a")
READ = (*PLACES, "{0}/absent.csv", "{0}/empty.csv", "{0}/nonsense.csv", "{0}/picture.png", "{0}/folder")
WRITTEN = (*PLACES, "{0}/file")


def values(action, words):
    """Values that this option cannot have."""
    option = action.option_strings[-1] if action.option_strings else ""
    if action.choices:
        return ("nonsense", "", "1")
    kind = getattr(action.type, "__name__", "")
    if kind in ("int", "_integer"):
        return WHOLE if option in NO_ZERO | NO_LAYERS.get(words, set()) else (*WHOLE, "0")
    if kind == "_number":
        return NUMBER if option in NO_ZERO else (*NUMBER, "0")
    return {
        "--out": WRITTEN if action.dest == "out" else (*PLACES, "{0}/run", "{0}/run.gif", "{0}/absent/run.png"),
        "--store": (*PLACES, "{0}/file", "{0}/folder", "s3://bucket/run"),
        "--formats": ("", "gif", ",", "png,,svg", "PNG"),
        "--betas": ("", "1", "1:2", "a:b:c", "nan:1:3", "1:inf:3", "2:1:3", "-1:1:3", "1:2:0", "1:2:-3", "1:2:2.5",
                    "1:2:1", "1:1:3", "1:1e39:3", f"1:2:{HUGE}", "1:2:3:4", "1:2:1000000000",
                    "log", "log:", "log:1:2", "log:0:1:3", "log:-1:1:3", "log:2:1:3", "log:1:1:3", "log:1:2:1",
                    "lin:1:2:3", "log:log:1:2:3", "log:1e-39:1:3", "log:1:1e39:3", "LOG:1:2:3"),
        "--spectrum": ("", "1", "1,x", "1j,1j"), "--threshold": ("", "x", "1:2:3", "3:2", "nan", "3:", "1e300"),
        "--text-column": ("", "body"), "--label-column": ("", "stars"), "--split-column": ("", "part"),
        "--positive": ("", "happy"), "--test": READ, "--unlabelled": READ,
        "--statistics": ("", "nonsense", "close-pairs,,gram-rank", "close_pairs"),
        "--albert": READ, "--texts": READ, "--ids": READ, "--imdb": READ, "--starts": READ, "--model": READ,
    }.get(option, READ if action.dest in ("model", "folder") else ())  # fmt: skip


def calls():
    for words, parser in COMMANDS.items():
        for action in parser._actions:
            if action.dest in ("help", "text"):
                continue
            if action.nargs == 0:
                yield [*words, *NEEDS[words].split(), f"{action.option_strings[-1]}=1"]
            for value in values(action, words):
                if action.option_strings:
                    needs = NEEDS[words].replace("figure3", READERS.get(action.option_strings[-1], "figure3")).split()
                    # A table and the film reviews exclude each other.
                    needs = needs[1:] if (words[-1], action.dest) == ("sentiment", "imdb") else needs
                    yield [*words, *needs, f"{action.option_strings[-1]}={value}"]
                else:
                    yield [*words, value, *NEEDS[words].split()[1:]]
        yield [*words, *NEEDS[words].split(), "--nonsense"]
        yield [*words, *NEEDS[words].split(), "more", "words", "than", "asked"]
    for name in ("", "figure12", "figure3 ", "FIGURE3", "../figure3"):
        yield ["reproduce", name, "--out", "{0}/out"]
    yield from ([], [""], ["dance"], ["train"], ["train", "nonsense"], ["sweep"], ["sweep", "nonsense"], ["predict"])
    yield from (["train", "sentiment"], ["train", "albert", "--out", "{0}/out"], ["sweep", "phase-diagram"])
    yield from (["train", "language-model", "--texts", "--out", "{0}/out"], ["predict", "{0}/folder"])
    once = ["train", "sentiment", "{0}/reviews.csv", "--out", "{0}/out"]
    yield from ([*once, "--resume"], [*once, "--resume", "--fresh"], [*once, "--split", "official"])
    sweep = ["sweep", "phase-diagram", "--store", "{0}/out"]
    yield from ([*sweep, "--starts", "{0}/starts.npy", *more] for more in (["--n", "3"], ["--d", "2"], []))
    yield from (
        [*sweep, "--spectrum", "1,1", "--value", "square"],
        [*sweep, "--variant", "unnormalised", "--betas", "0:30:2"],
    )
    for sizes in (["--n", "2147483647"], ["--d", "2147483647"], ["--samples", "2147483647"], ["--times", "2147483647"]):
        yield [*sweep, *sizes]


CALLS = list(calls())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "folder").mkdir()
    (folder / "folder" / "notes").write_text("mine")
    for name in ("file", "empty.csv"):
        (folder / name).touch()
    (folder / "nonsense.csv").write_text('a,b\n1,"2\n')
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "starts.npy").write_bytes(b"\x93NUMPY")
    (folder / "texts.txt").write_text("a b\n" * 20)
    rows = "".join(f"good film {k},1\nbad film {k},0\n" for k in range(20))
    (folder / "reviews.csv").write_text(f"text,label\n{rows}")
    return folder


def content(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


class Late(BaseException):
    pass


def shown(call):
    return " ".join(word if len(word) < 40 else word[:20] + "..." for word in call)


@pytest.mark.exhaustive_cases(
    "probe", "reproduce", "train albert", "train language-model", "train sentiment", "sweep phase-diagram"
)
@pytest.mark.parametrize("words", [*COMMANDS, ()], ids=" ".join)
def test_bad_commands_end_with_one_sentence(place, capsys, monkeypatch, words):
    """There is one test for each command, so that a failure names all faulty calls of the command at once."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "stdin", None)
    before, wrong = content(place), []
    chosen = [call for call in CALLS if next((w for w in COMMANDS if tuple(call[: len(w)]) == w), ()) == words]

    def late(*_):
        raise Late

    old = signal.signal(signal.SIGPROF, late)
    try:
        for call in chosen:
            signal.setitimer(signal.ITIMER_PROF, 10)
            try:
                status = main([word.replace("{0}", str(place)) for word in call])
            except SystemExit as stop:
                status = stop.code
            except BaseException as error:
                status = repr(error)[:200]
            signal.setitimer(signal.ITIMER_PROF, 0)
            output = capsys.readouterr()
            whole = output.err.count("\n") == 1 and output.err.endswith((".\n", ").\n")) and len(output.err) < 6000
            if status != 2 or not whole or not output.err.startswith("clusterjax"):
                wrong.append(f"{shown(call)}\n        -> {status}, {output.err[-300:]!r}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
    assert not wrong, f"{len(wrong)} of {len(chosen)} calls:\n" + "\n".join(wrong)
    assert content(place) == before
