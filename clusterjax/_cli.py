"""The command `clusterjax`."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Never, final


@final
class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a call in one line, as every other error is said."""

    def error(self, message: str) -> Never:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The command `clusterjax`: see `clusterjax --help`.

    **Arguments:**

    - `argv`: The words after the command's name; None takes those that it was called with.

    **Returns:**

    The exit status: 0 if all went well, 1 if an identity was violated, 2 if the call was wrong, 130 if interrupted.

    Source: this library.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        print(f"clusterjax {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"clusterjax {arguments.command}: interrupted; what was finished is kept.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="clusterjax", description="How tokens cluster as they pass through attention.",
        epilog="example: clusterjax reproduce figure3 --quick --out gallery",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"clusterjax {version('clusterjax')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_reproduce(commands)
    _add_train(commands)
    _add_predict(commands)
    return parser


def _add_reproduce(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "reproduce",
        help="the figures of the papers, each with the number that it claims",
        description="Simulate, measure and draw figures 3 to 8 of 'Clustering in Transformers' (computed in "
        "float64), the polytope of the hardmax dynamics, and the sentiment model that uses it. A second run skips what "
        "is done.",
        epilog="example: clusterjax reproduce figure3 figure5 --quick --out gallery",
    )
    command.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="figure3 to figure8, hardmax-polytope, sentiment-words, -leaders, -training; none means all",
    )
    command.add_argument("--out", default="gallery", metavar="DIR", help="where to write (default: gallery)")
    command.add_argument(
        "--quick", action="store_true", help="64 starts and shorter runs: all figures but sentiment-training"
    )
    command.add_argument("--starts", type=int, metavar="N", help="random starts for each number (default: 256)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument("--albert", type=Path, metavar="PATH", help="an ALBERT checkpoint for figures 7 and 8")
    command.add_argument(
        "--imdb", type=Path, metavar="PATH", help="film reviews for the sentiment figures (CSV or folder)"
    )
    command.add_argument(
        "--formats", default="png,svg", help="svg, pdf, or both; PNG there is always (default: png,svg)"
    )
    command.add_argument("--no-gif", action="store_true", help="make no moving pictures")
    command.add_argument("--force", action="store_true", help="run figures that are done already")
    command.set_defaults(run=_reproduce)


def _add_train(commands: argparse._SubParsersAction) -> None:
    train = commands.add_parser(
        "train", help="train a model", description="Train a model.",
        epilog="example: clusterjax train sentiment --imdb imdb50k.csv.gz --out model",
    )  # fmt: skip
    models = train.add_subparsers(dest="model", required=True, metavar="MODEL")
    command = models.add_parser(
        "sentiment",
        help="the hardmax sentiment classifier, on film reviews",
        description="Train a sentiment classifier through hardmax attention. It writes model, vocabulary, history and "
        "a report on the test part, at which it looks once. A run that was killed goes on where it was.",
        epilog="example: clusterjax train sentiment --imdb imdb50k.csv.gz --dim 2 --out model",
    )
    command.add_argument("--out", required=True, metavar="DIR", help="where to write")
    command.add_argument("--imdb", metavar="PATH", help="reviews: CSV, Parquet (.gz too), aclImdb or stanfordnlp/imdb; "
                         "without it made-up ones")  # fmt: skip
    command.add_argument("--split", choices=("official", "random"), default="official", help="default: official")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument("--dim", type=int, default=2, metavar="D", help="dimension of a head (default: 2)")
    for name, (kind, words) in _RECIPE.items():
        command.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N" if kind is int else "X", help=words)
    command.add_argument("--patience", type=int, metavar="N", help="stop after N epochs without a better one")
    again = command.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_const", const=True, help="insist on a checkpoint to go on from")
    again.add_argument("--fresh", dest="resume", action="store_const", const=False, help="start anew")
    command.set_defaults(run=_train)


# What of the recipe can be said on the command line.
_RECIPE = {
    "heads": (int, "number of heads (default: 1)"),
    "depth": (int, "number of layers (default: 8)"),
    "epochs": (int, "how often all reviews are seen (default: 6)"),
    "length": (int, "the last so many words of a review are read (default: 256)"),
    "ngrams": (int, "2 reads pairs of neighbours as words too (default: 1)"),
    "batch_size": (int, "reviews in a step (default: 64)"),
    "learning_rate": (float, "largest rate of AdamW (default: 0.003)"),
    "alpha": (float, "where the step of the layers starts (default: 1)"),
}


def _train(arguments: argparse.Namespace) -> int:
    from .sentiment import Recipe, train_sentiment

    given = {name: getattr(arguments, name) for name in _RECIPE if getattr(arguments, name) is not None}
    train_sentiment(
        arguments.out, arguments.imdb, Recipe.of_dim(arguments.dim, **given), seed=arguments.seed,
        split=arguments.split, patience=arguments.patience, resume=arguments.resume, say=_say,
    )  # fmt: skip
    return 0


def _add_predict(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "predict",
        help="the sentiment of a text, by a model that was trained",
        description="The sentiment of a text, its leaders with the words that follow them, and the way of its words.",
        epilog='example: clusterjax predict model "A wonderful film, not boring at all."',
    )
    command.add_argument("folder", metavar="DIR", help="where train wrote the model")
    command.add_argument("text", nargs="?", metavar="TEXT", help="a review")
    command.add_argument("--stdin", action="store_true", help="one review a line, one line of answer each")
    command.add_argument("--json", action="store_true", help="the answer as JSON, one object a line")
    command.set_defaults(run=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from .sentiment import explain, load, predict_many

    if arguments.stdin == (arguments.text is not None):
        raise ValueError("TEXT or --stdin must be given, and one of them alone; say --stdin for one review a line.")
    fitted = load(arguments.folder)
    if not arguments.stdin:
        found = explain(fitted, arguments.text)
        _say(json.dumps(found.record(), ensure_ascii=False) if arguments.json else str(found))
        return 0
    for texts in _lines_of_stdin(256):
        for found in predict_many(fitted, texts):
            _say(json.dumps(found, ensure_ascii=False) if arguments.json else _short(found))
    return 0


def _lines_of_stdin(size: int) -> Iterator[tuple[str, ...]]:
    """What comes in, `size` lines at a time."""
    texts: list[str] = []
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


def _short(found: dict[str, Any]) -> str:
    """One line for one review."""
    words = "leaders: " + ", ".join(found["leaders"]) if found["known_words"] else "no known words"
    return f"{found['sentiment']} {found['probability']:.3f} {words}"


def _reproduce(arguments: argparse.Namespace) -> int:
    from .experiments import EXPERIMENTS, Files, Settings, reproduce

    starts = arguments.starts if arguments.starts is not None else 64 if arguments.quick else 256
    if starts < 2:
        raise ValueError(f"--starts must be at least 2, but it is {starts}; a standard error needs several starts.")
    if not 0 <= arguments.seed < 2**32:
        raise ValueError(f"--seed must lie between 0 and 2**32 - 1, but it is {arguments.seed}; choose another.")
    formats = tuple(name.strip() for name in arguments.formats.split(","))
    if not formats or set(formats) - {"png", "svg", "pdf"}:
        raise ValueError(f"--formats must be a list of png, svg and pdf, but it is {arguments.formats!r}; say png,svg.")
    settings = Settings(arguments.seed, starts, arguments.quick, arguments.albert, arguments.imdb)
    files = Files(tuple(dict.fromkeys(("png", *formats))), not arguments.no_gif)
    # Without a name the quick run leaves out the one figure that trains several models.
    quick = [found.name for found in EXPERIMENTS if found.name != "sentiment-training"]
    names = arguments.names or (quick if arguments.quick else [])
    with _double_precision():
        records = reproduce(names, arguments.out, settings, files, force=arguments.force, say=_say)
    violated = [claim for record in records for claim in record["claims"] if claim["verdict"] == "VIOLATED"]
    _say(f"{len(records)} figures in {Path(arguments.out) / 'index.html'}")
    return 1 if violated else 0


@contextmanager
def _double_precision() -> Iterator[None]:
    """float64 within, and after it whatever there was before."""
    import jax

    before = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _say(line: str) -> None:
    print(line, flush=True)
