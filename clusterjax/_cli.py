"""The command `clusterjax`: its options, its subcommands, and one line for each error.

Each subcommand is a function, whose docstring is the help, with an example; another function declares the options of
the subcommand. The functions import other modules themselves, so that help, completion and the list of the figures load
neither jax nor numpy. The `dest` of an option is the name of the Python argument that it sets. An error that begins
with this argument is therefore reported with the name of the option, and `train` passes the values of options to the
fields of a recipe.
"""

import argparse
import contextlib
import difflib
import importlib
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Never, final

from ._base.log import log_line, printable
from .experiments.framework.listing import QUICK_STARTS, STARTS, entries, table


_MOST_INTEGER = 2**31 - 1
# The largest and the smallest normal number of float32; importing numpy for them would slow down the help.
_LARGEST, _SMALLEST = float((2 - 2**-23) * 2**127), 2.0**-126
_HUB = "the Hugging Face hub"
_READ = f".txt, .csv, .jsonl or .parquet (.gz too), a .json.gz of C4, or allenai/c4 or wikitext on {_HUB}"
_IDS = (
    "token ids instead of texts, for a network without a tokenizer: .txt, .csv or .jsonl with one text per line, .json "
    "or .npy"
)
_PROBE_FIGURES = [entry.probe for entry in entries().values() if entry.probe]
_LAWS = ("identity", "square", "product", "wigner", "gaussian", "orthogonal")
_STATISTICS = {"close-pairs": "ClosePairs", "gram-rank": "GramRank", "cluster-rank": "ClusterRank"}
_DRAWN = {"system": "PerSystem", "beta": "PerBeta", "once": "Once"}
# The largest number of betas, times, tokens, coordinates or samples, and of numbers in the state of one beta.
_MOST, _MOST_NUMBERS = 1_000_000, 1_000_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """The command `clusterjax`: see `clusterjax --help`.

    **Arguments:**

    - `argv`: The words after the name of the command; None takes the arguments of the process.

    **Returns:**

    The exit status: 0 for success, 1 if an identity was violated, 2 if the call was invalid or exceeded the machine,
    130 if interrupted, 141 if the reader of standard output has closed it.
    """
    arguments = _parser().parse_args(argv)
    name = f"clusterjax {arguments.command}"
    # An error that a user can cause is one line with status 2; a bug shows its traceback.
    try:
        _check(arguments)
        return arguments.run(arguments)
    except BrokenPipeError:  # an OSError that the call did not cause; a shell reports 128 + SIGPIPE
        return 141
    except MemoryError as error:
        problem = _one_line(error) or "there is not enough"
        _complain(f"{name}: the sizes must fit into memory, but {problem}; choose smaller ones.")
    except RecursionError as error:
        _complain(f"{name}: the input must not be nested too deep, but it is ({_one_line(error)}); correct it.")
    except ValueError as error:
        _complain(f"{name}: {_in_options(_one_line(error), arguments.parser)}")
    except (ImportError, OSError, ArithmeticError) as error:
        _complain(f"{name}: {_one_line(error)}")
    # jax raises an AssertionError if JAX_PLATFORMS names a device that the machine does not have.
    except (RuntimeError, AssertionError) as error:
        if type(error).__name__ == "JaxRuntimeError":
            _complain(f"{name}: the computation must fit the machine, but {_one_line(error)}; choose smaller sizes.")
        elif (missing := _missing_devices()) is None:
            raise
        else:
            _complain(f"{name}: {missing}")
    except KeyboardInterrupt:
        _complain(f"{name}: interrupted; finished results are kept.")
        return 130
    return 2


def _check(arguments: argparse.Namespace) -> None:
    """Refuse a seed or a folder that no command can use, before anything is read."""
    options = vars(arguments)
    if not 0 <= options.get("seed", 0) < 2**32:
        raise ValueError(f"seed must lie between 0 and 2**32 - 1, but it is {options['seed']}; choose another.")
    out = Path(options.get("out", "."))
    # Folders would be created in the nearest existing folder above.
    existing = next(place for place in (out, *out.parents, Path(".")) if os.path.lexists(place))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        problem = "is not writable" if existing.is_dir() else "is not a folder"
        raise ValueError(f"out must be a writable folder, but {str(existing)!r} {problem}; choose another folder.")


def _in_options(message: str, parser: argparse.ArgumentParser) -> str:
    """The error message with the names of options, and of values such as FILE, in place of the Python arguments."""
    # If two options set one argument, the first one is named.
    named = lambda action: action.option_strings[-1] if action.option_strings else action.metavar or action.dest
    options = {action.dest: str(named(action)) for action in reversed(parser._actions)}
    option = lambda match: match[1] + options.get(match[3], match[2] + match[3])
    # "recipe.heads must divide dim, but ...", "seed must ..."
    message = re.sub(r"^()(recipe\.|)(\w+)(?= must )", option, message)
    message = re.sub(r"^(\S+ must divide )()(\w+)", option, message)
    # "... of this run with recipe.steps = 20, but ...", "... of other settings: seed was 0, now 1; ...".
    if " of this run with " in message or " of other settings: " in message:
        message = re.sub(r"(?<=[ ,])()(recipe\.|)(\w+)(?= = | was )", option, message)
    return message


def _missing_devices() -> str | None:
    """An error message about JAX_PLATFORMS if jax has no device; None if it has one."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        reason = _one_line(error) or "jax cannot start it"
        return (
            f"JAX_PLATFORMS must name devices that this machine has, but it is {platforms!r} ({reason}); unset it, or "
            "set JAX_PLATFORMS=cpu."
        )
    return None


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # an error of a file that no check has caught
        name = str(error.filename)
        return f"{name if len(name) < 200 else name[:197] + '...'!r} cannot be used ({error.strerror}); check the path."
    return " ".join(str(error).split())


def _complain(line: str) -> None:
    """Print one line to standard error, unless it is closed; characters that it cannot show are escaped."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(line, sys.stderr), file=sys.stderr, flush=True)


