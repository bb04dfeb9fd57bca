"""Does clustering grow with training? The script also installs the ALBERT of the package from the folder of a run.

`clusterjax train albert` writes snapshots of the weights at steps that double. For each snapshot the table has the mean
cosine of the tokens, the fraction of pairs with a cosine above 0.9 and the number of clusters at every level, over the
passages of the package, which no run has seen; the same numbers for the tokens in random order; and the held-out loss.

`RUN` is the folder of the run; without `RUN` the table is made from the numbers in the package. `--texts` takes the
files of the run in the same order. The loss of the network, all layers on whole rows, is then measured on all held-out
rows, on those of each file, and on the passages of the package, beside the loss of predicting by frequency.
(For the ALBERT of the package the files are the unlabelled reviews, the first 2,291 lines of the test part of
WikiText-2, and the documents of C4.) With `--install` the weights, configuration and tokenizer of the run, and the
numbers, become the data of the package.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers
from _harness import amend, header_of, options, report, say

from clusterjax import probe
from clusterjax._files.sealed import checksum
from clusterjax._training.corpus import pack, read_texts, set_aside, some_batches, tokenise
from clusterjax.probe.networks.bundled import BUNDLED, TEXTS
from clusterjax.probe.networks.train import Evaluate, Held, MaskedLoss, unigram_loss


FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
STATISTICS = ("cosine", "near_mass", "num_clusters")
COLUMNS = ["step", "held-out loss", "cosine, layer 0", "cosine, last layer", "shuffled, last layer", "clusters"]


def measured(run: Path, weights: Path) -> dict[str, list[float]]:
    """The statistics of every level, with these weights in the network of the run."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES[1:]:
            shutil.copy(run / name, folder)
        shutil.copy(weights, Path(folder) / FILES[0])
        model = probe.load(folder)
        texts = probe.encode(model, [text for text in probe.bundled_texts()], length=model.max_positions)
        fixed = model.tokenizer.all_special_ids
    shuffled = probe.shuffle_tokens(texts, jax.random.key(0), fixed)
    found = {"": probe.similarity_histograms(model, texts, rank=False),
             "shuffled ": probe.similarity_histograms(model, shuffled, rank=False)}  # fmt: skip
    out = {}
    for name, one in found.items():
        for statistic in STATISTICS:
            average = getattr(one, statistic)
            out[f"{name}{statistic}"] = np.round(average.mean, 6).tolist()
            out[f"{name}{statistic} error"] = np.round(average.error, 6).tolist()
    return out


