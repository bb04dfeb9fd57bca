"""Training from a file of reviews to a folder with model, history and test report, as done by the command line.

`train_sentiment` reads and splits the reviews, trains by `fit` with a checkpoint in the folder, evaluates, and writes
everything atomically. The report contains the settings of the run with a digest of the data, so that a finished run is
recognised.

Invariants: a folder has one run at a time; a killed run continues bit for bit; the test part is evaluated once, after
the choice of the epoch; a folder with other settings is refused and not overwritten.
"""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._base.checks import check_choice, check_flag, check_integer, check_path, check_say, check_sequence
from .._base.log import log_line as print_line
from .._files.lock import locked
from .._files.sealed import MODEL, differing, plain
from .._training.loop import Stored, forget, has_lost_patience, stored_run
from ._encode import Split, check_reviews, official_split, random_split, stratified_split
from ._loss import fit, keys_of
from ._model import Recipe, check_recipe
from ._report import evaluate, leaders_report
from ._reviews import Reviews, check_source, digest, load_imdb
from ._store import FILE, load, load_report, save


CHECKPOINT = "checkpoint.safetensors"


def train_sentiment(
    out: str | Path,
    imdb: str | Path | None = None,
    recipe: Recipe | None = None,
    *,
    reviews: Reviews | None = None,
    unlabelled: Sequence[str] = (),
    seed: int = 0,
    split: Literal["official", "random", "stratified"] | None = None,
    patience: int | None = None,
    resume: bool | None = None,
    say: Callable[[str], None] = print_line,
) -> dict[str, Any]:
    """Train on reviews, choose the epoch on the validation part, evaluate once on the test part, and write the
    results to `out`.

    `checkpoint.safetensors` in `out` holds the last finished epoch. A killed run continues from the checkpoint, bit for
    bit, if the function is called again with the same arguments. A finished run is not repeated.

    **Arguments:**

    - `out`: The folder, which is created if it does not exist.
    - `imdb`: A source of `load_imdb`; None uses `reviews`, or synthetic reviews.
    - `recipe`: A `Recipe`; None is `Recipe()`.
    - `reviews`: Reviews of any kind, such as those of `load_reviews`.
    - `unlabelled`: Further texts for the training, without labels, as in `fit`. A repeated text is used once, and texts
        of the reviews, including those of the test part, are left out.
    - `seed`: The seed of the split and of all random numbers in training.
    - `split`: `"official"`, the split of the data; `"random"`, 70 % for training and 30 % for testing; or
        `"stratified"`, 80 % for training and 20 % for testing, with the same fraction of positive reviews in all parts.
        None is the split of the data, or `"stratified"` if the data have none. A tenth of the training part is set
        aside for validation, in whole films and texts.
    - `patience`: The number of epochs without a better validation accuracy after which training stops.
    - `resume`: True continues from a checkpoint, which must exist, False starts anew, and None continues if a
        checkpoint exists.
    - `say`: A function that receives each line of progress.

    **Returns:**

    The report that was written.

    **Raises:**

    - `ValueError` if the reviews cannot be read, the folder cannot be written, the folder contains a different run, or
        another process is writing to the folder.
    """
    recipe, folder = Recipe() if recipe is None else recipe, check_path(out, "out")
    check_recipe(recipe)
    if imdb is not None:
        check_source(imdb, "imdb")
    if reviews is not None:
        check_reviews(reviews, "reviews")
        if imdb is not None:
            raise ValueError(f"imdb must be None beside reviews, but it is {str(imdb)!r}; pass one of them.")
    unlabelled = tuple(check_sequence(unlabelled, "unlabelled", str, "texts", least=0))
    seed = check_integer(seed, "seed", least=0, most=2**32 - 1)
    if split is not None:
        check_choice(split, "split", ("official", "random", "stratified"))
    if patience is not None:
        patience = check_integer(patience, "patience", remedy="pass a number of epochs, or None")
    resume = None if resume is None else check_flag(resume, "resume")
    check_say(say)
    with locked(folder):
        return _train_in(folder, imdb, reviews, unlabelled, recipe, seed, split, patience, resume, say)