def _answer(line: str) -> None:
    """Print a line to standard output. Unlike `log_line`, the function raises an error if the reader has closed it."""
    print(printable(line, sys.stdout), flush=True)


@contextlib.contextmanager
def _double_precision(wanted: bool = True) -> Iterator[None]:
    """Enable float64 within the block, if `wanted`, and restore the setting of jax after the block."""
    import jax

    before = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", before or wanted)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _integer(text: str) -> int:
    """An integer of 32 bits; the function that uses the integer checks its range."""
    with contextlib.suppress(ValueError):
        if abs(value := int(text)) <= _MOST_INTEGER:
            return value
    raise argparse.ArgumentTypeError(f"it must be an integer of at most {_MOST_INTEGER}, but it is {_short(text)}")


def _number(text: str) -> float:
    """A number of float32; the function that uses the number checks its range."""
    with contextlib.suppress(ValueError):
        # Subnormal numbers are refused, because XLA flushes them to zero.
        if (value := float(text)) == 0 or _SMALLEST <= abs(value) <= _LARGEST:
            return value
    raise argparse.ArgumentTypeError(
        f"it must be a number between {_SMALLEST:.2g} and {_LARGEST:.2g}, but it is {_short(text)}"
    )


def _setting(text: str) -> tuple[str, int | float]:
    """A name and a number, from NAME=VALUE; `Settings.read` checks that there is such a parameter."""
    name, _, value = (part.strip() for part in text.partition("="))
    with contextlib.suppress(ValueError):
        # An integer is not converted to a float, because parameters that are counts must be integers.
        number = int(value) if value.lstrip("+-").isdecimal() else float(value)
        if name and abs(number) <= _LARGEST:
            return name, number
    raise argparse.ArgumentTypeError(f"it must be a name and a number, such as beta=5, but it is {_short(text)}")


def _threshold(text: str) -> float | tuple[float, ...]:
    """A number, or two numbers from X:Y; `load_reviews` checks their order."""
    numbers = tuple(_number(part) for part in text.split(":"))
    if len(numbers) > 2:
        raise argparse.ArgumentTypeError(f"it must be X or X:Y, such as 3 or 2:3, but it is {_short(text)}")
    return numbers[0] if len(numbers) == 1 else numbers


def _name(text: str) -> str:
    """A path, or an id on the Hugging Face hub."""
    # Linux allows 255 bytes in a component of a path, and 4095 in a path.
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if not text.strip() or "\0" in text or longest > 255 or len(text) > 4095:
        raise argparse.ArgumentTypeError(f"it must be a valid path, but it is {_short(text)}")
    return text


def _path(text: str) -> Path:
    return Path(_name(text))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# The functions that read the values of options, by the placeholder of the value in the help; other values are texts.
_KINDS: dict[str, Callable[[str], Any]] = {
    "N": _integer, "X": _number, "X[:Y]": _threshold, "NAME=VALUE": _setting, "DIR": _name, "PATH": _name,
    "FILE": _path, "SEED": int,
}  # fmt: skip


@final
class _Help(argparse.HelpFormatter):
    """Help whose lines do not break at hyphens, so that names such as albert-bridge can be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


@final
class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all other errors of the command."""

    def __init__(self, **options: Any):
        # Abbreviations are not allowed, because a new option could change the meaning of an old call.
        argparse.ArgumentParser.__init__(self, **options, formatter_class=_Help, allow_abbrev=False)
        self.set_defaults(parser=self)

    def option(self, usage: str, words: str, default: Any = None, **more: Any) -> None:
        """Add an option with a value, such as `"--jobs N"`; its help ends with its default."""
        name, metavar = usage.split() if " " in usage else (usage, None)
        words += "" if default is None else f" (default: {default})"
        kind = _KINDS.get(metavar or "", str)
        self.add_argument(name, type=kind, metavar=metavar, default=default, help=words, **more)

    def flag(self, name: str, words: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=words)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, but let a subcommand refuse its unknown arguments itself, and not the whole command."""
        arguments, unknown = argparse.ArgumentParser.parse_known_args(self, args, namespace)
        # argparse ends a list of names at the first option; names after an option are added here.
        names = next((action.dest for action in self._actions if action.nargs == "*"), None)
        if unknown and names is not None and not any(word.startswith("-") for word in unknown):
            setattr(arguments, names, [*getattr(arguments, names), *unknown])
        elif unknown:
            self.error(f"unrecognized {self._unrecognised(unknown)}")
        return arguments, []

    def _unrecognised(self, words: Sequence[str]) -> str:
        """The unknown words, with a suggestion for the first unknown option."""
        shown = " ".join(word if len(word) <= 60 else f"{word[:57]}..." for word in words[:4])
        shown += " ..." if len(words) > 4 else ""
        first = next((word for word in words if word.startswith("--")), None)
        if first is None:
            return shown
        option, _, value = first.partition("=")
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        # An option that begins with the unknown word is preferred to a similar one.
        longer = [name for name in known if name.startswith(option) and len(option) > 3]
        similar = difflib.get_close_matches(option[2:], [name[2:] for name in known], n=1, cutoff=0.7)
        if likely := [*longer, *(f"--{word}" for word in similar)]:
            return f"{shown}; did you mean {likely[0]}?"
        if "--set" in known:
            following = words[words.index(first) + 1 :]
            value = value or (following[0] if following and not following[0].startswith("-") else "VALUE")
            return f"{shown}; a parameter of a figure is set by --set {option[2:] or 'NAME'}={value}"
        return shown

    def error(self, message: str) -> Never:
        see = " See" if message.endswith("?") else "; see"
        _complain(f"{self.prog}: {message}{see} {self.prog} --help.")
        self.exit(2)


@final
class _Print(argparse.Action):
    """An option that prints the result of its `const`, a function of the parser and the value, and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        log_line(self.const(parser, values))
        parser.exit()


