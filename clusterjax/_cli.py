"""The command `clusterjax`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Never, final


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
    except (ValueError, ImportError, OSError) as error:
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
    return parser


def _add_reproduce(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "reproduce",
        help="the figures of the papers, each with the number that it claims",
        description="Simulate, measure and draw figures 3 to 8 of 'Clustering in Transformers'. Everything is computed "
        "in float64. A second run skips what is done.",
        epilog="example: clusterjax reproduce figure3 figure5 --quick --out gallery",
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="figure3 to figure8; none means all")
    command.add_argument("--out", default="gallery", metavar="DIR", help="where to write (default: gallery)")
    command.add_argument("--quick", action="store_true", help="64 starts and shorter runs: all figures in under 90 s")
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


def _reproduce(arguments: argparse.Namespace) -> int:
    from .experiments import Files, Settings, reproduce

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
    with _double_precision():
        records = reproduce(arguments.names, arguments.out, settings, files, force=arguments.force, say=_say)
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
