"""The command `train`: three kinds of model, one vocabulary for their options."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from .._base.log import log_line
from ._options import add_renamed, said_in_options
from ._types import integer, named, number


# The numbers of a recipe, in the order in which every --help has them; a model has some of them.
_NUMBERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "vocab-size": (integer, "word pieces"),
    "embedding-size": (integer, "dimension of the embedding, before it is brought to that of a token"),
    "dim": (integer, "dimension of a token, in each head where these are apart"),
    "num-heads": (integer, "heads"),
    "intermediate-size": (integer, "width of the feed-forward"),
    "num-layers": (integer, "layers; of an ALBERT, how often its one layer is applied"),
    "length": (integer, "words or word pieces of a text that are read"),
    "ngrams": (integer, "2 reads pairs of neighbours as words too"),
    "batch-size": (integer, "texts in a step"),
    "steps": (integer, "steps of training"),
    "epochs": (integer, "how often all texts are seen"),
    "learning-rate": (number, "largest learning rate"),
    "embedding-rate": (number, "largest learning rate of embeddings and vectors, which AdamW trains"),
    "alpha": (number, "where the step of the layers starts"),
}


class Model(NamedTuple):
    """What the command needs to know of a kind of model.

    **Attributes:**

    - `fields`: For each option of `_NUMBERS` that it has, the field of its recipe and the default.
    - `renamed`: Spellings of version 0.1.0, with those of today.
    """

    fields: dict[str, tuple[str, Any]]
    renamed: dict[str, str]


SENTIMENT = Model(
    {
        "dim": ("dim", 2), "num-heads": ("heads", 1), "num-layers": ("depth", 8), "length": ("length", 256),
        "ngrams": ("ngrams", 1), "batch-size": ("batch_size", 64), "epochs": ("epochs", 6),
        "learning-rate": ("learning_rate", 0.003), "alpha": ("alpha", 1.0),
    },
    {"heads": "num-heads", "depth": "num-layers"},
)  # fmt: skip
ALBERT = Model(
    {
        "vocab-size": ("vocab_size", 4096), "embedding-size": ("embedding_size", 96), "dim": ("hidden_size", 128),
        "num-heads": ("num_heads", 8), "intermediate-size": ("intermediate_size", 512),
        "num-layers": ("num_layers", 12), "length": ("length", 64), "batch-size": ("batch_size", 16),
        "steps": ("steps", 16000), "learning-rate": ("learning_rate", 0.002),
    },
    {"hidden-size": "dim"},
)  # fmt: skip
LANGUAGE_MODEL = Model(
    {
        "vocab-size": ("words", 2048), "dim": ("d", 128), "num-heads": ("heads", 4),
        "intermediate-size": ("hidden", 512), "num-layers": ("layers", 4), "length": ("length", 64),
        "batch-size": ("batch_size", 16), "steps": ("steps", 4000), "learning-rate": ("learning_rate", 0.01),
        "embedding-rate": ("embedding_rate", 0.005),
    },
    {"words": "vocab-size", "d": "dim", "heads": "num-heads", "hidden": "intermediate-size", "layers": "num-layers"},
)  # fmt: skip


def add_train(commands: argparse._SubParsersAction) -> None:
    train = commands.add_parser(
        "train", help="train a model", description="Train a model.",
        epilog="example: clusterjax train sentiment --imdb imdb50k.csv.gz --out model",
    )  # fmt: skip
    models = train.add_subparsers(dest="model", required=True, metavar="MODEL")
    _add_sentiment(models)
    _add_albert(models)
    _add_language_model(models)


def _add_sentiment(models: argparse._SubParsersAction) -> None:
    command = models.add_parser(
        "sentiment",
        help="the hardmax sentiment classifier, on film reviews",
        description="Train a sentiment classifier through hardmax attention. It writes the model, with its history and "
        "a report on the test part, at which it looks once, and a picture of the curves. A run that was killed goes on "
        "where it was.",
        epilog="example: clusterjax train sentiment --imdb imdb50k.csv.gz --dim 2 --out model",
    )
    command.add_argument(
        "--imdb", type=named, metavar="PATH",
        help="reviews: CSV, Parquet (.gz too), aclImdb or stanfordnlp/imdb; without it made-up ones",
    )  # fmt: skip
    _add_common(command, SENTIMENT)
    command.add_argument("--split", choices=("official", "random"), default="official", help="default: official")
    command.add_argument("--patience", type=integer, metavar="N", help="stop after N epochs without a better one")
    again = command.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_const", const=True, help="insist on a checkpoint to go on from")
    again.add_argument("--fresh", dest="resume", action="store_const", const=False, help="start anew")
    command.set_defaults(run=_train_sentiment)


def _add_albert(models: argparse._SubParsersAction) -> None:
    command = models.add_parser(
        "albert",
        help="an ALBERT of one's own, on texts",
        description="Train an ALBERT by masked language modelling. It writes weights, configuration and tokenizer, as "
        "transformers reads them, the loss along the way with a picture of it, and snapshots of the weights. A run "
        "that was killed goes on where it was.",
        epilog="example: clusterjax train albert --texts reviews.csv.gz wikitext.txt --out albert",
    )
    _add_texts(command)
    _add_common(command, ALBERT)
    _add_snapshots(command)
    command.set_defaults(run=_train_albert)


def _add_language_model(models: argparse._SubParsersAction) -> None:
    command = models.add_parser(
        "language-model",
        help="a small causal language model, on texts",
        description="Train a causal language model. It writes the model, its tokenizer, the loss along the way beside "
        "those of guessing by frequency and by the word before with a picture of them, and snapshots. A run that was "
        "killed goes on where it was.",
        epilog="example: clusterjax train language-model --texts reviews.csv.gz wikitext.txt --out model",
    )
    _add_texts(command)
    _add_common(command, LANGUAGE_MODEL)
    _add_snapshots(command)
    command.add_argument(
        "--architecture", choices=("transformer", "lstm"),
        help="what is trained; an LSTM has --intermediate-size units in one layer (default: transformer)",
    )  # fmt: skip
    command.add_argument("--norm", choices=("pre", "post", "none"), help="where layer norms stand (default: pre)")
    command.add_argument(
        "--positions", choices=("learned", "sinusoidal", "relative", "rotary"),
        help="how it knows the places of its tokens (default: learned)",
    )  # fmt: skip
    command.add_argument(
        "--begin", action="store_const", const=True, help="let each row of training begin with the token [CLS]"
    )
    command.add_argument("--stream", choices=("float32", "bfloat16"), help="precision of the stream (default: float32)")
    command.set_defaults(run=_train_language_model)


def _add_texts(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--texts", required=True, nargs="+", type=named, metavar="FILE",
        help="what to train on: .txt, .csv, .jsonl, .parquet (.gz), C4's .json.gz, or allenai/c4 and wikitext of the "
        "hub, of which 10000 texts are read",
    )  # fmt: skip


def _add_snapshots(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--snapshots", type=integer, default=8, metavar="N", help="snapshots that are kept (default: 8)"
    )


def _add_common(command: argparse.ArgumentParser, model: Model) -> None:
    """What every kind has after its data, in one order."""
    command.add_argument("--out", required=True, type=named, metavar="DIR", help="where to write")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    # No default of argparse: what is not given stays None and is left to the recipe.
    for option, (kind, words) in _NUMBERS.items():
        if option in model.fields:
            default = f"{model.fields[option][1]:g}"
            command.add_argument(
                f"--{option}", type=kind, metavar="N" if kind is integer else "X", help=f"{words} (default: {default})"
            )
    add_renamed(command, model.renamed)


def _given(arguments: argparse.Namespace, model: Model) -> dict[str, Any]:
    """The fields of the recipe that the call sets."""
    values = {field: getattr(arguments, option.replace("-", "_")) for option, (field, _) in model.fields.items()}
    return {field: value for field, value in values.items() if value is not None}


def _options(model: Model) -> dict[str, str]:
    """The option that sets each field of the recipe, and each other argument."""
    others = {name: name for name in ("seed", "split", "patience", "imdb", "texts")}
    return others | {field: option for option, (field, _) in model.fields.items()}


def _train_sentiment(arguments: argparse.Namespace) -> int:
    from ..sentiment import Recipe, train_sentiment
    from ._curves import leave_curves

    with said_in_options(_options(SENTIMENT)):
        # `Recipe.of_dim` has a default recipe for each dimension, so that it has to be known.
        given = {"dim": SENTIMENT.fields["dim"][1]} | _given(arguments, SENTIMENT)
        train_sentiment(
            arguments.out, arguments.imdb, Recipe.of_dim(**given), seed=arguments.seed, split=arguments.split,
            patience=arguments.patience, resume=arguments.resume, say=log_line,
        )  # fmt: skip
        leave_curves(arguments.out, log_line)
    return 0


def _train_albert(arguments: argparse.Namespace) -> int:
    from ..probe import AlbertRecipe, train_albert
    from ._curves import leave_curves

    with said_in_options(_options(ALBERT)):
        train_albert(
            arguments.out, arguments.texts, AlbertRecipe(**_given(arguments, ALBERT)), seed=arguments.seed,
            snapshots=arguments.snapshots, say=log_line,
        )  # fmt: skip
        leave_curves(arguments.out, log_line)
    return 0


def _train_language_model(arguments: argparse.Namespace) -> int:
    from ..transformer import LanguageRecipe, train_language_model
    from ._curves import leave_curves

    names = ("architecture", "norm", "positions", "begin", "stream")
    words = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    with said_in_options(_options(LANGUAGE_MODEL)):
        train_language_model(
            arguments.out, arguments.texts, LanguageRecipe(**_given(arguments, LANGUAGE_MODEL), **words),
            seed=arguments.seed, snapshots=arguments.snapshots, say=log_line,
        )  # fmt: skip
        leave_curves(arguments.out, log_line)
    return 0
