"""The command `clusterjax`: its options, what each of its commands does, and one sentence for whatever is wrong.

A command is a function: its docstring is the help, with an example, and a function before it declares its options. It
imports what it needs itself, so that help, completion and the list of the figures load neither jax nor numpy. An option
keeps its value under the name (`dest`) of the argument of Python that it sets: an error that begins with this argument
is thus reported with the name of the option, and `train` passes what a call sets to a recipe.
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
from .experiments.framework.listing import entries, table


_MOST_INTEGER = 2**31 - 1
# The largest and the smallest normal number of float32; numpy, which has them, is not imported for a parser.
_LARGEST, _SMALLEST = float((2 - 2**-23) * 2**127), 2.0**-126
_SHELLS = ("bash", "zsh")
_READ = ".txt, .csv, .jsonl, .parquet (.gz), C4's .json.gz, or allenai/c4 or wikitext of the hub"
_IDS = (
    "the same as token ids, for a folder without tokenizer: .txt, .csv or .jsonl with a text in each line, .json, .npy"
)
_OF_NETWORKS = ["figure1", "figure2", "albert-spectra", "albert-bridge"]
_LAWS = ("identity", "square", "product", "wigner", "gaussian", "orthogonal")
_STATISTICS = {"close-pairs": "ClosePairs", "gram-rank": "GramRank", "cluster-rank": "ClusterRank"}
_DRAWN = {"system": "PerSystem", "beta": "PerBeta", "once": "Once"}
# The most values of beta, times, tokens, coordinates or samples, and the most numbers in the state of one beta.
_MOST, _MOST_NUMBERS = 1_000_000, 1_000_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """The command `clusterjax`: see `clusterjax --help`.

    **Arguments:**

    - `argv`: The words after the command's name; None takes those that it was called with.

    **Returns:**

    The exit status: 0 if all went well, 1 if an identity was violated, 2 if the call was wrong or the machine too
    small for it, 130 if interrupted, 141 if nobody reads on what it answers.
    """
    arguments = _parser().parse_args(argv)
    name = f"clusterjax {arguments.command}"
    # Everything that a user can cause ends in one line and status 2; a bug shows its traceback.
    try:
        _check(arguments)
        return arguments.run(arguments)
    except BrokenPipeError:  # an OSError, but no error of the call: 128 + SIGPIPE, as a shell reports it
        return 141
    except MemoryError as error:
        _complain(
            f"{name}: the sizes must fit into memory, but {_one_line(error) or 'there is not enough'}; lower them."
        )
    except RecursionError as error:
        _complain(f"{name}: what is read must not be nested so deep ({_one_line(error)}); mend it.")
    except ValueError as error:
        _complain(f"{name}: {_in_options(_one_line(error), arguments.parser)}")
    except (ImportError, OSError, ArithmeticError) as error:
        _complain(f"{name}: {_one_line(error)}")
    # An AssertionError is what jax raises where JAX_PLATFORMS names a card that is not there.
    except (RuntimeError, AssertionError) as error:
        if type(error).__name__ == "JaxRuntimeError":
            _complain(f"{name}: the computation must fit the machine, but {_one_line(error)}; lower its sizes.")
        elif (missing := _missing_devices()) is None:
            raise
        else:
            _complain(f"{name}: {missing}")
    except KeyboardInterrupt:
        _complain(f"{name}: interrupted; what was finished is kept.")
        return 130
    return 2


def _check(arguments: argparse.Namespace) -> None:
    """Refuse a seed, a number of snapshots or a folder that no command can use, before anything is read."""
    given = vars(arguments)
    if not 0 <= given.get("seed", 0) < 2**32:
        raise ValueError(f"seed must lie between 0 and 2**32 - 1, but it is {given['seed']}; choose another.")
    if given.get("snapshots", 0) < 0:
        raise ValueError(f"snapshots must not be negative, but it is {given['snapshots']}; say 0 for none.")
    out = Path(given.get("out", "."))
    # Folders would be created in the nearest existing folder above.
    existing = next(place for place in (out, *out.parents, Path(".")) if os.path.lexists(place))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "may not be written" if existing.is_dir() else "is no folder"
        raise ValueError(
            f"out must be a folder that can be written, but {str(existing)!r} {what}; choose another, or remove that."
        )


def _in_options(message: str, parser: argparse.ArgumentParser) -> str:
    """A message about arguments of Python, which begins with one, with the options of the command in their place."""
    # Of two options for one argument, the first counts.
    options = {action.dest: action.option_strings[-1] for action in reversed(parser._actions) if action.option_strings}
    option = lambda match: match[1] + options.get(match[3], match[2] + match[3])
    # "recipe.heads must divide dim, but ...", "seed must ..."
    message = re.sub(r"^()(recipe\.|)(\w+)(?= must )", option, message)
    message = re.sub(r"^(\S+ must divide )()(\w+)", option, message)
    # "... of this run with recipe.steps = 20, but ...", "... of other settings: seed was 0, now 1; ...".
    if " of this run with " in message or " of other settings: " in message:
        message = re.sub(r"(?<=[ ,])()(recipe\.|)(\w+)(?= = | was )", option, message)
    return message


def _missing_devices() -> str | None:
    """What is wrong with JAX_PLATFORMS if jax has no device; None if it has one."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        why = _one_line(error) or "jax cannot start it"
        return (
            f"JAX_PLATFORMS must name devices that this machine has, but it is {platforms!r} ({why}); unset it, or set "
            "JAX_PLATFORMS=cpu."
        )
    return None


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # no check of an argument caught it
        name = str(error.filename)
        return f"{name if len(name) < 200 else name[:197] + '...'!r} cannot be used ({error.strerror}); name another."
    return " ".join(str(error).split())


