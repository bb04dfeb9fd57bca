"""The command `train`."""

import argparse

from .._say import say
from ._types import named, number, whole


def add_train(commands: argparse._SubParsersAction) -> None:
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
    command.add_argument("--out", required=True, type=named, metavar="DIR", help="where to write")
    command.add_argument(
        "--imdb", type=named, metavar="PATH",
        help="reviews: CSV, Parquet (.gz too), aclImdb or stanfordnlp/imdb; without it made-up ones",
    )  # fmt: skip
    command.add_argument("--split", choices=("official", "random"), default="official", help="default: official")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument("--dim", type=whole, default=2, metavar="D", help="dimension of a head (default: 2)")
    for option, (kind, words) in _RECIPE.items():
        command.add_argument(
            f"--{option.replace('_', '-')}", type=kind, metavar="N" if kind is whole else "X", help=words
        )
    command.add_argument("--patience", type=whole, metavar="N", help="stop after N epochs without a better one")
    again = command.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_const", const=True, help="insist on a checkpoint to go on from")
    again.add_argument("--fresh", dest="resume", action="store_const", const=False, help="start anew")
    command.set_defaults(run=_train)
    _add_train_albert(models)
    _add_train_language_model(models)


def _add_train_albert(models: argparse._SubParsersAction) -> None:
    command = models.add_parser(
        "albert",
        help="an ALBERT of one's own, on texts",
        description="Train an ALBERT by masked language modelling. It writes weights, configuration and tokenizer, as "
        "transformers reads them, the loss along the way, and snapshots of the weights. A run that was killed goes on "
        "where it was.",
        epilog="example: clusterjax train albert --texts reviews.csv.gz wikitext.txt --out albert",
    )
    command.add_argument("--out", required=True, type=named, metavar="DIR", help="where to write")
    command.add_argument(
        "--texts",
        required=True,
        nargs="+",
        type=named,
        metavar="FILE",
        help="what to train on: .txt, .csv, .jsonl, .parquet (.gz)",
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument("--snapshots", type=whole, default=8, metavar="N", help="weights that are kept (default: 8)")
    for option, (kind, words) in _ALBERT.items():
        command.add_argument(
            f"--{option.replace('_', '-')}", type=kind, metavar="N" if kind is whole else "X", help=words
        )
    command.set_defaults(run=_train_albert)


_ALBERT = {
    "vocab_size": (whole, "word pieces (default: 4096)"),
    "embedding_size": (whole, "dimension of the embedding (default: 96)"),
    "hidden_size": (whole, "dimension of the tokens (default: 128)"),
    "num_heads": (whole, "heads (default: 8)"),
    "intermediate_size": (whole, "width of the feed-forward (default: 512)"),
    "num_layers": (whole, "how often the layer is applied (default: 12)"),
    "length": (whole, "word pieces in a text (default: 64)"),
    "batch_size": (whole, "texts in a step (default: 16)"),
    "steps": (whole, "steps (default: 16000)"),
    "learning_rate": (number, "largest rate of AdamW (default: 0.002)"),
}


def _train_albert(arguments: argparse.Namespace) -> int:
    from ..probe import AlbertRecipe, train_albert

    given = {key: getattr(arguments, key) for key in _ALBERT if getattr(arguments, key) is not None}
    train_albert(
        arguments.out, arguments.texts, AlbertRecipe(**given), seed=arguments.seed, snapshots=arguments.snapshots,
        say=say,
    )  # fmt: skip
    return 0


def _add_train_language_model(models: argparse._SubParsersAction) -> None:
    command = models.add_parser(
        "language-model",
        help="a small causal language model, on texts",
        description="Train a causal language model. It writes the model, its tokenizer, the loss along the way beside "
        "those of guessing by frequency and by the word before, and snapshots. A run that was killed goes on where it "
        "was.",
        epilog="example: clusterjax train language-model --texts reviews.csv.gz wikitext.txt --out model",
    )
    command.add_argument("--out", required=True, type=named, metavar="DIR", help="where to write")
    command.add_argument(
        "--texts",
        required=True,
        nargs="+",
        type=named,
        metavar="FILE",
        help="what to train on: .txt, .csv, .jsonl, .parquet (.gz)",
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument("--snapshots", type=whole, default=8, metavar="N", help="models that are kept (default: 8)")
    for option, (kind, words) in _LANGUAGE.items():
        command.add_argument(
            f"--{option.replace('_', '-')}", type=kind, metavar="N" if kind is whole else "X", help=words
        )
    command.add_argument("--norm", choices=("pre", "post", "none"), help="where layer norms stand (default: pre)")
    command.add_argument("--stream", choices=("float32", "bfloat16"), help="precision of the stream (default: float32)")
    command.set_defaults(run=_train_language_model)


_LANGUAGE = {
    "words": (whole, "word pieces (default: 2048)"),
    "d": (whole, "dimension of the tokens (default: 128)"),
    "heads": (whole, "heads (default: 4)"),
    "hidden": (whole, "width of the feed-forward (default: 512)"),
    "layers": (whole, "layers (default: 4)"),
    "length": (whole, "word pieces in a row (default: 64)"),
    "batch_size": (whole, "rows in a step (default: 16)"),
    "steps": (whole, "steps (default: 4000)"),
    "learning_rate": (number, "largest rate of Muon, for the matrices of the layers (default: 0.01)"),
    "embedding_rate": (number, "largest rate of AdamW, for embeddings and vectors (default: 0.005)"),
}


def _train_language_model(arguments: argparse.Namespace) -> int:
    from ..transformer import LanguageRecipe, train_language_model

    names = (*_LANGUAGE, "norm", "stream")
    given = {key: getattr(arguments, key) for key in names if getattr(arguments, key) is not None}
    train_language_model(
        arguments.out, arguments.texts, LanguageRecipe(**given), seed=arguments.seed, snapshots=arguments.snapshots,
        say=say,
    )  # fmt: skip
    return 0


# What of the recipe can be said on the command line.
_RECIPE = {
    "heads": (whole, "number of heads (default: 1)"),
    "depth": (whole, "number of layers (default: 8)"),
    "epochs": (whole, "how often all reviews are seen (default: 6)"),
    "length": (whole, "the last so many words of a review are read (default: 256)"),
    "ngrams": (whole, "2 reads pairs of neighbours as words too (default: 1)"),
    "batch_size": (whole, "reviews in a step (default: 64)"),
    "learning_rate": (number, "largest rate of AdamW (default: 0.003)"),
    "alpha": (number, "where the step of the layers starts (default: 1)"),
}


def _train(arguments: argparse.Namespace) -> int:
    from ..sentiment import Recipe, train_sentiment

    given = {key: getattr(arguments, key) for key in _RECIPE if getattr(arguments, key) is not None}
    train_sentiment(
        arguments.out, arguments.imdb, Recipe.of_dim(arguments.dim, **given), seed=arguments.seed,
        split=arguments.split, patience=arguments.patience, resume=arguments.resume, say=say,
    )  # fmt: skip
    return 0