def _parser() -> _Parser:
    parser = _Parser(
        prog="clusterjax",
        description="How tokens cluster as they pass through attention.",
        epilog="example: clusterjax reproduce figure3 --quick --out gallery",
    )
    options: dict[str, Any] = {"action": _Print, "default": argparse.SUPPRESS}
    parser.add_argument("--version", const=_version, nargs=0, help="print the version and exit", **options)
    words = "print the script that lets bash or zsh complete this command by Tab, and exit"
    parser.add_argument(
        "--print-completion", const=_completion, choices=("bash", "zsh"), metavar="SHELL", help=words, **options
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _reproduce_options(_command(commands, "reproduce", _reproduce))
    models = _group(commands, "train", "train a model", "clusterjax train sentiment reviews.csv --out model")
    _sentiment_options(_command(models, "sentiment", _train_sentiment))
    _texts_options(_command(models, "albert", _train_albert), ALBERT)
    _language_model_options(_command(models, "language-model", _train_language_model))
    _predict_options(_command(commands, "predict", _predict))
    _complete_options(_command(commands, "complete", _complete))
    _probe_options(_command(commands, "probe", _probe))
    example = "clusterjax sweep phase-diagram --d 2 --store run.zarr --out diagram.png"
    kinds = _group(commands, "sweep", "run a grid of simulations, and store each as it finishes", example)
    _diagram_options(_command(kinds, "phase-diagram", _phase_diagram))
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int]) -> _Parser:
    """A subcommand, run by `run`, whose docstring has a summary, a description and an example for the help."""
    summary, description, example = (run.__doc__ or "\n\n\n\n").split("\n\n")
    summary = summary[:1].lower() + summary[1:].rstrip(".")
    command = commands.add_parser(name, help=summary, description=description, epilog=example)
    command.set_defaults(run=run)
    return command


def _group(commands: Any, name: str, summary: str, example: str) -> Any:
    """A subcommand with further subcommands, which the caller adds to the result."""
    command = commands.add_parser(
        name, help=summary, description=f"{summary.capitalize()}.", epilog=f"example: {example}"
    )
    return command.add_subparsers(dest="kind", required=True, metavar="KIND")


def _version(parser: argparse.ArgumentParser, _: Any) -> str:
    # Reading the version takes time, and is therefore done for this option only.
    from ._base.version import __version__

    return f"clusterjax {__version__}"


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script with which a shell completes the command; `shtab` makes it from the parser."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError:
        parser.error("--print-completion needs shtab; install it with: pip install 'clusterjax[completion]'")
    for action in (action for command in commands_of(parser) for action in command._actions):
        if isinstance(action, argparse._SubParsersAction):
            # The shell lists a command with its one line of help, in place of its paragraphs.
            for command in action._choices_actions:
                action.choices[command.dest].description = command.help
        elif action.dest == "names":
            # The choices are set here only: a parser with choices would refuse a wrong name without a suggestion.
            action.choices = tuple(entries())
        elif action.metavar in ("FILE", "PATH", "MODEL"):
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
    script = shtab.complete(parser, shell=shell)
    # zsh reads "(*)" as one argument and "*" as any number of arguments, such as NAME...
    return script.replace('\n  "(*)::', '\n  "*:') if shell == "zsh" else script


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and the parsers of all of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands_of(command)


def _reproduce_options(command: _Parser) -> None:
    words = f"figures to draw (default: those of the three main documents), any of {', '.join(entries())}"
    command.add_argument("names", nargs="*", metavar="NAME", help=words)
    command.option("--out DIR", "folder for the results", "gallery")
    command.flag("--quick", f"use {QUICK_STARTS} random starts and shorter runs")
    command.flag("--all", "draw every figure, which takes hours")
    command.option("--starts N", f"number of random starts behind each number (default: {STARTS})")
    words = f"network to measure instead of the ALBERT of the package: a folder, or an id on {_HUB}"
    command.option("--albert PATH", words)
    command.option("--texts FILE", f"texts that the network reads: {_READ}")
    command.option("--ids FILE", _IDS)
    command.option("--imdb FILE", "film reviews for the sentiment figures: a table, or the folder aclImdb")
    words = "set a parameter of the named figures, such as beta=5 (--list shows them); may be given several times"
    command.option("--set NAME=VALUE", words, dest="parameters", action="append")
    command.option("--jobs N", "number of figures to draw at the same time, each in its own process", 1)
    command.flag("--list", "list the figures with their claims, parameters and durations, and draw none")
    _drawing_options(command)


def _probe_options(command: _Parser) -> None:
    words = (
        f"network to measure: a folder, a GGUF file, an id on {_HUB}, smollm2, or language-model (default: the ALBERT "
    )
    command.add_argument("model", nargs="?", type=_name, metavar="MODEL", help=words + "of the package)")
    command.option("--texts FILE", f"texts that the network reads: {_READ}")
    command.option("--ids FILE", _IDS)
    command.option("--out DIR", "folder for the results", "probe")
    command.flag("--quick", "read fewer and shorter texts")
    words = "number of texts to read, evenly spaced over all texts (default: 48, or 16 with --quick)"
    command.option("--most-texts N", words)
    words = (
        "number of tokens to read of each text (default: 128, or 64 with --quick, or fewer if the network reads fewer)"
    )
    command.option("--length N", words)
    words = (
        "number of layers of the similarity figure, which repeats the layers of the network (default: 8 times as many)"
    )
    command.option("--num-layers N", words, dest="depth")
    words = "split the matrices of an ALBERT into N heads, which changes the network (default: as trained)"
    command.option("--num-heads N", words, dest="heads")
    _drawing_options(command)


def _drawing_options(command: _Parser) -> None:
    _seed_option(command)
    command.option("--formats LIST", "file formats of the pictures; PNG is always written", "png,svg,pdf")
    command.flag("--no-gif", "draw no animations")
    command.flag("--force", "draw figures again that are already done")