def _complain(line: str) -> None:
    """Print one line to standard error, with characters that it cannot show escaped; nothing if it is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(line, sys.stderr), file=sys.stderr, flush=True)


def _answer(line: str) -> None:
    """Print a line of an answer; unlike in `log_line`, a closed pipe raises, since there is no reader any more."""
    print(printable(line, sys.stdout), flush=True)


@contextlib.contextmanager
def _double_precision(wanted: bool = True) -> Iterator[None]:
    """Switch on float64 within the block, if it is wanted, and restore the setting after it."""
    import jax

    before = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", before or wanted)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _integer(text: str) -> int:
    """An integer of 32 bits; its range is checked where it is used."""
    with contextlib.suppress(ValueError):
        if abs(value := int(text)) <= _MOST_INTEGER:
            return value
    raise argparse.ArgumentTypeError(f"it must be an integer of at most {_MOST_INTEGER}, but it is {_short(text)}")


def _number(text: str) -> float:
    """A number that single precision holds; its range is checked where it is used."""
    with contextlib.suppress(ValueError):
        # Subnormal numbers are refused too, since XLA flushes them to zero.
        if (value := float(text)) == 0 or _SMALLEST <= abs(value) <= _LARGEST:
            return value
    raise argparse.ArgumentTypeError(
        f"it must be a number between {_SMALLEST:.2g} and {_LARGEST:.2g}, but it is {_short(text)}"
    )


def _setting(text: str) -> tuple[str, int | float]:
    """A name and a number, NAME=VALUE; whether there is such a parameter is checked where it is used."""
    name, _, value = (part.strip() for part in text.partition("="))
    with contextlib.suppress(ValueError):
        # An integer stays one, since parameters that are counts are checked for it.
        number = int(value) if value.lstrip("+-").isdecimal() else float(value)
        if name and abs(number) <= _LARGEST:
            return name, number
    raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, VALUE a number such as 5, but it is {_short(text)}")


def _name(text: str) -> str:
    """A path, or a name of the hub."""
    # The limits of a path component and of a path on Linux.
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if not text.strip() or "\0" in text or longest > 255 or len(text) > 4095:
        raise argparse.ArgumentTypeError(f"it must be a name that a file can have, but it is {_short(text)}")
    return text


def _path(text: str) -> Path:
    return Path(_name(text))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# What stands for the value of an option in the help, with the function that reads it; any other is a text.
_KINDS: dict[str, Callable[[str], Any]] = {
    "N": _integer, "X": _number, "NAME=VALUE": _setting, "DIR": _name, "PATH": _name, "FILE": _path, "SEED": int,
}  # fmt: skip


@final
class _Help(argparse.HelpFormatter):
    """Help whose lines do not break inside a word, since names such as albert-bridge are to be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