def measured_run(run: Path) -> dict[str, Any]:
    """The record of a run that the package keeps: its report, its losses, and the statistics of its snapshots."""
    done, history = (header_of(run)[name] for name in ("report", "history"))
    pace, snapshots = done["recipe"]["epoch_steps"], []
    for path in sorted((run / "snapshots").glob("step-*.safetensors")):
        step = int(path.stem.removeprefix("step-"))
        loss = history[step // pace - 1]["held-out loss"] if step else None
        snapshots.append({"step": step, "held-out loss": loss} | measured(run, path))
        cosine = snapshots[-1]["cosine"]
        say(f"step {step}: mean cosine {cosine[0]:.3f} to {cosine[-1]:.3f}")
    kept = ("loss", "held-out loss", "held-out accuracy")
    rows = [{"step": (k + 1) * pace} | {name: round(row[name], 4) for name in kept} for k, row in enumerate(history)]
    return {"report": done, "history": rows, "snapshots": snapshots}


def losses(folder: Path, done: dict[str, Any], paths: list[Path]) -> dict[str, Any]:
    """The losses of the network in `folder` on texts outside its training, the share of each file in the training, and
    the expected share of the rows that the training read."""
    recipe = probe.AlbertRecipe(**done["recipe"] | {"stages": ()})
    size, length, words = recipe.batch_size, recipe.length, recipe.vocab_size
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / FILES[2]))
    files = [read_texts([path]) for path in paths]
    ends = np.cumsum([len(texts) for texts in files])
    aside = np.split(set_aside(int(ends[-1]), recipe.held_out, done["seed"]), ends[:-1])
    pairs = [list(zip(*both, strict=True)) for both in zip(files, aside, strict=True)]
    seen, held = (
        [tokenise(tokenizer, [text for text, one in pair if one == flag]) for pair in pairs] for flag in (False, True)
    )
    rows = pack(np.concatenate(seen), length)
    if (rows.size, rows.sum(dtype=np.int64)) != (done["word pieces"], done["sum"]):
        raise ValueError(f"texts must be {done['texts']}, those of the run in its order, but {paths} hold others.")
    parts = {"all": np.concatenate(held)} | {path.name: pieces for path, pieces in zip(paths, held, strict=True)}
    parts[TEXTS] = tokenise(tokenizer, probe.bundled_texts())
    model, loss = Held.of(probe.load(folder).network), MaskedLoss(words, recipe.share)
    key, found = jax.random.key(done["seed"]), {}
    for name, pieces in parts.items():
        batches = some_batches(pack(pieces, length), size)
        count = batches.shape[0] * batches.shape[1]
        found[name] = {"rows": count, "unigram loss": unigram_loss(rows, batches, words)}
        # If there are few rows, they are read several times with other tokens hidden, about 2,000 rows in all.
        measures = [Evaluate(batches, loss, jax.random.fold_in(key, draw))(model) for draw in range(-(-2000 // count))]
        found[name] |= {number: float(np.mean([one[number] for one in measures])) for number in measures[0]}
        say(f"{name}: {found[name]}")
    share = {path.name: len(pieces) / sum(map(len, seen)) for path, pieces in zip(paths, seen, strict=True)}
    drawn = 1 - (1 - recipe.epoch_steps * size / len(rows)) ** recipe.epochs  # each checkpoint draws among all rows
    return {"losses": found, "share of the word pieces": share, "expected share of the rows drawn": drawn}


def main() -> None:
    run = "run", {"type": Path, "nargs": "?", "help": "the folder of a finished run"}
    texts = "--texts", {"type": Path, "nargs": "+", "help": "the files of the run: measure its losses anew"}
    install = "--install", {"action": "store_true", "help": "make it the network of the package"}
    chosen = options(__doc__, "albert_training.json", run, texts, install)
    training = probe.bundled_training() if chosen.run is None else measured_run(chosen.run)
    done, snapshots = training["report"], training["snapshots"]
    if chosen.texts:
        training["measured anew"] = losses(chosen.run or BUNDLED, done, chosen.texts)
    rows = [
        {"step": one["step"], "held-out loss": one["held-out loss"], "cosine, layer 0": one["cosine"][0],
         "cosine, last layer": one["cosine"][-1], "shuffled, last layer": one["shuffled cosine"][-1],
         "clusters": one["num_clusters"][-1]}
        for one in snapshots
    ]  # fmt: skip
    stages = "; ".join(f"{layers} layers on {n} tokens until {share:.0%} of the steps"
                       for layers, n, share in done["recipe"]["stages"])  # fmt: skip
    findings = (
        f"Held-out loss {done['held-out loss']:.3f} nats, guessing by frequency {done['unigram loss']:.3f}.",
        f"Mean cosine after the last layer: {rows[0]['cosine, last layer']:.3f} before training, "
        f"{rows[-1]['cosine, last layer']:.3f} after it, {rows[-1]['shuffled, last layer']:.3f} with shuffled tokens.",
        f"All snapshots are measured at {done['recipe']['num_layers']} layers; they were trained with {stages}.",
    )
    if "measured anew" in training:
        anew = training["measured anew"]
        findings += tuple(
            f"{name}: {one['held-out loss']:.3f} nats on {one['rows']} rows, {one['held-out accuracy']:.1%} guessed "
            f"right, guessing by frequency {one['unigram loss']:.3f}."
            for name, one in anew["losses"].items()
        )
        shares = ", ".join(f"{share:.1%} {name}" for name, share in anew["share of the word pieces"].items())
        drawn = anew["expected share of the rows drawn"]
        findings += (f"Of the word pieces trained on: {shares}; about {drawn:.0%} of the rows were ever drawn.",)
    if chosen.install:
        if chosen.run is not None:
            for name in FILES[1:]:
                shutil.copy(chosen.run / name, BUNDLED)
        files = {name: checksum((BUNDLED / name).read_bytes()) for name in (*FILES[1:], TEXTS)}
        amend(chosen.run or BUNDLED, BUNDLED, training=training, files=files)
        say(f"installed in {BUNDLED}")
    report(rows, chosen.out, title="Clustering along the training of the ALBERT of the package", columns=COLUMNS,
           findings=findings, anew=chosen.run is not None, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