def _seed_option(command: _Parser) -> None:
    command.option("--seed SEED", "seed of all random numbers", 0)


def _reproduce(arguments: argparse.Namespace) -> int:
    """Draw the figures of the papers, with the numbers of their claims.

    Simulate, measure and draw figures, with the numbers of their claims: the named figures, or without a name those of
    the three main documents, or with --all every figure. A second run skips figures that are already done.

    example: clusterjax reproduce figure3 figure5 --quick --set beta=5 --out gallery
    """
    if arguments.list:
        chosen = None  # lists all figures without loading jax or matplotlib
        if arguments.names:
            from .experiments import find_experiments

            chosen = find_experiments(arguments.names)
        for line in table(chosen):
            log_line(line)
        return 0
    from .experiments import Settings

    names = arguments.names
    if names and arguments.all:
        raise ValueError(f"--all must be given without names, but {names[0]} is named; leave one of them out.")
    starts = arguments.starts if arguments.starts is not None else QUICK_STARTS if arguments.quick else STARTS
    if starts < 2:
        raise ValueError(f"starts must be at least 2, but it is {starts}; a standard error needs several starts.")
    listed = [entry.name for entry in entries().values() if not entry.lacks and (arguments.all or entry.documents)]
    settings = Settings(
        arguments.seed, starts, arguments.quick, arguments.albert, arguments.imdb, texts=arguments.texts,
        parameters=_parameters(arguments.parameters or []), ids=arguments.ids,
    )  # fmt: skip
    return _draw(arguments, names or listed, settings, arguments.jobs)


def _parameters(pairs: list[tuple[str, int | float]]) -> dict[str, int | float]:
    """The parameters of `--set` by name."""
    names = [name for name, _ in pairs]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"--set must give each parameter once, but {repeated} is given {names.count(repeated)} times; keep one."
        )
    if option := next((name for name in names if name in ("seed", "starts")), None):
        value = dict(pairs)[option]
        raise ValueError(
            f"--set must give parameters of figures, but {option} is an option of its own; pass --{option} {value:g}."
        )
    return dict(pairs)


def _probe(arguments: argparse.Namespace) -> int:
    """Measure how tokens cluster in a trained network.

    Measure a trained network beside networks with random weights and beside shuffled texts. Draw the similarity of its
    tokens, the correlations and sinks of its heads, the spectra of its matrices, and, for heads that have one, the
    corresponding particle model: the folders similarity, heads, spectra and particles. A second run skips figures that
    are already done. Networks are ALBERT, BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2, GPT-NeoX (Pythia),
    OPT, BLOOM, Llama, Mistral, Qwen2, Qwen3, Phi-3, OLMo-2, SmolLM3, Gemma 2 and 3, T5 and mT5.

    example: clusterjax probe albert/albert-base-v2 --texts wikitext.txt --out albert-base
    """
    from .experiments import Settings

    fields = ("seed", "quick", "texts", "ids", "most_texts", "length", "depth", "heads")
    settings = Settings(albert=arguments.model, **{field: getattr(arguments, field) for field in fields})
    return _draw(arguments, _PROBE_FIGURES, settings, leave_out=True)


def _draw(
    arguments: argparse.Namespace, names: list[str], settings: Any, jobs: int = 1, leave_out: bool = False
) -> int:
    """Run and draw experiments, and return the exit status."""
    from .experiments import Files, reproduce

    formats = tuple(name.strip() for name in arguments.formats.split(","))
    if set(formats) - {"png", "svg", "pdf"}:
        raise ValueError(f"formats must be a list of png, svg and pdf, but it is {arguments.formats!r}; pass png,svg.")
    # The gallery shows the PNG.
    files = Files(tuple(dict.fromkeys(("png", *formats))), not arguments.no_gif)
    with _double_precision():
        options = {"force": arguments.force, "jobs": jobs, "leave_out": leave_out, "say": log_line}
        records = reproduce(names, arguments.out, settings, files, **options)
    log_line(f"{len(records)} figure{'s' * (len(records) != 1)} in {Path(arguments.out) / 'index.html'}")
    return int(any(claim["verdict"] == "VIOLATED" for record in records for claim in record["claims"]))


# The options for the numbers of a recipe, in the order of the help. Each kind of model has some of them.
_NUMBERS = {
    "vocab-size N": "number of word pieces in the vocabulary",
    "embedding-size N": "dimension of the embedding, which a matrix maps to the token dimension",
    "dim N": "token dimension, per head if heads are separate",
    "num-heads N": "number of attention heads",
    "intermediate-size N": "width of the feed-forward layers",
    "num-layers N": "number of layers",
    "length N": "number of words or word pieces to read of each text",
    "ngrams N": "length of the longest n-gram: 2 also counts each pair of neighbouring words as a word",
    "batch-size N": "number of texts per training step",
    "steps N": "number of training steps",
    "epochs N": "number of passes over the training texts",
    "learning-rate X": "peak learning rate",
    "embedding-rate X": "peak learning rate of embeddings and vectors, which AdamW trains",
    "alpha X": "initial step size of the layers",
    "noise X": "standard deviation of the initial embeddings about the line of naive Bayes",
    "drop X": "probability of leaving out a word in a training step",
}
# The options of each kind of model, with the field of its recipe and the default of the field.
SENTIMENT = {
    "dim": ("dim", 2), "num-heads": ("heads", 1), "num-layers": ("depth", 8), "length": ("length", 256),
    "ngrams": ("ngrams", 1), "batch-size": ("batch_size", 64), "epochs": ("epochs", 6),
    "learning-rate": ("learning_rate", 0.003), "alpha": ("alpha", 1.0), "noise": ("noise", 0.1),
    "drop": ("drop", 0.5),
}  # fmt: skip
ALBERT = {
    "vocab-size": ("vocab_size", 4096), "embedding-size": ("embedding_size", 96), "dim": ("hidden_size", 128),
    "num-heads": ("num_heads", 8), "intermediate-size": ("intermediate_size", 512), "num-layers": ("num_layers", 12),
    "length": ("length", 64), "batch-size": ("batch_size", 16), "steps": ("steps", 16000),
    "learning-rate": ("learning_rate", 0.002),
}  # fmt: skip
LANGUAGE_MODEL = {
    "vocab-size": ("words", 2048), "dim": ("d", 128), "num-heads": ("heads", 4), "intermediate-size": ("hidden", 512),
    "num-layers": ("layers", 4), "length": ("length", 64), "batch-size": ("batch_size", 16), "steps": ("steps", 4000),
    "learning-rate": ("learning_rate", 0.01), "embedding-rate": ("embedding_rate", 0.005),
}  # fmt: skip