@final
class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as every other error of the command is."""

    def __init__(self, **options: Any):
        # No abbreviations: a new option would change what an old call means.
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
        """As argparse does it, but what a command does not know is refused by that command, and not by the whole."""
        arguments, unknown = argparse.ArgumentParser.parse_known_args(self, args, namespace)
        # argparse takes a list of names up to the first option; those behind it are names as well.
        names = next((action.dest for action in self._actions if action.nargs == "*"), None)
        if unknown and names is not None and not any(word.startswith("-") for word in unknown):
            setattr(arguments, names, [*getattr(arguments, names), *unknown])
        elif unknown:
            self.error(f"unrecognized {self._unrecognised(unknown)}")
        return arguments, []

    def _unrecognised(self, words: Sequence[str]) -> str:
        """Words that the parser does not know, with what they may have been meant for."""
        shown = " ".join(word if len(word) <= 60 else f"{word[:57]}..." for word in words[:4])
        shown += " ..." if len(words) > 4 else ""
        first = next((word for word in words if word.startswith("--")), None)
        if first is None:
            return shown
        option, _, value = first.partition("=")
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        # An option that begins so comes before one that only resembles it; all have the dashes in common.
        begun = [name for name in known if name.startswith(option) and len(option) > 3]
        alike = difflib.get_close_matches(option[2:], [name[2:] for name in known], n=1, cutoff=0.7)
        if likely := [*begun, *(f"--{word}" for word in alike)]:
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
    """An option that prints what its `const`, a function of the parser and the value, returns, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        log_line(self.const(parser, values))
        parser.exit()


def _parser() -> _Parser:
    parser = _Parser(
        prog="clusterjax",
        description="How tokens cluster as they pass through attention.",
        epilog="example: clusterjax reproduce figure3 --quick --out gallery",
    )
    once: dict[str, Any] = {"action": _Print, "default": argparse.SUPPRESS}
    parser.add_argument("--version", const=_version, nargs=0, help="show the version and end", **once)
    words = "print a script by which bash or zsh completes this command, and end"
    parser.add_argument("--print-completion", const=_completion, choices=_SHELLS, metavar="SHELL", help=words, **once)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _reproduce_options(_command(commands, "reproduce", _reproduce))
    models = _group(commands, "train", "train a model", "clusterjax train sentiment --imdb imdb50k.csv.gz --out model")
    _sentiment_options(_command(models, "sentiment", _train_sentiment))
    _albert_options(_command(models, "albert", _train_albert))
    _language_model_options(_command(models, "language-model", _train_language_model))
    _predict_options(_command(commands, "predict", _predict))
    _complete_options(_command(commands, "complete", _complete))
    _probe_options(_command(commands, "probe", _probe))
    example = "clusterjax sweep phase-diagram --d 2 --store run.zarr --out diagram.png"
    kinds = _group(commands, "sweep", "many runs over a grid, kept on the disk while they grow", example)
    _diagram_options(_command(kinds, "phase-diagram", _phase_diagram))
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int]) -> _Parser:
    """A command whose help is the docstring of the function that runs it: a summary, a description and an example."""
    summary, description, example = (run.__doc__ or "\n\n\n\n").split("\n\n")
    summary = summary[:1].lower() + summary[1:].rstrip(".")
    command = commands.add_parser(name, help=summary, description=description, epilog=example)
    command.set_defaults(run=run)
    return command


def _group(commands: Any, name: str, summary: str, example: str) -> Any:
    """The commands that stand below a command."""
    command = commands.add_parser(
        name, help=summary, description=f"{summary.capitalize()}.", epilog=f"example: {example}"
    )
    return command.add_subparsers(dest="kind", required=True, metavar="KIND")


def _version(parser: argparse.ArgumentParser, _: Any) -> str:
    # Reading the version takes time, which other commands need not spend.
    from ._base.version import __version__

    return f"clusterjax {__version__}"


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script by which a shell completes the command, made by `shtab` of the parser itself."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError:
        parser.error("--print-completion needs shtab; install it with: pip install 'clusterjax[completion]'")
    for action in (action for command in commands_of(parser) for action in command._actions):
        if isinstance(action, argparse._SubParsersAction):
            # A line in the list of commands, in place of paragraphs.
            for command in action._choices_actions:
                action.choices[command.dest].description = command.help
        elif action.dest == "names":
            # The parser that reads a call has no such choices: its message on a wrong name would be another.
            action.choices = tuple(entries())
        elif action.metavar in ("FILE", "PATH", "MODEL"):
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
    script = shtab.complete(parser, shell=shell)
    # To zsh the first form is one argument; the second one is any number of them, which NAME... are.
    return script.replace('\n  "(*)::', '\n  "*:') if shell == "zsh" else script


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from commands_of(below)


