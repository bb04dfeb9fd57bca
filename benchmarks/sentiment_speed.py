"""How long is an epoch of 35,000 reviews, beside the published model, and how fast are answers?

The published model is written anew in PyTorch from its description: an embedding of 121,296 words, eight layers of
softmax attention at temperature 0.001 over 128 positions, padding included, mean, linear, Adam, clipping at 5, batches
of 64. Some of its steps are timed in turn with our epochs, and multiplied. Ours trains through the hardmax on the same
reviews: each word once with its count, in three widths, without and with the token dropout of the recipe. The gradient
is first checked against plain autodiff in float64. Inference is from ids, and from text to ids.

`--imdb PATH` names the reviews.
"""

import argparse
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
from _harness import HERE, Program, check, interleave, measure, report, say

from clusterjax import sentiment
from clusterjax._training.loop import Batches, _epoch, _State
from clusterjax.sentiment._loss import _Loss


IMDB = HERE.parent.parent / "shared" / "data" / "imdb" / "imdb50k.csv.gz"
WORDS, LENGTH, BATCH, DEPTH, STEPS = 121_296, 128, 64, 8, 12
COLUMNS = ["question", "d", "method", "seconds", "best s", "IQR/median", "repeats", "times faster", "reviews a second"]


def published_step(ids: np.ndarray, labels: np.ndarray, d: int):
    """A function that makes `STEPS` steps of the published training."""
    import torch

    torch.manual_seed(0)
    embedding, linear = torch.nn.Embedding(WORDS, d), torch.nn.Linear(d, 1)
    alpha = torch.nn.Parameter(torch.rand(()))
    parameters = [*embedding.parameters(), *linear.parameters(), alpha]
    adam, loss = torch.optim.Adam(parameters, lr=1e-3), torch.nn.BCELoss()
    rows = torch.from_numpy(ids[: STEPS * BATCH].astype(np.int64)).split(BATCH)
    goals = torch.from_numpy(labels[: STEPS * BATCH].astype(np.float32)).split(BATCH)

    def steps():
        for batch, goal in zip(rows, goals, strict=True):
            adam.zero_grad()
            x = embedding(batch)
            for _ in range(DEPTH):
                x = (x + torch.softmax(torch.bmm(x, x.mT) / 0.001, dim=2) @ (alpha * x)) / (1 + alpha)
            loss(torch.sigmoid(linear(x.mean(1))).squeeze(1), goal).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 5.0)
            adam.step()

    return steps


def our_epoch(encoded, words: int, recipe) -> tuple[Program, int]:
    """One epoch of `fit`, compiled."""
    model = sentiment.start(encoded, words, recipe, key=jax.random.key(0))
    parts = tuple((jnp.asarray(p.ids), jnp.asarray(p.counts, jnp.float32), jnp.asarray(p.labels, jnp.float32))
                  for p in encoded.buckets())  # fmt: skip
    batches = Batches(parts, recipe.batch_size)
    optimiser = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(1e-3, b2=0.99, weight_decay=0.0))
    params, fixed = eqx.partition(model, jtu.tree_map(eqx.is_inexact_array, model))
    state = _State(params, optimiser.init(params), params)
    loss = _Loss(recipe.drop, recipe.label_smoothing)

    def run():
        jax.block_until_ready(_epoch(state, fixed, batches, jax.random.key(1), loss=loss, optimiser=optimiser))

    begin = time.perf_counter()
    run()
    return Program(f"clusterjax, drop {recipe.drop}", run, compile_s=time.perf_counter() - begin), batches.steps


def plain_logits(model, ids, counts):
    """The model by plain autodiff: argmax, gather, einsum."""
    share = model.alpha / (1 + model.alpha)
    z, total = model.embedding[ids][:, :, 0, :], model.v
    for _ in range(model.depth):
        scores = jnp.where((counts > 0)[:, None, :], jnp.einsum("bid,bjd->bij", z, z), -1e30)
        z = z + share[0] * (jnp.take_along_axis(z, jnp.argmax(scores, axis=2)[:, :, None], axis=1) - z)
    mean = jnp.einsum("bn,bnd->bd", counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1), z)
    return total + mean @ model.w[0]