# The options for a table of labelled texts, which are arguments of `load_reviews`.
_TABLE = ("text_column", "label_column", "threshold", "positive", "split_column", "test")


def _sentiment_options(command: _Parser) -> None:
    words = "table of labelled texts: .csv, .jsonl or .parquet, .gz too (without FILE and --imdb: made-up reviews)"
    command.add_argument("source", nargs="?", type=_path, metavar="FILE", help=words)
    command.option("--text-column NAME", "column of the texts (default: text or review)")
    command.option("--label-column NAME", "column of the labels, numbers or two names (default: label or sentiment)")
    words = "numbers above X are positive, others negative; with X:Y numbers above Y are positive, numbers up to X "
    command.option("--threshold X[:Y]", f"{words}negative, and rows between them are left out")
    command.option(
        "--positive NAME", "the positive one of two labels, if they are not neg and pos, 0 and 1 or the like"
    )
    command.option("--split-column NAME", "column with train or test in each row (default: split, if there is one)")
    command.option("--test FILE", "second table with the same columns, whose rows are the test part")
    words = "the film reviews of IMDb instead of FILE: a table, the folder aclImdb, or stanfordnlp/imdb"
    command.option("--imdb PATH", words)
    words = "table of further texts without labels, for the training; a bag of words labels them"
    command.option("--unlabelled FILE", words)
    _recipe_options(command, SENTIMENT)
    words = "embedding of a negated word such as not_good: of its own (words), or composed of that of good (reflection)"
    command.option("--negation", f"{words} (default: words)", choices=("words", "reflection"))
    words = (
        "test part: that of the data (official), a random 30 %% (random), or a random 20 %% of each label (stratified) "
    )
    words += "(default: official if the data have a test part, else stratified)"
    command.option("--split", words, choices=("official", "random", "stratified"))
    command.option("--patience N", "stop after N epochs without a better validation accuracy")
    resume = command.add_mutually_exclusive_group()
    words = "continue an interrupted run; it is an error if there is none"
    resume.add_argument("--resume", action="store_const", const=True, help=words)
    words = "start from the beginning, and replace the model in the folder"
    resume.add_argument("--fresh", dest="resume", action="store_const", const=False, help=words)


def _texts_options(command: _Parser, model: dict[str, tuple[str, Any]]) -> None:
    words = f"training texts: {_READ}, of which the first 10000 texts are read"
    command.option("--texts PATH", words, required=True, nargs="+")
    _recipe_options(command, model)
    command.option("--snapshots N", "number of snapshots of the weights to keep", 8)


def _language_model_options(command: _Parser) -> None:
    _texts_options(command, LANGUAGE_MODEL)
    words = "kind of network; an lstm has one layer of --intermediate-size units (default: transformer)"
    command.option("--architecture", words, choices=("transformer", "lstm"))
    command.option("--norm", "place of the layer norms (default: pre)", choices=("pre", "post", "none"))
    words = "positional encoding (default: learned)"
    command.option("--positions", words, choices=("learned", "sinusoidal", "relative", "rotary"))
    words = "begin each training sequence with the token [CLS]"
    command.add_argument("--begin", action="store_const", const=True, help=words)
    command.option("--stream", "precision of the residual stream (default: float32)", choices=("float32", "bfloat16"))


def _recipe_options(command: _Parser, model: dict[str, tuple[str, Any]]) -> None:
    """Declare the options that all kinds of models have, in one order."""
    command.option("--out DIR", "folder for the model", required=True)
    _seed_option(command)
    for usage, words in _NUMBERS.items():
        if (option := usage.split()[0]) in model:
            field, default = model[option]
            # The default is not that of the option, because the recipe sets the fields that a call leaves out.
            command.option(f"--{usage}", f"{words} (default: {default:g})", dest=field)


def _train_sentiment(arguments: argparse.Namespace) -> int:
    """Train a sentiment classifier on your own texts, or on film reviews.

    Train a sentiment classifier through hardmax attention. The command writes the model, its history, a report on the
    test part, which is read once, and a picture of the curves. An interrupted run continues when it is started again.

    example: clusterjax train sentiment reviews.csv --text-column body --label-column stars --threshold 3 --out model
    """
    table_options = {name: value for name in _TABLE if (value := getattr(arguments, name)) is not None}
    if arguments.source is None and table_options:
        option = f"--{next(iter(table_options)).replace('_', '-')}"
        raise ValueError(f"{option} must be given with FILE, but there is none; name the table before the options.")
    if arguments.source is not None and arguments.imdb is not None:
        raise ValueError(f"--imdb must be left out beside FILE, but it is {arguments.imdb!r}; keep one of them.")
    from .sentiment import Recipe, load_reviews, load_texts, train_sentiment

    # The default recipe depends on the dimension.
    recipe = Recipe.of_dim(**{"dim": SENTIMENT["dim"][1]} | _given(arguments, SENTIMENT, "negation"))
    options = {name: getattr(arguments, name) for name in ("seed", "split", "patience", "resume")}
    reviews = None if arguments.source is None else load_reviews(arguments.source, **table_options, say=log_line)
    if arguments.unlabelled is not None:
        try:
            options["unlabelled"] = load_texts(arguments.unlabelled, text_column=arguments.text_column)
        except ValueError as error:
            # `load_texts` calls the table `source`.
            if not str(error).startswith("source "):
                raise
            raise ValueError(f"--unlabelled {str(error).removeprefix('source ')}") from error
    train_sentiment(arguments.out, arguments.imdb, recipe, reviews=reviews, **options, say=log_line)
    return _leave_curves(arguments.out)


