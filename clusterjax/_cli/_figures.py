"""The commands that draw: `reproduce` and `probe`."""

import argparse
from pathlib import Path
from typing import Any

from .._base.log import log_line
from ..experiments.framework.listing import entries
from ._options import add_renamed, said_in_options
from ._precision import double_precision
from ._types import integer, named, path, setting


_READ = ".txt, .csv, .jsonl, .parquet (.gz), C4's .json.gz, or allenai/c4 or wikitext of the hub"


def add_reproduce(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "reproduce",
        help="the figures of the papers, each with the number that it claims",
        description="Simulate, measure and draw figures, each beside the numbers that it claims: without a name the "
        "figures of the three documents, with --all every figure. A second run skips what is done.",
        epilog="example: clusterjax reproduce figure3 figure5 --quick --set beta=5 --out gallery",
    )
    command.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"any of {', '.join(entries())}; none means those of the three documents",
    )
    command.add_argument(
        "--out", type=named, default="gallery", metavar="DIR", help="where to write (default: gallery)"
    )
    command.add_argument("--quick", action="store_true", help="64 starts and shorter runs")
    command.add_argument("--all", action="store_true", help="every figure, which takes hours")
    command.add_argument("--starts", type=integer, metavar="N", help="random starts for each number (default: 256)")
    command.add_argument(
        "--albert", type=named, metavar="PATH", help="another network: an ALBERT's folder, or its id on the hub"
    )
    command.add_argument("--texts", type=path, metavar="FILE", help=f"what that network reads: {_READ}")
    _add_ids(command)
    command.add_argument(
        "--imdb", type=path, metavar="PATH", help="film reviews for the sentiment figures (CSV or folder)"
    )
    command.add_argument(
        "--set", type=setting, action="append", default=[], metavar="NAME=VALUE", dest="given",
        help="a parameter that each of the figures declares; may be given several times",
    )  # fmt: skip
    for name, words in _SHORT.items():
        command.add_argument(f"--{name}", type=integer, metavar="N", help=f"{words}; the same as --set {name}=N")
    command.add_argument(
        "--jobs", type=integer, default=1, metavar="N", help="figures at a time, each in a process (default: 1)"
    )
    command.add_argument("--list", action="store_true", help="show figures, claims, parameters and cost, and run none")
    _add_drawing(command)
    command.set_defaults(run=_reproduce)


def _add_ids(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--ids", type=path, metavar="FILE",
        help="the same as token ids, for a folder without tokenizer: .txt, .csv or .jsonl with a text in each line, "
        ".json or .npy",
    )  # fmt: skip