def _train_in(
    folder: Path,
    imdb: str | Path | None,
    reviews: Reviews | None,
    unlabelled: tuple[str, ...],
    recipe: Recipe,
    seed: int,
    split: str | None,
    patience: int | None,
    resume: bool | None,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Train in a folder that is locked."""
    checkpoint = folder / CHECKPOINT
    settings = {"imdb": None if imdb is None else Path(imdb).name, "split": split, "seed": seed, "patience": patience}
    # The name and the content of a file identify the data, so that a copy in another folder is the same data.
    settings |= {"recipe": recipe.record(), "data": digest(imdb if reviews is None else reviews)}
    settings["unlabelled"] = zlib.crc32("\0".join(unlabelled).encode("utf-8", "surrogatepass"))
    finished = _finished(folder, settings, resume)
    if finished is not None:
        log(f"done already, in {folder}; --fresh trains again")
        return finished
    if resume and not checkpoint.is_file():
        raise ValueError(f"resume must find {CHECKPOINT}, but {str(folder)!r} has none; leave --resume out.")
    FILE._replace(argument="out").refuse_stranger(folder / MODEL)
    key = jr.fold_in(jr.key(seed), 1)
    _refuse_another_seed(checkpoint, key, seed, resume)
    # The checkpoint has no data, so a resumed run reads and splits the reviews again.
    reviews = _load(imdb, log) if reviews is None else reviews
    parts = _parts(reviews, split, seed, log)
    further = tuple(dict.fromkeys(unlabelled))
    if further:
        labelled = frozenset(reviews.texts)
        further = tuple(text for text in further if text not in labelled)
        log(f"{len(further)} of {len(unlabelled)} unlabelled texts are used; the others are repeated, or reviews")
    # The checkpoint is deleted only after the reviews are read, so that a wrong name does not delete it.
    if resume is False:
        forget(checkpoint, "out")
    fitted = fit(
        parts.train, parts.validation, recipe, key=key, unlabelled=further, checkpoint=checkpoint, patience=patience,
        say=log,
    )  # fmt: skip
    report: dict[str, Any] = {"settings": settings, "best_epoch": fitted.best_epoch}
    report["reviews"] = {name: len(getattr(parts, name)) for name in ("train", "validation", "test")}
    report["unlabelled"] = len(further)
    evaluations = {name: evaluate(fitted, getattr(parts, name)) for name in ("validation", "test")}
    leaders = leaders_report(fitted, parts.test)
    report |= {name: evaluation.record() for name, evaluation in evaluations.items()} | {"leaders": leaders.record()}
    # The results are written before they are logged.
    save(fitted, folder, report)
    log(f"best epoch: {fitted.best_epoch}")
    for name, evaluation in evaluations.items():
        log(f"{name}: {evaluation}")
    log(str(leaders))
    log(f"model and report are in {folder}")
    return report


def _finished(folder: Path, settings: dict[str, Any], resume: bool | None) -> dict[str, Any] | None:
    """The report of a finished run with these settings; None if training must start or continue; raises a `ValueError`
    if the folder contains a different run.
    """
    if resume is False or not (folder / MODEL).is_file():
        return None
    checkpoint = folder / CHECKPOINT
    stored = stored_run(checkpoint)
    if checkpoint.is_file() and not (stored and _is_over(stored, settings["patience"])):
        return None
    # `load` raises if the finished model is damaged.
    load(folder)
    report = load_report(folder)
    recorded = report.get("settings") if isinstance(report, dict) else None
    differ = differing(recorded if isinstance(recorded, dict) else {}, plain(settings))
    # Other reviews get a separate message, since the name of the file may be unchanged.
    if list(differ) == ["data"]:
        raise ValueError(
            f"reviews must be those that the model in {str(folder)!r} was trained on, but they are others; choose "
            "another folder, or replace the model with --fresh."
        )
    if report is None or differ:
        raise ValueError(
            f"out must be a folder without another model, but {str(folder)!r} has one of other settings: "
            f"{_differences(differ)}; choose another, or replace it with --fresh."
        )
    return report


def _refuse_another_seed(checkpoint: Path, key: PRNGKeyArray, seed: int, resume: bool | None) -> None:
    """Raise a `ValueError` if the key in the checkpoint is not that of `seed`."""
    stored = stored_run(checkpoint)
    if resume is not False and stored is not None and stored[0].get("key") != jr.key_data(keys_of(key)[1]).tolist():
        raise ValueError(
            f"seed must be that of the run in {str(checkpoint.parent)!r}, but it is {seed}; pass that one, choose "
            "another folder, or train anew with --fresh."
        )


def _is_over(stored: Stored, patience: int | None) -> bool:
    """True if the run of a checkpoint has finished all epochs, or has stopped by its patience."""
    return stored[1] == stored[0].get("epochs") or has_lost_patience(*stored[1:], patience)


def _differences(differ: dict[str, tuple[Any, Any]]) -> str:
    """The differing settings as text, without digests."""
    names = [name for name in differ if name != "unlabelled" and (name != "data" or "imdb" not in differ)]
    parts = [f"{name} was {differ[name][0]}, now {differ[name][1]}" for name in names]
    # The settings hold a checksum of the texts.
    parts += ["the unlabelled texts were others"] if "unlabelled" in differ else []
    return ", ".join(parts) or "none are recorded"


def _load(imdb: str | Path | None, log: Callable[[str], None]) -> Reviews:
    if imdb is None:
        log("no reviews are given: these are made-up reviews, with sentiment words planted in them")
    try:
        reviews = load_imdb(imdb)
    except ValueError as error:
        # The argument of this function is called `imdb`, not `source`.
        if not str(error).startswith("source "):
            raise
        raise ValueError(f"imdb {str(error).removeprefix('source ')}") from error
    if len(np.unique(reviews.labels)) < 2:
        raise ValueError("imdb must hold reviews of both labels, but all have the same; name the whole data set.")
    return reviews


def _parts(reviews: Reviews, split: str | None, seed: int, log: Callable[[str], None]) -> Split:
    if split == "official" and reviews.split is None:
        raise ValueError(
            f"split must be 'random' or 'stratified' for reviews without a split, but it is {split!r}; pass one of "
            "these, or leave it out."
        )
    if split is None:
        split = "stratified" if reviews.split is None else "official"
        if split == "stratified":
            log(f"the reviews have no split: a random fifth of each label, with seed {seed}, is the test part")
    # The split uses fold_in(key, 0), and training uses fold_in(key, 1).
    key = jr.fold_in(jr.key(seed), 0)
    split_of = {"official": official_split, "random": random_split, "stratified": stratified_split}[split]
    parts = split_of(reviews, key=key)
    sizes = (len(part) for part in (parts.train, parts.validation, parts.test))
    log("{} reviews to train on, {} to choose the epoch, {} to test".format(*sizes))
    return parts