def _train_albert(arguments: argparse.Namespace) -> int:
    """Train an ALBERT on texts.

    Train an ALBERT, whose layers share their weights, by masked language modelling. The command writes weights,
    configuration and tokenizer in the form that transformers reads, the losses with a picture of them, and snapshots of
    the weights. An interrupted run continues when it is started again.

    example: clusterjax train albert --texts reviews.csv.gz wikitext.txt --out albert
    """
    from .probe import AlbertRecipe, train_albert

    return _train_on_texts(arguments, train_albert, AlbertRecipe(**_given(arguments, ALBERT)))


def _train_language_model(arguments: argparse.Namespace) -> int:
    """Train a small causal language model on texts.

    Train a causal language model. The command writes the model, its tokenizer, snapshots, and the losses, in comparison
    with guesses by frequency and by the previous word, with a picture of them. An interrupted run continues when it is
    started again.

    example: clusterjax train language-model --texts reviews.csv.gz wikitext.txt --out model
    """
    from .transformer import LanguageRecipe, train_language_model

    names = ("architecture", "norm", "positions", "begin", "stream")
    recipe = LanguageRecipe(**_given(arguments, LANGUAGE_MODEL, *names))
    return _train_on_texts(arguments, train_language_model, recipe)


def _given(arguments: argparse.Namespace, model: dict[str, tuple[str, Any]], *names: str) -> dict[str, Any]:
    """The fields of a recipe that the options of the call set."""
    fields = (*(field for field, _ in model.values()), *names)
    return {field: getattr(arguments, field) for field in fields if getattr(arguments, field) is not None}


def _train_on_texts(arguments: argparse.Namespace, train: Callable[..., Any], recipe: Any) -> int:
    options = {"seed": arguments.seed, "snapshots": arguments.snapshots, "say": log_line}
    train(arguments.out, arguments.texts, recipe, **options)
    return _leave_curves(arguments.out)


def _leave_curves(out: str) -> int:
    """Draw the curves of a training beside the model, if matplotlib is installed, and return the exit status."""
    if find_spec("matplotlib") is None:
        log_line("the curves are not drawn: that needs matplotlib; install it with: pip install 'clusterjax[plot]'")
    else:
        from .plot._curves import leave_curves

        leave_curves(out, log_line)
    return 0


def _predict_options(command: _Parser) -> None:
    words = "folder of a trained model, or heads, the more accurate model of the package (default: its simplest model)"
    command.add_argument("folder", nargs="?", metavar="DIR", help=words)
    command.add_argument("text", nargs="?", metavar="TEXT", help="the text to classify")
    command.flag("--stdin", "read one text per line of standard input, and print one line for each")
    command.flag("--json", "print JSON, one object per line")


def _predict(arguments: argparse.Namespace) -> int:
    """Classify the sentiment of a text.

    Print the sentiment of a text, its leaders with the words that follow them, and the paths of its words. Without DIR
    the classifier of the package is used, which was trained on English film reviews up to 2011; train your own with
    clusterjax train sentiment for other texts.

    example: clusterjax predict "A wonderful film, not boring at all."
    """
    from .sentiment import explain, load

    folder, text = arguments.folder, arguments.text
    # A single argument is TEXT; with --stdin it is DIR.
    if not arguments.stdin and text is None:
        folder, text = None, folder
    if arguments.stdin == (text is not None):
        raise ValueError("TEXT or --stdin must be given, but not both; pass --stdin for one text per line.")
    # A user who writes `clusterjax predict model` has forgotten the text.
    if folder is None and text is not None and os.path.isdir(text):
        raise ValueError(f"TEXT must be given, but {text!r} is a folder; add the text after it, or --stdin.")
    try:
        fitted = load(None if folder is None else _name(folder))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"DIR must be the folder of a model, but {error}; check the path.") from error
    if text is not None:
        explanation = explain(fitted, text)
        _answer(json.dumps(explanation.record(), ensure_ascii=False) if arguments.json else str(explanation))
        return 0
    # Batches share a compiled call, and answers are printed while input is still arriving.
    for texts in _lines_of_stdin(256):
        for prediction in fitted.predict(texts):
            _answer(json.dumps(prediction, ensure_ascii=False) if arguments.json else _summary(prediction))
    return 0


def _lines_of_stdin(size: int) -> Iterator[tuple[str, ...]]:
    """The lines of standard input, `size` at a time."""
    texts: list[str] = []
    # The bytes are decoded here, because the encoding of `sys.stdin` depends on the machine.
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            texts.append(line.decode("utf-8").rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"standard input must be in UTF-8, but byte {error.start} of line {number} is not; convert it."
            ) from error
        if len(texts) == size:
            yield tuple(texts)
            texts = []
    if texts:
        yield tuple(texts)


def _summary(prediction: dict[str, Any]) -> str:
    """The prediction for a text, in one line."""
    words = "leaders: " + ", ".join(prediction["leaders"]) if prediction["known_words"] else "no known words"
    return f"{prediction['sentiment']} {prediction['probability']:.3f} {words}"