def _add_drawing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument(
        "--formats", default="png,svg,pdf", help="svg, pdf, or both; PNG there is always (default: png,svg,pdf)"
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
    command.add_argument("--texts", type=path, metavar="FILE", help=f"what it reads: {_READ}")
    _add_ids(command)
    command.add_argument("--out", type=named, default="probe", metavar="DIR", help="where to write (default: probe)")
    command.add_argument("--quick", action="store_true", help="fewer and shorter texts")
    for option, (_, words) in _PROBED.items():
        command.add_argument(f"--{option}", type=integer, metavar="N", help=words)
    add_renamed(command, {"depth": "num-layers", "heads": "num-heads"})
    _add_drawing(command)
    command.set_defaults(run=_probe)


# Parameters of figures of networks that are options as well.
_SHORT = {
    "depth": "layers that figure1 applies the network",
    "head": "head that figure7 and figure8 show, from 1",
    "layer": "layer that figure2, figure7, figure8 and albert-spectra look at, from 1",
}
_OPTIONS = {"seed", "starts"}  # numbers that are no parameters of figures
_OF_NETWORKS = ["figure1", "figure2", "albert-spectra", "albert-bridge"]
# Each option, with the setting of the figures that it sets.
_PROBED = {
    "most-texts": ("most_texts", "reads so many of the texts, evenly spread (default: 48, with --quick 16)"),
    "length": (
        "length", "cuts them to so many tokens (default: 128, with --quick 64, and never more than the positions)",
    ),
    "num-layers": ("depth", "layers that figure 1 goes through (default: 8 times those of training)"),
    "num-heads": (
        "heads", "cuts the matrices of an ALBERT into so many heads, which is another network (default: as trained)",
    ),
}  # fmt: skip


def _reproduce(arguments: argparse.Namespace) -> int:
    # Imported here: `clusterjax --help` and the list of all figures need neither JAX nor matplotlib.
    if arguments.list:
        from ..experiments.framework.listing import table

        for line in table(_found(arguments.names) if arguments.names else None):
            log_line(line)
        return 0
    from ..experiments import Settings, find_experiments

    if arguments.names and arguments.all:
        raise ValueError(
            f"--all must be given without names, but {arguments.names[0]} is named; leave one of them out."
        )
    starts = arguments.starts if arguments.starts is not None else 64 if arguments.quick else 256
    if starts < 2:
        raise ValueError(f"--starts must be at least 2, but it is {starts}; a standard error needs several starts.")
    listed = [entry.name for entry in entries().values() if not entry.lacks and (arguments.all or entry.documents)]
    names = arguments.names or listed
    short = [(name, getattr(arguments, name)) for name in _SHORT if getattr(arguments, name) is not None]
    _refuse_without([name for name, _ in short], find_experiments(names))
    with said_in_options({"ids": "ids", "texts": "texts"}):
        settings = Settings(
            arguments.seed, starts, arguments.quick, arguments.albert, arguments.imdb, texts=arguments.texts,
            parameters=_given([*arguments.given, *short]), ids=arguments.ids,
        )  # fmt: skip
        return _draw(arguments, names, settings, jobs=arguments.jobs)


def _found(names: list[str]) -> list[Any]:
    from ..experiments import find_experiments

    return find_experiments(names)


def _refuse_without(options: list[str], experiments: list[Any]) -> None:
    """Raise a ValueError if one of the figures lacks the parameter of one of these options."""
    from ..experiments import EXPERIMENTS
    from ..experiments.framework.experiment import parameters_of

    has = lambda experiment, name: any(one.name == name for one in parameters_of(experiment.parameters))
    for option in options:
        lacking = [experiment.name for experiment in experiments if not has(experiment, option)]
        if lacking:
            having = ", ".join(experiment.name for experiment in EXPERIMENTS if has(experiment, option))
            others = f"{', '.join(lacking[:3])}{f' and {len(lacking) - 3} others' if len(lacking) > 3 else ''}"
            raise ValueError(
                f"--{option} must be given with figures that have it ({having}), but {others} "
                f"{'have' if len(lacking) > 1 else 'has'} not; name those that have it alone."
            )


def _given(pairs: list[tuple[str, int | float]]) -> dict[str, int | float]:
    """The parameters of `--set` and its short forms, each once."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"--set must give each parameter once, but {twice} is there {names.count(twice)} times; choose."
        )
    if option := next((name for name in names if name in _OPTIONS), None):
        value = dict(pairs)[option]
        raise ValueError(
            f"--set must give parameters of figures, but {option} is an option of its own; say --{option} {value:g}."
        )
    return dict(pairs)


def _probe(arguments: argparse.Namespace) -> int:
    from ..experiments import Settings

    given = {field: getattr(arguments, option.replace("-", "_")) for option, (field, _) in _PROBED.items()}
    options = {field: option for option, (field, _) in _PROBED.items()}
    with said_in_options(options | {"ids": "ids", "texts": "texts"}):
        settings = Settings(
            arguments.seed,
            quick=arguments.quick,
            albert=arguments.model,
            texts=arguments.texts,
            ids=arguments.ids,
            **given,
        )
        return _draw(arguments, _OF_NETWORKS, settings)


def _draw(arguments: argparse.Namespace, names: list[str], settings: Any, jobs: int = 1) -> int:
    """Run the experiments of these names and write them; 1 if an identity was violated."""
    from ..experiments import Files, reproduce

    # PNG is always drawn, for the gallery.
    formats = tuple(name.strip() for name in arguments.formats.split(","))
    if not formats or set(formats) - {"png", "svg", "pdf"}:
        raise ValueError(f"--formats must be a list of png, svg and pdf, but it is {arguments.formats!r}; say png,svg.")
    files = Files(tuple(dict.fromkeys(("png", *formats))), not arguments.no_gif)
    # The simulations of the papers are in float64.
    with double_precision():
        options = {"force": arguments.force, "jobs": jobs, "say": log_line}
        records = reproduce(names, arguments.out, settings, files, **options)
    violated = [claim for record in records for claim in record["claims"] if claim["verdict"] == "VIOLATED"]
    log_line(f"{len(records)} figures in {Path(arguments.out) / 'index.html'}")
    return 1 if violated else 0
