"""What does a small causal language model learn: its loss beside baselines, and the clustering of tokens in training?

`clusterjax train language-model` writes snapshots at steps that double. For each snapshot the table has, over the
passages of the package, which no run has seen: the clustering of the tokens at each level, also for tokens in random
order, the attention of the heads to the first token, and the loss of the head applied to each level. With `--imdb` the
table also has the best sentiment detector among the neurons before and after training: the neuron is chosen on reviews
of the training part and scored on the test part.

`RUN` is the folder of the run; without `RUN` the table is made from the numbers in the package. With `--install` the
model, its tokenizer and the numbers become the data of the package.
"""

from pathlib import Path
from typing import Any

import numpy as np
from _harness import IMDB, amend, header_of, options, report, say

from clusterjax import probe, sentiment, transformer
from clusterjax._training.loop import stored_seconds
from clusterjax.transformer._language_model import BUNDLED


COLUMNS = ["step", "held-out loss", "lens loss, middle", "cosine, last layer", "shuffled, last layer",
           "strongest sink", "sentiment neuron"]  # fmt: skip
REVIEWS = 5000  # of each part
DIGITS = 6


def rows_of(tokenizer: Any, texts: list[str], length: int, *, end: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the first word pieces of each text, or of the last ones, and the mask of those that exist, (texts,
    length) each."""
    ids, there = np.zeros((len(texts), length), np.int32), np.zeros((len(texts), length), bool)
    for row, one in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        pieces = one.ids[-length:] if end else one.ids[:length]
        ids[row, : len(pieces)], there[row, : len(pieces)] = pieces, True
    return ids, there


def shuffled(ids: np.ndarray, there: np.ndarray) -> np.ndarray:
    """The tokens of each text in random order."""
    rng, out = np.random.default_rng(0), ids.copy()
    for row, mask in zip(out, there, strict=True):
        row[mask] = rng.permutation(row[mask])
    return out


def detected(model: Any, reviews: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The neuron of all layers that best separates reviews of the training part, scored on the test part."""
    layers = range(model.stack.num_layers)
    of_layers = lambda ids, there: [transformer.mean_activations(model, ids, there, layer=layer) for layer in layers]
    fired = {part: of_layers(ids, there) for part, (ids, there, _) in reviews.items()}
    detectors = [transformer.best_detector(values, reviews["train"][2]) for values in fired["train"]]
    layer = int(np.argmax([detector.accuracy for detector in detectors]))
    best = detectors[layer]
    right = best.predict(fired["test"][layer]) == reviews["test"][2]
    return {"layer": layer, "neuron": best.neuron, "train accuracy": best.accuracy, "sign": best.sign,
            "test accuracy": float(right.mean()), "area": float(best.area[best.neuron])}  # fmt: skip


def measured(model: Any, texts: tuple[np.ndarray, np.ndarray], reviews: Any) -> dict[str, Any]:
    """The numbers of one snapshot."""
    ids, there = texts
    out: dict[str, Any] = {}
    profile = transformer.depth_profile(model, ids, there).statistics()
    other = transformer.depth_profile(model, shuffled(ids, there), there).statistics()
    for prefix, one, names in (("", profile, profile), ("shuffled ", other, ("cosine", "near"))):
        for name in names:
            for what, values in zip(("", " error"), one[name], strict=True):
                out[f"{prefix}{name}{what}"] = np.round(np.asarray(values, float), DIGITS).tolist()
    return out | ({"sentiment neuron": detected(model, reviews)} if reviews else {})


def measured_run(run: Path, imdb: Path | None) -> dict[str, Any]:
    """The record of a run that the package keeps: its report, its losses, and the numbers of its snapshots."""
    done, history = (header_of(run)[name] for name in ("report", "history"))
    pace, length = done["recipe"]["epoch_steps"], done["recipe"]["length"]
    tokenizer = transformer.load_tokenizer(run)
    texts = rows_of(tokenizer, probe.bundled_texts(), length)
    reviews = {}
    if imdb is not None:
        every = sentiment.load_imdb(imdb)
        for part in ("train", "test"):
            at = np.random.default_rng(1).permutation(np.flatnonzero(np.asarray(every.split) == part))[:REVIEWS]
            read = rows_of(tokenizer, [every.texts[i].replace("<br />", " ") for i in at], length, end=True)
            reviews[part] = (*read, np.asarray(every.labels)[at].astype(bool))
    snapshots = []
    paths = sorted((run / "snapshots").glob("step-*"))
    for path in paths:
        step = int(path.name.removeprefix("step-"))
        loss = history[step // pace - 1]["held-out loss"] if step else None
        found = measured(transformer.load(path), texts, reviews if path in (paths[0], paths[-1]) else None)
        snapshots.append({"step": step, "held-out loss": loss} | found)
        say(f"step {step}: lens {found['loss']}, cosine {found['cosine']}, {found.get('sentiment neuron')}")
    kept = ("loss", "held-out loss", "held-out accuracy")
    rows = [{"step": (k + 1) * pace} | {name: round(row[name], 4) for name in kept} for k, row in enumerate(history)]
    seconds = round(sum(stored_seconds(run / "checkpoint.safetensors")), 1)
    return {"report": done | {"seconds": seconds}, "history": rows, "snapshots": snapshots}


def main() -> None:
    run = "run", {"type": Path, "nargs": "?", "help": "the folder of a finished run"}
    install = "--install", {"action": "store_true", "help": "make it the model of the package"}
    chosen = options(__doc__, "language_training.json", run, (IMDB[0], IMDB[1] | {"default": None}), install)
    training = transformer.bundled_training() if chosen.run is None else measured_run(chosen.run, chosen.imdb)
    done, snapshots = training["report"], training["snapshots"]
    rows = [
        {"step": one["step"], "held-out loss": one["held-out loss"],
         "lens loss, middle": one["loss"][len(one["loss"]) // 2], "cosine, last layer": one["cosine"][-1],
         "shuffled, last layer": one["shuffled cosine"][-1], "strongest sink": float(np.max(one["sink"])),
         "sentiment neuron": one.get("sentiment neuron", {}).get("test accuracy")}
        for one in snapshots
    ]  # fmt: skip
    findings = (
        f"Held-out loss {done['held-out loss']:.3f} nats a word piece ({done['held-out accuracy']:.1%} guessed right); "
        f"by the word before (Kneser-Ney) {done['bigram loss']:.3f}, by frequency {done['unigram loss']:.3f}.",
        f"{done['steps']} steps, {done['word pieces seen'] / 1e6:.1f} of {done['word pieces'] / 1e6:.1f} million word "
        f"pieces, {done['parameters'] / 1e6:.2f} million parameters, {done['seconds'] / 60:.1f} minutes.",
        f"Mean cosine after the last layer: {rows[0]['cosine, last layer']:.3f} before training, "
        f"{rows[-1]['cosine, last layer']:.3f} after it, {rows[-1]['shuffled, last layer']:.3f} with shuffled tokens.",
    )
    neurons = [one["sentiment neuron"] for one in snapshots if "sentiment neuron" in one]
    if neurons:
        first, last = neurons[0], neurons[-1]
        findings += (
            f"Sentiment: one neuron (layer {last['layer'] + 1}, number {last['neuron']}) tells {REVIEWS} test reviews "
            f"apart, by their last {done['recipe']['length']} word pieces, with {last['test accuracy']:.1%}; the best "
            f"before training {first['test accuracy']:.1%}.",
        )
    if chosen.install:
        amend(chosen.run or BUNDLED, BUNDLED, training=training)
        say(f"installed in {BUNDLED}")
    report(rows, chosen.out, title="A small language model along its training", columns=COLUMNS, findings=findings,
           anew=chosen.run is not None, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