def _reproduce_options(command: _Parser) -> None:
    words = f"any of {', '.join(entries())}; none means those of the three documents"
    command.add_argument("names", nargs="*", metavar="NAME", help=words)
    command.option("--out DIR", "where to write", "gallery")
    command.flag("--quick", "64 starts and shorter runs")
    command.flag("--all", "every figure, which takes hours")
    command.option("--starts N", "random starts for each number (default: 256)")
    command.option("--albert PATH", "another network: an ALBERT's folder, or its id on the hub")
    command.option("--texts FILE", f"what that network reads: {_READ}")
    command.option("--ids FILE", _IDS)
    command.option("--imdb FILE", "film reviews for the sentiment figures (CSV or folder)")
    words = "a parameter that each of the figures declares; may be given several times"
    command.option("--set NAME=VALUE", words, dest="parameters", action="append")
    command.option("--jobs N", "figures at a time, each in a process", 1)
    command.flag("--list", "show figures, claims, parameters and cost, and run none")
    _drawing_options(command)


def _probe_options(command: _Parser) -> None:
    words = "a folder, or an id on the hub; none means the ALBERT of the package"
    command.add_argument("model", nargs="?", type=_name, metavar="MODEL", help=words)
    command.option("--texts FILE", f"what it reads: {_READ}")
    command.option("--ids FILE", _IDS)
    command.option("--out DIR", "where to write", "probe")
    command.flag("--quick", "fewer and shorter texts")
    command.option("--most-texts N", "reads so many of the texts, evenly spread (default: 48, with --quick 16)")
    words = "cuts them to so many tokens (default: 128, with --quick 64, and never more than the positions)"
    command.option("--length N", words)
    words = "layers that figure 1 goes through (default: 8 times those of training)"
    command.option("--num-layers N", words, dest="depth")
    words = "cuts the matrices of an ALBERT into so many heads, which is another network (default: as trained)"
    command.option("--num-heads N", words, dest="heads")
    _drawing_options(command)


def _drawing_options(command: _Parser) -> None:
    _seed_option(command)
    command.option("--formats", "svg, pdf, or both; PNG there is always", "png,svg,pdf")
    command.flag("--no-gif", "make no moving pictures")
    command.flag("--force", "run figures that are done already")


def _seed_option(command: _Parser) -> None:
    command.option("--seed SEED", "of all random draws", 0)


def _reproduce(arguments: argparse.Namespace) -> int:
    """The figures of the papers, each with the number that it claims.

    Simulate, measure and draw figures, each beside the numbers that it claims: without a name the figures of the three
    documents, with --all every figure. A second run skips what is done.

    example: clusterjax reproduce figure3 figure5 --quick --set beta=5 --out gallery
    """
    if arguments.list:
        chosen = None  # the list of all figures, which needs neither jax nor matplotlib
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
    starts = arguments.starts if arguments.starts is not None else 64 if arguments.quick else 256
    if starts < 2:
        raise ValueError(f"starts must be at least 2, but it is {starts}; a standard error needs several starts.")
    listed = [entry.name for entry in entries().values() if not entry.lacks and (arguments.all or entry.documents)]
    settings = Settings(
        arguments.seed, starts, arguments.quick, arguments.albert, arguments.imdb, texts=arguments.texts,
        parameters=_parameters(arguments.parameters or []), ids=arguments.ids,
    )  # fmt: skip
    return _draw(arguments, names or listed, settings, arguments.jobs)


