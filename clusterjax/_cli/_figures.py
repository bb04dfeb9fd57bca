"""The commands that draw: `reproduce` and `probe`."""

import argparse
from pathlib import Path
from typing import Any

from .._say import say
from ._precision import double_precision
from ._types import named, path, whole


def add_reproduce(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "reproduce",
        help="the figures of the papers, each with the number that it claims",
        description="Simulate, measure and draw figures 1 to 8 of 'Clustering in Transformers' (simulations in "
        "float64), the heads, spectra and training of the network that comes with the package, the training of the "
        "language model that comes with it, what layer norms, feed-forwards, several heads and long contexts do to "
        "clustering, phase diagrams, the first phase of very many tokens, the polytope of the hardmax dynamics, and "
        "the sentiment model that uses it. A second run skips what is done.",
        epilog="example: clusterjax reproduce figure3 figure5 --quick --out gallery",
    )
    command.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="any of figure1 to figure8, albert-spectra, albert-bridge and albert-training, language-training, "
        "norm-schemes, rank-collapse, long-context, perceptron-delay and interacting-heads, phase-diagram "
        "and linear-phase, hardmax-polytope, sentiment-words, sentiment-leaders and sentiment-training; none means all",
    )
    command.add_argument(
        "--out", type=named, default="gallery", metavar="DIR", help="where to write (default: gallery)"
    )
    command.add_argument(
        "--quick", action="store_true", help="64 starts and shorter runs, and all figures but sentiment-training"
    )
    command.add_argument("--starts", type=whole, metavar="N", help="random starts for each number (default: 256)")
    command.add_argument(
        "--albert", type=named, metavar="PATH", help="another network: an ALBERT's folder, or its id on the hub"
    )
    command.add_argument("--texts", type=path, metavar="FILE", help="what that network reads (.txt, .csv, .jsonl)")
    command.add_argument(
        "--imdb", type=path, metavar="PATH", help="film reviews for the sentiment figures (CSV or folder)"
    )
    _add_drawing(command)
    command.set_defaults(run=_reproduce)


def _add_drawing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument(
        "--formats", default="png,svg", help="svg, pdf, or both; PNG there is always (default: png,svg)"
    )
    command.add_argument("--no-gif", action="store_true", help="make no moving pictures")
    command.add_argument("--force", action="store_true", help="run figures that are done already")


def add_probe(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "probe",
        help="how a trained network clusters: similarity, heads, sinks, spectra, and the particle model of it",
        description="Measure a trained ALBERT or T5 encoder, beside networks of random weights and shuffled texts, and "
        "draw it as figures 1 and 2 of 'Clustering in Transformers', with its spectra and its bridge to the particle "
        "model. A second run skips what is done.",
        epilog="example: clusterjax probe albert/albert-base-v2 --texts wikitext.txt --out albert-base",
    )
    command.add_argument(
        "model",
        nargs="?",
        type=named,
        metavar="MODEL",
        help="a folder, or an id on the hub; none means the ALBERT of the package",
    )
    command.add_argument("--texts", type=path, metavar="FILE", help="what it reads: .txt, .csv, .jsonl, .parquet (.gz)")
    command.add_argument("--out", type=named, default="probe", metavar="DIR", help="where to write (default: probe)")
    command.add_argument("--quick", action="store_true", help="fewer and shorter texts")
    for option, words in _PROBED.items():
        command.add_argument(f"--{option.replace('_', '-')}", type=whole, metavar="N", help=words)
    _add_drawing(command)
    command.set_defaults(run=_probe)


_OF_NETWORKS = ["figure1", "figure2", "albert-spectra", "albert-bridge"]
_PROBED = {
    "most_texts": "reads so many of the texts, evenly spread (default: 48, with --quick 16)",
    "length": "cuts them to so many tokens (default: 128, with --quick 64, and never more than the positions)",
    "depth": "layers that figure 1 goes through (default: 8 times those of training)",
    "heads": "cuts the matrices of an ALBERT into so many heads, which is another network (default: as trained)",
}


def _reproduce(arguments: argparse.Namespace) -> int:
    from ..experiments import EXPERIMENTS, Settings

    starts = arguments.starts if arguments.starts is not None else 64 if arguments.quick else 256
    if starts < 2:
        raise ValueError(f"--starts must be at least 2, but it is {starts}; a standard error needs several starts.")
    # Without a name the quick run leaves out the one figure that trains several models.
    quick = [found.name for found in EXPERIMENTS if found.name != "sentiment-training"]
    names = arguments.names or (quick if arguments.quick else [])
    settings = Settings(
        arguments.seed, starts, arguments.quick, arguments.albert, arguments.imdb, texts=arguments.texts
    )
    return _draw(arguments, names, settings)


def _probe(arguments: argparse.Namespace) -> int:
    from ..experiments import Settings

    given = {key: getattr(arguments, key) for key in _PROBED}
    settings = Settings(arguments.seed, quick=arguments.quick, albert=arguments.model, texts=arguments.texts, **given)
    return _draw(arguments, _OF_NETWORKS, settings)


def _draw(arguments: argparse.Namespace, names: list[str], settings: Any) -> int:
    """Run the experiments of these names and write them; 1 if an identity was violated."""
    from ..experiments import Files, reproduce

    formats = tuple(name.strip() for name in arguments.formats.split(","))
    if not formats or set(formats) - {"png", "svg", "pdf"}:
        raise ValueError(f"--formats must be a list of png, svg and pdf, but it is {arguments.formats!r}; say png,svg.")
    files = Files(tuple(dict.fromkeys(("png", *formats))), not arguments.no_gif)
    with double_precision():
        records = reproduce(names, arguments.out, settings, files, force=arguments.force, say=say)
    violated = [claim for record in records for claim in record["claims"] if claim["verdict"] == "VIOLATED"]
    say(f"{len(records)} figures in {Path(arguments.out) / 'index.html'}")
    return 1 if violated else 0
