"""How few bytes does a trained classifier need to keep its accuracy? The script also installs runs in the package.

`--run DIR` is a folder that `clusterjax train sentiment --imdb REVIEWS --out DIR` wrote. Each row stores the model in
another way, with the embedding in fewer bits or without rare words, and is scored on the validation part, on which the
epoch was chosen. The test part decides nothing: only the files that are shipped are scored on the test part, once.

`--install NAME` writes the model, compact, into the package as `d2` or `heads`, together with the accuracy, the leaders
and the strongest words, all measured on the written file. `--imdb PATH` names the reviews.
"""

import datetime
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import IMDB, amend, options, report, say

from clusterjax import sentiment
from clusterjax.experiments.figures.sentiment_leaders import count
from clusterjax.experiments.shared.sentiment import LENGTH, trained_shipped
from clusterjax.sentiment._loss import log_ratio
from clusterjax.sentiment._released import DEFAULT, NAMES, SHIPPED


BITS = ("float32", "float16", "bfloat16", "8 bits")
RARER = (10, 20, 50)
COLUMNS = ["model", "storage", "words", "arrays MB", "words MB", "words packed MB", "validation accuracy",
           "answers changed"]  # fmt: skip
STRONGEST = 40


def split_of(imdb: Path, seed: int) -> sentiment.Split:
    """The parts of the run, which `train_sentiment` made with the same key."""
    reviews = sentiment.load_imdb(imdb)
    return sentiment.official_split(reviews, key=jax.random.fold_in(jax.random.key(seed), 0))


def rounded(embedding: np.ndarray, bits: str) -> tuple[np.ndarray, int]:
    """The embedding after rounding to `bits`, and the number of bytes of each entry."""
    if bits == "8 bits":
        # A scale for each head and dimension: the largest is 127.
        scale = np.abs(embedding).max(axis=0, keepdims=True) / 127
        return (np.round(embedding / scale) * scale).astype(np.float32), 1
    dtype = jnp.dtype(bits)
    return np.asarray(jnp.asarray(embedding).astype(dtype).astype(jnp.float32)), dtype.itemsize


def stored(fitted: sentiment.Fitted, bits: str, least: int) -> tuple[sentiment.Fitted, int]:
    """The model with the words that occur at least `least` times, rounded to `bits`, and the bytes of its arrays."""
    # Words are sorted by frequency, so that the kept words come first. A whole vocabulary also has the negations that
    # no review of the training part contains.
    counts = fitted.vocabulary.counts
    kept = sum(seen >= least for seen in counts) if least > fitted.recipe.min_count else len(counts)
    words, counts = fitted.vocabulary.words[:kept], fitted.vocabulary.counts[:kept]
    vocabulary = sentiment.Vocabulary(words, counts, fitted.vocabulary.options)
    embedding, size = rounded(np.asarray(fitted.model.embedding)[: vocabulary.size], bits)
    model = eqx.tree_at(lambda tree: tree.embedding, fitted.model, jnp.asarray(embedding))
    return (
        sentiment.Fitted(model, vocabulary, fitted.recipe, fitted.history, fitted.best_epoch),
        size * embedding.size,
    )


def rows_of(name: str, fitted: sentiment.Fitted, validation: sentiment.Reviews) -> list[dict]:
    rows, whole = [], fitted.logits(validation.texts)
    least = fitted.recipe.min_count
    for bits, seen in [*((bits, least) for bits in BITS), *(("float16", seen) for seen in RARER)]:
        model, size = stored(fitted, bits, seen)
        logits = model.logits(validation.texts)
        right = sentiment.accuracy(logits, validation.labels)
        changed = float(np.mean((logits > 0) != (whole > 0)))
        plain, packed = len(model.vocabulary._content()), len(model.vocabulary._packed())
        rows.append({
            "model": name, "storage": bits if seen == least else f"{bits}, seen {seen} times",
            "words": model.vocabulary.size, "arrays MB": size / 1e6, "words MB": plain / 1e6,
            "words packed MB": packed / 1e6, "accuracy": right, "validation accuracy": f"{right:.4f}",
            "answers changed": f"{changed:.4f}",
        })  # fmt: skip
        say(f"{name}, {rows[-1]['storage']}: {right:.4f}, {changed:.4f} of the answers changed")
    return rows