def _complete_options(command: _Parser) -> None:
    words = (
        f"a folder, a GGUF file or an id on {_HUB}, of GPT-2 or of the Llama family; smollm2; language-model, the "
        "model of the package; or a folder that train language-model wrote"
    )
    command.add_argument("model", type=_name, metavar="MODEL", help=words)
    command.add_argument("text", metavar="TEXT", help="the text to complete")
    command.option("--num-words N", "number of next words to show", 5)
    command.option("--num-tokens N", "number of tokens in the continuation", 20)
    command.option("--temperature X", "sampling temperature; 0 always takes the most probable token", 0.0)
    command.option("--top-k N", "sample from the N most probable tokens only (default: from all)")
    _seed_option(command)
    command.flag("--json", "print one JSON object")


def _complete(arguments: argparse.Namespace) -> int:
    """Continue a text with a language model.

    Print the most probable next words after a text, and a continuation of the text, by a causal language model.

    example: clusterjax complete smollm2 "The Eiffel Tower is located in the city of" --num-tokens 10
    """
    from ._base.checks import check_integer, check_number, check_text

    # The checks precede the loading of the network, which may take seconds.
    check_text(arguments.text, "TEXT")
    for name in ("num_words", "num_tokens", "top_k"):
        if getattr(arguments, name) is not None:
            check_integer(getattr(arguments, name), name, remedy="ask for 1 or more")
    check_number(arguments.temperature, "temperature", least=0)
    import jax.random as jr

    from .probe import generate, load, next_words

    model = load(arguments.model)
    words = next_words(model, arguments.text, min(arguments.num_words, model.network.sizes.vocab_size))
    drawn = arguments.temperature > 0
    generated = generate(
        model, arguments.text, arguments.num_tokens, temperature=arguments.temperature, top_k=arguments.top_k,
        key=jr.key(arguments.seed) if drawn else None,
    )  # fmt: skip
    log_prob = float(generated.log_probs.sum())
    pairs = list(zip(words.words, map(float, words.probabilities), strict=True))
    if arguments.json:
        record = {
            "model": arguments.model, "text": arguments.text,
            "next": [{"word": word, "probability": probability} for word, probability in pairs],
            "continuation": generated.texts[0], "tokens": int(generated.lengths[0]), "log_prob": log_prob,
        }  # fmt: skip
        _answer(json.dumps(record, ensure_ascii=False))
        return 0
    for word, probability in pairs:
        _answer(f"{probability:.3f}  {word!r}")
    how = f"drawn at temperature {arguments.temperature:g}" if drawn else "greedy"
    _answer(f"{how}, {generated.lengths[0]} tokens, log probability {log_prob:.2f}:")
    _answer(arguments.text + generated.texts[0])
    return 0


def _diagram_options(command: _Parser) -> None:
    words = "N values of beta from A to B, evenly spaced; log:A:B:N for values that grow by a constant factor"
    command.option("--betas A:B:N", words, "0.1:9:90")
    command.option("--times N", "number of times at which tokens are measured, evenly spaced from 0", 200)
    command.option("--until X", "last time (default: 30, or 1 for unnormalised attention)")
    command.option("--n N", "number of tokens (default: 32)")
    command.option("--d N", "token dimension (default: 2)")
    command.option("--samples N", "number of random starts (default: 2048)")
    command.option("--starts FILE", "initial tokens, of shape (samples, n, d): .npy, .npz or .safetensors")
    command.option("--variant", "kind of attention", "softmax", choices=("softmax", "unnormalised"))
    command.flag("--causal", "let a token attend only to itself and to earlier tokens")
    command.option("--window N", "let a token attend only to tokens fewer than N positions away")
    words = (
        "distribution of the matrix Q^T K: identity, square (GG^T/sqrt d), product (G1 G2/sqrt d), wigner, gaussian "
        "or orthogonal"
    )
    command.option("--query-key LAW", words, "identity", choices=_LAWS)
    words = "distribution of the matrix V: one of those, or ascent or descent (Q^T K times 1 or -1, scaled)"
    command.option("--value LAW", words, "identity", choices=(*_LAWS, "ascent", "descent"))
    command.option("--spectrum LIST", "eigenvalues of V in a random basis, such as 1,0.5 or 1+2j,1-2j")
    words = "draw random matrices for each system, for each beta, or once"
    command.option("--drawn", words, "system", choices=tuple(_DRAWN))
    words = f"statistics to compute, of which the first is plotted: any of {', '.join(_STATISTICS)}"
    command.option("--statistics LIST", words, "close-pairs")
    command.option("--dt X", "time step of the published scheme", 0.1)
    command.flag("--adaptive", "use adaptive time steps instead of --dt, for accurate solutions")
    command.flag("--double", "compute in float64 instead of float32")
    _seed_option(command)
    command.option("--store DIR", "folder for the numbers, in zarr format")
    command.flag("--fresh", "ignore the numbers in the store, and compute all of them again")
    command.option("--out FILE", "picture: .png, .svg or .pdf (default: beside the store)", dest="picture")


def _phase_diagram(arguments: argparse.Namespace) -> int:
    """Draw how much tokens cluster, over time and beta.

    Compute the phase diagrams of 'A mathematical perspective on transformers' (2312.10794): for each beta and time the
    fraction of pairs of tokens with inner product above 0.999, over many random starts. An interrupted run with --store
    continues when it is started again; the same call with a finished store only draws.

    example: clusterjax sweep phase-diagram --betas 0.1:9:90 --times 200 --n 32 --d 2 --samples 2048 --store run.zarr
    --out diagram.png
    """
    (spaced, *grid), picture, options = _grid(arguments.betas), _picture(arguments), _diagram(arguments)
    import numpy as np

    from .phase import phase_diagram

    until = arguments.until if arguments.until is not None else 1.0 if options["unnormalised"] else 30.0
    with _double_precision(arguments.double):
        diagram = phase_diagram(
            getattr(np, spaced)(*grid), np.linspace(0, until, arguments.times), **options, store=arguments.store,
            resume=not arguments.fresh, dtype="float64" if arguments.double else "float32", seed=arguments.seed,
        )  # fmt: skip
    if arguments.store is not None:
        log_line(f"the numbers for {diagram.sizes['beta']} betas are in {arguments.store}")
    # The status of a beta whose statistics are not finite is not 0.
    if failed := int((diagram.status != 0).sum()):
        reasons = sorted({str(reason) for reason in diagram.reason.values.ravel() if reason})
        log_line(f"{failed} of {diagram.sizes['beta']} betas failed: {'; '.join(reasons)}")
    if picture is not None:
        from .plot import clustering_diagram, save

        first = arguments.statistics.split(",")[0].strip().replace("-", "_")
        window = "" if arguments.window is None else f" within {arguments.window}"
        kind = f"{'causal ' if arguments.causal else ''}{arguments.variant} attention{window}"
        title = f"{kind}, n = {diagram.attrs['n']}, d = {diagram.attrs['d']}"
        ax = clustering_diagram(diagram, statistic=first, title=title)
        for path in save(ax, picture.with_suffix(""), (picture.suffix[1:],)):
            log_line(f"the picture is {path}")
    return 0