def _parameters(pairs: list[tuple[str, int | float]]) -> dict[str, int | float]:
    """The parameters of `--set`, each once."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"--set must give each parameter once, but {twice} is there {names.count(twice)} times; choose."
        )
    if option := next((name for name in names if name in ("seed", "starts")), None):
        value = dict(pairs)[option]
        raise ValueError(
            f"--set must give parameters of figures, but {option} is an option of its own; say --{option} {value:g}."
        )
    return dict(pairs)


def _probe(arguments: argparse.Namespace) -> int:
    """How a trained network clusters: similarity, heads, sinks, spectra, and the particle model of it.

    Measure a trained ALBERT or T5 encoder, beside networks of random weights and shuffled texts, and draw it as figures
    1 and 2 of 'Clustering in Transformers', with its spectra and its bridge to the particle model. A second run skips
    what is done.

    example: clusterjax probe albert/albert-base-v2 --texts wikitext.txt --out albert-base
    """
    from .experiments import Settings

    fields = ("seed", "quick", "texts", "ids", "most_texts", "length", "depth", "heads")
    settings = Settings(albert=arguments.model, **{field: getattr(arguments, field) for field in fields})
    return _draw(arguments, _OF_NETWORKS, settings)


def _draw(arguments: argparse.Namespace, names: list[str], settings: Any, jobs: int = 1) -> int:
    """Run the experiments of these names and write them; 1 if an identity was violated."""
    from .experiments import Files, reproduce

    formats = tuple(name.strip() for name in arguments.formats.split(","))
    if set(formats) - {"png", "svg", "pdf"}:
        raise ValueError(f"formats must be a list of png, svg and pdf, but it is {arguments.formats!r}; say png,svg.")
    # PNG is always drawn, for the gallery.
    files = Files(tuple(dict.fromkeys(("png", *formats))), not arguments.no_gif)
    # The simulations of the papers are in float64.
    with _double_precision():
        options = {"force": arguments.force, "jobs": jobs, "say": log_line}
        records = reproduce(names, arguments.out, settings, files, **options)
    log_line(f"{len(records)} figures in {Path(arguments.out) / 'index.html'}")
    return int(any(claim["verdict"] == "VIOLATED" for record in records for claim in record["claims"]))


# The numbers of a recipe, in the order in which every help has them, each with what it sets; a model has some of them.
_NUMBERS = {
    "vocab-size N": "word pieces",
    "embedding-size N": "dimension of the embedding, before it is brought to that of a token",
    "dim N": "dimension of a token, in each head where these are apart",
    "num-heads N": "heads",
    "intermediate-size N": "width of the feed-forward",
    "num-layers N": "layers; of an ALBERT, how often its one layer is applied",
    "length N": "words or word pieces of a text that are read",
    "ngrams N": "2 reads pairs of neighbours as words too",
    "batch-size N": "texts in a step",
    "steps N": "steps of training",
    "epochs N": "how often all texts are seen",
    "learning-rate X": "largest learning rate",
    "embedding-rate X": "largest learning rate of embeddings and vectors, which AdamW trains",
    "alpha X": "where the step of the layers starts",
}
# For each option that a kind of model has, the field of its recipe and the default of this field.
SENTIMENT = {
    "dim": ("dim", 2), "num-heads": ("heads", 1), "num-layers": ("depth", 8), "length": ("length", 256),
    "ngrams": ("ngrams", 1), "batch-size": ("batch_size", 64), "epochs": ("epochs", 6),
    "learning-rate": ("learning_rate", 0.003), "alpha": ("alpha", 1.0),
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


def _sentiment_options(command: _Parser) -> None:
    command.option(
        "--imdb PATH", "reviews: CSV, Parquet (.gz too), aclImdb or stanfordnlp/imdb; without it made-up ones"
    )
    _recipe_options(command, SENTIMENT)
    command.option("--split", "the test part", "official", choices=("official", "random"))
    command.option("--patience N", "stop after N epochs without a better one")
    again = command.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_const", const=True, help="insist on a checkpoint to go on from")
    again.add_argument("--fresh", dest="resume", action="store_const", const=False, help="start anew")


def _albert_options(command: _Parser) -> None:
    _texts_options(command, ALBERT)


def _texts_options(command: _Parser, model: dict[str, tuple[str, Any]]) -> None:
    words = (
        "what to train on: .txt, .csv, .jsonl, .parquet (.gz), C4's .json.gz, or allenai/c4 and wikitext of the hub, "
        "of which 10000 texts are read"
    )
    command.option("--texts PATH", words, required=True, nargs="+")
    _recipe_options(command, model)
    command.option("--snapshots N", "snapshots that are kept", 8)


def _language_model_options(command: _Parser) -> None:
    _texts_options(command, LANGUAGE_MODEL)
    words = "what is trained; an LSTM has --intermediate-size units in one layer (default: transformer)"
    command.option("--architecture", words, choices=("transformer", "lstm"))
    command.option("--norm", "where layer norms stand (default: pre)", choices=("pre", "post", "none"))
    words = "how it knows the places of its tokens (default: learned)"
    command.option("--positions", words, choices=("learned", "sinusoidal", "relative", "rotary"))
    words = "let each row of training begin with the token [CLS]"
    command.add_argument("--begin", action="store_const", const=True, help=words)
    command.option("--stream", "precision of the stream (default: float32)", choices=("float32", "bfloat16"))


def _recipe_options(command: _Parser, model: dict[str, tuple[str, Any]]) -> None:
    """What every kind has after its data, in one order."""
    command.option("--out DIR", "where to write", required=True)
    _seed_option(command)
    for usage, words in _NUMBERS.items():
        if (option := usage.split()[0]) in model:
            field, default = model[option]
            # What a call does not set is left to the recipe.
            command.option(f"--{usage}", f"{words} (default: {default:g})", dest=field)


def _train_sentiment(arguments: argparse.Namespace) -> int:
    """The hardmax sentiment classifier, on film reviews.

    Train a sentiment classifier through hardmax attention. It writes the model, with its history and a report on the
    test part, at which it looks once, and a picture of the curves. A run that was killed goes on where it was.

    example: clusterjax train sentiment --imdb imdb50k.csv.gz --dim 2 --out model
    """
    from .sentiment import Recipe, train_sentiment

    # `Recipe.of_dim` has a default recipe for each dimension, which it must therefore know.
    recipe = Recipe.of_dim(**{"dim": SENTIMENT["dim"][1]} | _given(arguments, SENTIMENT))
    options = {name: getattr(arguments, name) for name in ("seed", "split", "patience", "resume")}
    train_sentiment(arguments.out, arguments.imdb, recipe, **options, say=log_line)
    return _leave_curves(arguments.out)


def _train_albert(arguments: argparse.Namespace) -> int:
    """An ALBERT of one's own, on texts.

    Train an ALBERT by masked language modelling. It writes weights, configuration and tokenizer, as transformers reads
    them, the loss along the way with a picture of it, and snapshots of the weights. A run that was killed goes on where
    it was.

    example: clusterjax train albert --texts reviews.csv.gz wikitext.txt --out albert
    """
    from .probe import AlbertRecipe, train_albert

    return _train_on_texts(arguments, train_albert, AlbertRecipe(**_given(arguments, ALBERT)))


def _train_language_model(arguments: argparse.Namespace) -> int:
    """A small causal language model, on texts.

    Train a causal language model. It writes the model, its tokenizer, the loss along the way beside those of guessing
    by frequency and by the word before with a picture of them, and snapshots. A run that was killed goes on where it
    was.

    example: clusterjax train language-model --texts reviews.csv.gz wikitext.txt --out model
    """
    from .transformer import LanguageRecipe, train_language_model

    names = ("architecture", "norm", "positions", "begin", "stream")
    recipe = LanguageRecipe(**_given(arguments, LANGUAGE_MODEL, *names))
    return _train_on_texts(arguments, train_language_model, recipe)


def _given(arguments: argparse.Namespace, model: dict[str, tuple[str, Any]], *names: str) -> dict[str, Any]:
    """The fields of a recipe that the call sets."""
    fields = (*(field for field, _ in model.values()), *names)
    return {field: getattr(arguments, field) for field in fields if getattr(arguments, field) is not None}


def _train_on_texts(arguments: argparse.Namespace, train: Callable[..., Any], recipe: Any) -> int:
    options = {"seed": arguments.seed, "snapshots": arguments.snapshots, "say": log_line}
    train(arguments.out, arguments.texts, recipe, **options)
    return _leave_curves(arguments.out)


def _leave_curves(out: str) -> int:
    """Leave a picture of the training beside the model, if there is matplotlib; the status of the command."""
    if find_spec("matplotlib") is None:
        log_line("no picture of the curves: it needs matplotlib; install it with: pip install 'clusterjax[plot]'")
    else:
        from .plot._curves import leave_curves

        leave_curves(out, log_line)
    return 0


def _predict_options(command: _Parser) -> None:
    words = "where train wrote a model; heads: the better one of the package, with four heads and n-grams"
    command.add_argument("folder", nargs="?", metavar="DIR", help=words)
    command.add_argument("text", nargs="?", metavar="TEXT", help="a review")
    command.flag("--stdin", "one review per line, one line of answer each")
    command.flag("--json", "the answer as JSON, one object per line")


def _predict(arguments: argparse.Namespace) -> int:
    """The sentiment of a text.

    The sentiment of a text, its leaders with the words that follow them, and the way of its words. Without DIR by the
    classifier of the package, which knows English film reviews of 2011 and before, and is no judge of other texts.

    example: clusterjax predict "A wonderful film, not boring at all."
    """
    from .sentiment import explain, load, predict_many

    folder, text = arguments.folder, arguments.text
    # One word alone is TEXT; with --stdin it is DIR.
    if not arguments.stdin and text is None:
        folder, text = None, folder
    if arguments.stdin == (text is not None):
        raise ValueError("TEXT or --stdin must be given, and one of them alone; say --stdin for one review per line.")
    # `clusterjax predict model`, with the review forgotten.
    if folder is None and text is not None and os.path.isdir(text):
        raise ValueError(f"TEXT must be a review, but {text!r} is a folder; add the review behind it, or --stdin.")
    try:
        fitted = load(None if folder is None else _name(folder))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"DIR must be the folder of a model, but {error}; name one.") from error
    if text is not None:
        explanation = explain(fitted, text)
        _answer(json.dumps(explanation.record(), ensure_ascii=False) if arguments.json else str(explanation))
        return 0
    # In batches, for the speed of one compiled call, and so that answers come while input is still arriving.
    for texts in _lines_of_stdin(256):
        for prediction in predict_many(fitted, texts):
            _answer(json.dumps(prediction, ensure_ascii=False) if arguments.json else _summary(prediction))
    return 0


def _lines_of_stdin(size: int) -> Iterator[tuple[str, ...]]:
    """The lines of standard input, `size` at a time."""
    texts: list[str] = []
    # Bytes are decoded here: the encoding of `sys.stdin` depends on the machine.
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
    """One line for one review."""
    words = "leaders: " + ", ".join(prediction["leaders"]) if prediction["known_words"] else "no known words"
    return f"{prediction['sentiment']} {prediction['probability']:.3f} {words}"


def _complete_options(command: _Parser) -> None:
    words = (
        'a folder, a GGUF file or an id of the hub, of GPT-2 or of the Llama family; "smollm2"; "language-model", that '
        "of the package; or what train language-model wrote"
    )
    command.add_argument("model", type=_name, metavar="MODEL", help=words)
    command.add_argument("text", metavar="TEXT", help="the beginning")
    command.option("--num-words N", "so many next words are shown", 5)
    command.option("--num-tokens N", "length of the continuation", 20)
    command.option("--temperature X", "draw each token; 0 takes the most probable one", 0.0)
    command.option("--top-k N", "draw of so many of the most probable tokens (default: of all)")
    _seed_option(command)
    command.flag("--json", "the answer as JSON, one object")


def _complete(arguments: argparse.Namespace) -> int:
    """What a language model expects after a text.

    The most probable next words after a text, and a continuation, by a causal network.

    example: clusterjax complete smollm2 "The Eiffel Tower is located in the city of" --num-tokens 10
    """
    from ._base.checks import check_integer, check_number, check_text

    # Checks come before the network is read, which may take seconds.
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
    command.option("--betas A:B:N", "N values from A to B", "0.1:9:90")
    command.option("--times N", "save times, from 0", 200)
    command.option("--until X", "the last of them (default: 30, unnormalised 1)")
    command.option("--n N", "tokens (default: 32)")
    command.option("--d N", "coordinates of a token (default: 2)")
    command.option("--samples N", "random starts (default: 2048)")
    command.option("--starts FILE", "initial points (samples, n, d): .npy, .npz or .safetensors")
    command.option("--variant", "the attention", "softmax", choices=("softmax", "unnormalised"))
    command.flag("--causal", "a token attends to itself and to those before it only")
    command.option("--window N", "and to fewer than N tokens away only, on either side or causally")
    words = "of Q^T K: identity, square (GG^T/sqrt d), product (G1 G2/sqrt d), wigner, gaussian, or orthogonal"
    command.option("--query-key LAW", words, "identity", choices=_LAWS)
    words = "of V: the same laws, or ascent and descent (Q^T K times 1 and -1, scaled)"
    command.option("--value LAW", words, "identity", choices=(*_LAWS, "ascent", "descent"))
    command.option("--spectrum LIST", "the eigenvalues of V, in a random basis, such as 1,0.5 or 1+2j,1-2j")
    command.option("--drawn", "a random matrix for each", "system", choices=tuple(_DRAWN))
    command.option("--statistics LIST", f"of {', '.join(_STATISTICS)}; the first is drawn", "close-pairs")
    command.option("--dt X", "the published step", 0.1)
    command.flag("--adaptive", "integrate accurately, in place of that step")
    command.flag("--double", "float64 in place of float32")
    _seed_option(command)
    command.option("--store DIR", "where the numbers are kept, as zarr")
    command.flag("--fresh", "compute anew what the store holds")
    command.option("--out FILE", "the picture: .png, .svg or .pdf (default: beside the store)", dest="picture")


def _phase_diagram(arguments: argparse.Namespace) -> int:
    """How clustered tokens are, over time and beta.

    The phase diagrams of 'A mathematical perspective on transformers' (2312.10794): for each beta and time the share of
    pairs of tokens with inner product above 0.999, over many random starts. A run with --store that was killed goes on
    where it was; the same call on a finished store only draws.

    example: clusterjax sweep phase-diagram --betas 0.1:9:90 --times 200 --n 32 --d 2 --samples 2048 --store run.zarr
    --out diagram.png
    """
    betas, picture, options = _grid(arguments.betas), _picture(arguments), _diagram(arguments)
    import numpy as np

    from .phase import phase_diagram

    until = arguments.until if arguments.until is not None else 1.0 if options["unnormalised"] else 30.0
    with _double_precision(arguments.double):
        diagram = phase_diagram(
            np.linspace(*betas), np.linspace(0, until, arguments.times), **options, store=arguments.store,
            resume=not arguments.fresh, dtype="float64" if arguments.double else "float32", seed=arguments.seed,
        )  # fmt: skip
    if arguments.store is not None:
        log_line(f"{diagram.sizes['beta']} betas in {arguments.store}")
    # A point whose statistics are not finite is marked as failed in the store.
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
            log_line(f"drawn in {path}")
    return 0


def _grid(text: str) -> tuple[float, float, int]:
    """The ends and the number of values of A:B:N."""
    with contextlib.suppress(ValueError):
        low, high, count = text.split(":")
        low, high, count = float(low), float(high), int(count)
        if 0 <= low <= high <= _LARGEST and 1 <= count <= _MOST and (count == 1) == (low == high):
            return low, high, count
    raise ValueError(
        f"betas must be A:B:N, N values, at most {_MOST}, from A >= 0 up to B, which single precision holds, but it is "
        f"{text!r}; say 0.1:9:90."
    )


def _picture(arguments: argparse.Namespace) -> Path | None:
    """Where the diagram is drawn: by default beside the store, if there is matplotlib."""
    store, picture = arguments.store, arguments.picture
    if store is None and picture is None:
        raise ValueError("--store or --out must be given, for the result would be lost; say --store run.zarr.")
    if picture is None:
        return None if find_spec("matplotlib") is None else Path(store or "").with_suffix(".png")
    if picture.suffix not in (".png", ".svg", ".pdf") or not picture.parent.is_dir() or picture.is_dir():
        raise ValueError(f"--out must be a .png, .svg or .pdf in a folder that is there, but it is {str(picture)!r}.")
    from . import plot  # noqa: F401  # says what to install, before anything is computed

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
        raise ValueError(f"--{next(iter(given))} is what --starts says as well; leave it out.")
    names = [name.strip() for name in arguments.statistics.split(",")]
    if unknown := [name for name in names if name not in _STATISTICS]:
        raise ValueError(f"statistics must be of {', '.join(_STATISTICS)}, but there is {unknown[0]!r}; mend it.")
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
            raise ValueError(f"--spectrum is given in place of --value, but that is {name!r}; leave one out.")
        try:
            numbers = [complex(part.strip()) for part in spectrum.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != d:
            raise ValueError(f"spectrum must be {d} numbers, one for each coordinate, but it is {spectrum!r}; mend it.")
        return Spectrum(numbers, drawn)
    if name not in ("ascent", "descent"):
        return _law(name, drawn)
    # The scales of the published code: see `LikeQueryKey`.
    scale = {"identity": 1.0, "wigner": (d + 1) ** -0.5}.get(arguments.query_key, max(d, 1) ** -0.5)
    return LikeQueryKey(scale if name == "ascent" else -scale)