def strongest(fitted: sentiment.Fitted) -> dict[str, list]:
    """The words with the largest absolute logit of a review that consists of this word alone."""
    w = np.asarray(fitted.model.w, np.float64)
    alone = np.einsum("nhd,hd->n", np.asarray(fitted.model.embedding, np.float64), w) + float(fitted.model.v)
    order = np.argsort(alone[2:], kind="stable") + 2
    names = ("<pad>", "<unk>", *fitted.vocabulary.words)
    seen = (0, 0, *fitted.vocabulary.counts)
    listed = lambda rows: [[names[i], round(float(alone[i]), 3), seen[i]] for i in rows]
    return {"positive": listed(order[::-1][:STRONGEST]), "negative": listed(order[:STRONGEST])}


def install(name: str, run: Path, fitted: sentiment.Fitted, parts: sentiment.Split) -> None:
    """Write the model into the package, read it again, and write the numbers that are measured on the written file."""
    folder, trained = SHIPPED / name, sentiment.load_report(run) or {}
    sentiment.save(fitted, folder, compact=True)
    shipped = sentiment.load(folder)
    say(f"measuring {folder.name}")
    found = {
        "settings": trained["settings"], "best_epoch": fitted.best_epoch, "reviews": trained["reviews"],
        "trained": datetime.date.today().isoformat(), "in float32": trained["test"],
        "validation": sentiment.evaluate(shipped, parts.validation).record(),
        "test": sentiment.evaluate(shipped, parts.test).record(),
        "leaders": sentiment.leaders_report(shipped, parts.test).record(), "strongest": strongest(shipped),
    }  # fmt: skip
    sentiment.save(fitted, folder, found, compact=True)
    if name == DEFAULT:
        seen = sentiment.encode_reviews(parts.train, shipped.vocabulary, length=shipped.recipe.length)
        ratio = log_ratio(seen, shipped.vocabulary.size, shipped.recipe.smoothing)
        record = {"reviews": sum(trained["reviews"].values()), "words": LENGTH}
        record |= {"counted": count(trained_shipped(parts.test)).record()}
        amend(folder, folder, {"log_ratio": ratio.astype(np.float16)}, leaders=record)
    size = sum(file.stat().st_size for file in folder.iterdir())
    say(f"installed in {folder.name}: {size / 1e6:.2f} MB, test {found['test']['accuracy']:.4f}")


def main() -> None:
    run = "--run", {"type": Path, "required": True, "help": "what clusterjax train sentiment wrote"}
    name = "--name", {"choices": NAMES, "required": True, "help": "what the model is called"}
    install_ = "--install", {"action": "store_true", "help": "make it the classifier of the package of this name"}
    chosen = options(__doc__, "sentiment_shipped.json", run, IMDB, name, install_)
    fitted, trained = sentiment.load(chosen.run), sentiment.load_report(chosen.run) or {}
    parts = split_of(chosen.imdb, trained["settings"]["seed"])
    rows = []
    if chosen.out.exists():
        rows = [row for row in json.loads(chosen.out.read_text())["rows"] if row["model"] != chosen.name]
    anew = not rows
    rows = sorted([*rows, *rows_of(chosen.name, fitted, parts.validation)], key=lambda row: row["model"])
    findings = [
        f"{name}: float16 changes {row['answers changed']} of the answers, and takes "
        f"{row['arrays MB'] + row['words packed MB']:.2f} MB with its words packed."
        for name in NAMES for row in rows if row["model"] == name and row["storage"] == "float16"
    ]  # fmt: skip
    if chosen.install:
        install(chosen.name, chosen.run, fitted, parts)
    report(rows, chosen.out, title="The same classifier in less room, on validation reviews", columns=COLUMNS,
           group=("model",), findings=tuple(findings), anew=anew, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