def _grid(text: str) -> tuple[str, float, float, int]:
    """The function of numpy that makes a grid, and A, B and N, from A:B:N or log:A:B:N."""
    log = text.startswith("log:")
    with contextlib.suppress(ValueError):
        low, high, count = text.removeprefix("log:").split(":")
        low, high, count = float(low), float(high), int(count)
        least = _SMALLEST if log else 0
        if least <= low <= high <= _LARGEST and 1 <= count <= _MOST and (count == 1) == (low == high):
            return "geomspace" if log else "linspace", low, high, count
    rule = "log:A:B:N" if log else "A:B:N or log:A:B:N"
    raise ValueError(
        f"betas must be {rule}, for at most {_MOST} values from A to B with 0 {'<' if log else '<='} A <= B within "
        f"float32, but it is {text!r}; pass {'log:0.1:100:25' if log else '0.1:9:90'}, for example."
    )


def _picture(arguments: argparse.Namespace) -> Path | None:
    """The file of the picture, by default beside the store; None for no picture, if matplotlib is not installed."""
    store, picture = arguments.store, arguments.picture
    if store is None and picture is None:
        raise ValueError("--store or --out must be given, or the result would be lost; pass --store run.zarr.")
    if picture is None:
        return None if find_spec("matplotlib") is None else Path(store or "").with_suffix(".png")
    if picture.suffix not in (".png", ".svg", ".pdf") or not picture.parent.is_dir() or picture.is_dir():
        raise ValueError(
            f"--out must be a .png, .svg or .pdf in an existing folder, but it is {str(picture)!r}; choose another."
        )
    from . import plot  # noqa: F401  # raises an ImportError before anything is computed

    return picture


def _diagram(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `phase_diagram`."""
    from . import CausalMask, FullMask, WindowMask, phase
    from ._base.checks import check_integer, check_number
    from .phase._diagram import read_starts

    check_integer(arguments.times, "times", least=2, most=_MOST)
    if arguments.until is not None:
        check_number(arguments.until, "until", above=0)
    sizes = {name: getattr(arguments, name) for name in ("n", "d", "samples")}
    given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    if any(size > _MOST for size in given.values()) or math.prod(given.values()) > _MOST_NUMBERS:
        raise ValueError(
            f"--n, --d and --samples must be at most {_MOST}, and their product at most {_MOST_NUMBERS}, but they are "
            f"{given}; choose less, and sweep several seeds."
        )
    if arguments.starts is not None and given:
        option = f"--{next(iter(given))}"
        raise ValueError(f"{option} must be left out beside --starts, which determines it, but it is given; remove it.")
    names = [name.strip() for name in arguments.statistics.split(",")]
    if unknown := [name for name in names if name not in _STATISTICS]:
        raise ValueError(f"statistics must be among {', '.join(_STATISTICS)}, but one is {unknown[0]!r}; correct it.")
    if arguments.starts is not None:
        given = {"starts": read_starts(arguments.starts)}
    dimension = int(given["starts"].shape[2] if "starts" in given else given.get("d", 2))
    drawn = getattr(phase, _DRAWN[arguments.drawn])()
    if arguments.window is not None:
        mask = WindowMask(check_integer(arguments.window, "window"), causal=arguments.causal)
    else:
        mask = CausalMask() if arguments.causal else FullMask()
    return given | {
        "unnormalised": arguments.variant == "unnormalised",
        "mask": mask,
        "query_key": _law(arguments.query_key, drawn),
        "value": _value(arguments, drawn, dimension),
        "statistics": tuple(getattr(phase, _STATISTICS[name])() for name in names),
        "integrator": phase.Adaptive() if arguments.adaptive else phase.NormalisedEuler(arguments.dt),
    }


def _law(name: str, drawn: Any) -> Any:
    from . import phase

    return phase.Identity() if name == "identity" else getattr(phase, name.capitalize())(drawn)


def _value(arguments: argparse.Namespace, drawn: Any, d: int) -> Any:
    from .phase import LikeQueryKey, Spectrum

    name, spectrum = arguments.value, arguments.spectrum
    if spectrum is not None:
        if name != "identity":
            raise ValueError(f"--spectrum must be given without --value, but that is {name!r}; leave one of them out.")
        try:
            numbers = [complex(part.strip()) for part in spectrum.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != d:
            raise ValueError(
                f"spectrum must be {d} numbers, one for each coordinate, but it is {spectrum!r}; pass {d} numbers."
            )
        return Spectrum(numbers, drawn)
    if name not in ("ascent", "descent"):
        return _law(name, drawn)
    # The scales of the published code: see `LikeQueryKey`.
    scale = {"identity": 1.0, "wigner": (d + 1) ** -0.5}.get(arguments.query_key, max(d, 1) ** -0.5)
    return LikeQueryKey(scale if name == "ascent" else -scale)