def gradient_error(d: int) -> float:
    """Our derivative against autodiff in float64, relative to the largest; raises where they differ."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        ids = jnp.asarray(np.stack([rng.permutation(500)[:64] for _ in range(16)]))
        counts = jnp.asarray((np.arange(64) < rng.integers(1, 65, (16, 1))) * rng.integers(1, 4, (16, 64)), float)
        model = sentiment.HardmaxClassifier(rng.normal(size=(500, d)), rng.normal(size=d), 0.1, 1.3)
        ours = jax.grad(lambda m: jnp.sum(jnp.tanh(m.logits(ids, counts))))(model)
        plain = jax.grad(lambda m: jnp.sum(jnp.tanh(plain_logits(m, ids, counts))))(model)
        pairs = zip(jtu.tree_leaves(ours), jtu.tree_leaves(plain), strict=True)
        return max(check("gradient", a / jnp.max(jnp.abs(b)), b / jnp.max(jnp.abs(b)), 1e-12) for a, b in pairs)


def training_rows(reviews: int, encoded, ids, labels, words: int, d: int) -> list[dict]:
    say(f"training, d = {d}: gradient against autodiff {gradient_error(d):.1e}")
    recipe = sentiment.Recipe.of_dim(d)
    ours = [our_epoch(encoded, words, recipe.with_(drop=drop)) for drop in (0.0, recipe.drop)]
    theirs = Program("published, PyTorch", published_step(ids, labels, d))
    interleave([theirs, *(program for program, _ in ours)], repeats=7, budget_s=120.0)
    scale = -(-reviews // BATCH) / STEPS
    theirs.samples = [sample * scale for sample in theirs.samples]
    rows = []
    for program, scaled in ((theirs, 1.0), *((program, -(-reviews // BATCH) / steps) for program, steps in ours)):
        program.samples = [sample * scaled for sample in program.samples]
        row = {"question": f"epoch of {reviews:,} reviews", "d": d, "method": program.name}
        rows.append(row | timed(program, reviews) | {"times faster": theirs.median / program.median})
    return rows


def inference_row(encoded, words: int, d: int) -> dict:
    model = sentiment.start(encoded, words, sentiment.Recipe.of_dim(d), key=jax.random.key(0))
    buckets = encoded.buckets()
    run = lambda: [sentiment.predict_logits(model, part.ids, part.counts) for part in buckets]
    run()
    program = measure(Program(f"logits, d = {d}", run), repeats=7)
    row = {"question": "ids to logits", "d": d, "method": "clusterjax"}
    return row | timed(program, len(encoded))


def text_row(texts, vocabulary) -> dict:
    program = measure(Program("text to ids", lambda: vocabulary.encode_many(texts)), repeats=5)
    return {"question": "text to ids", "d": None, "method": "clusterjax, one core"} | timed(program, len(texts))


def timed(program: Program, reviews: int) -> dict:
    return {"seconds": program.median, "best s": program.best, "IQR/median": program.spread,
            "repeats": len(program.samples), "reviews a second": reviews / program.median}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imdb", type=Path, default=IMDB, help="the 50,000 reviews")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sentiment_speed.json")
    chosen = parser.parse_args()
    everything = sentiment.load_imdb(chosen.imdb)
    split = sentiment.random_split(everything, key=jax.random.key(0), validation=0.0)
    vocabulary = sentiment.Vocabulary.build(split.train.texts, sentiment.TextOptions(), min_count=3)
    encoded = sentiment.encode_reviews(split.train, vocabulary)
    ids, _ = vocabulary.encode_many(split.train.texts[: STEPS * BATCH], length=LENGTH)
    rows = []
    for d in (2, 16):
        rows += training_rows(len(encoded), encoded, ids, split.train.labels, vocabulary.size, d)
    rows += [inference_row(encoded, vocabulary.size, d) for d in (2, 16)]
    rows.append(text_row(split.train.texts[:5000], vocabulary))
    found = []
    for d, goal in ((2, 12), (16, 5)):
        _, plain, recipe = (row for row in rows if row["d"] == d and row["question"].startswith("epoch"))
        found.append(f"Goal: an epoch at least {goal} times faster than the published model at d = {d}. Measured "
                     f"{plain['times faster']:.1f} times without token dropout, "
                     f"{recipe['times faster']:.1f} with it.")  # fmt: skip
    found.append(
        f"Goal: at least 20,000 reviews a second from ids at d = 2. Measured {rows[6]['reviews a second']:,.0f}."
    )
    found.append(
        f"Goal: at least 5,000 reviews a second from text to ids. Measured {rows[-1]['reviews a second']:,.0f}."
    )
    report(rows, chosen.out, title="Speed of the sentiment model", columns=COLUMNS, best=None,
           group=("question", "d"), findings=tuple(found))  # fmt: skip


if __name__ == "__main__":
    main()
