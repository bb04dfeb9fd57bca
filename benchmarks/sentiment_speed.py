"""How long does an epoch of 35,000 reviews take, beside the published model, and how fast is inference?

The published model is rewritten in PyTorch from its description: an embedding of 121,296 words, eight layers of softmax
attention at temperature 0.001 over 128 positions including padding, a mean, a linear map, Adam, clipping at 5, and
batches of 64. Some steps of this model are timed in turn with the epochs of clusterjax, and their time is multiplied.
The model of clusterjax is trained through the hardmax on the same reviews: each word once with its count, in three
widths, without and with the token dropout of the recipe. The gradient is first checked against plain autodiff in
float64. Inference is timed from ids, and the conversion of texts to ids separately.

`--imdb PATH` names the reviews.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _harness import IMDB, Program, check, measure, options, report, rows_of, say, timed

from clusterjax import sentiment
from clusterjax._training.loop import Batches, _epoch, _State
from clusterjax.sentiment._loss import _Loss


WORDS, LENGTH, BATCH, DEPTH, STEPS = 121_296, 128, 64, 8, 12
COLUMNS = ["question", "d", "method", "seconds", "best s", "IQR/median", "repeats", "times faster", "reviews a second"]


def published_step(ids: np.ndarray, labels: np.ndarray, d: int, device: str = "cpu"):
    """A function that makes `STEPS` steps of the published training."""
    import torch

    torch.manual_seed(0)
    embedding, linear = torch.nn.Embedding(WORDS, d).to(device), torch.nn.Linear(d, 1).to(device)
    alpha = torch.nn.Parameter(torch.rand((), device=device))
    parameters = [*embedding.parameters(), *linear.parameters(), alpha]
    adam, loss = torch.optim.Adam(parameters, lr=1e-3), torch.nn.BCELoss()
    rows = torch.from_numpy(ids[: STEPS * BATCH].astype(np.int64)).to(device).split(BATCH)
    goals = torch.from_numpy(labels[: STEPS * BATCH].astype(np.float32)).to(device).split(BATCH)

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


def our_epoch(encoded, words: int, recipe, steps: int) -> Program:
    """An epoch of `fit` as the trainer compiles it, whose time is scaled to `steps` batches."""
    model = sentiment.start(encoded, words, recipe, key=jax.random.key(0))
    parts = tuple((jnp.asarray(p.ids), jnp.asarray(p.counts, jnp.float32), jnp.asarray(p.labels, jnp.float32))
                  for p in encoded.buckets())  # fmt: skip
    batches = Batches(parts, recipe.batch_size)
    optimiser = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(1e-3, b2=0.99, weight_decay=0.0))
    params, fixed = eqx.partition(model, eqx.is_inexact_array)
    state, loss = _State(params, optimiser.init(params), params), _Loss(recipe.drop, recipe.label_smoothing)
    key, most = jax.random.key(1), jnp.asarray(batches.steps)
    given, how = (state, fixed, batches, key, most), {"loss": loss, "optimiser": optimiser}
    program, seconds = timed(lambda: _epoch.lower(*given, **how).compile())
    run = lambda: jax.block_until_ready(program(*given, **how))
    name, count = f"clusterjax, drop {recipe.drop}", batches.steps / steps
    return Program(name, run, count, compile_s=seconds, executable=program.compiled)


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
    """The error of the gradient against autodiff in float64, relative to the largest entry; raises if it is large."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        ids = jnp.asarray(np.stack([rng.permutation(500)[:64] for _ in range(16)]))
        counts = jnp.asarray((np.arange(64) < rng.integers(1, 65, (16, 1))) * rng.integers(1, 4, (16, 64)), float)
        model = sentiment.HardmaxClassifier(rng.normal(size=(500, d)), rng.normal(size=d), 0.1, 1.3)
        ours = jax.grad(lambda m: jnp.sum(jnp.tanh(m.logits(ids, counts))))(model)
        plain = jax.grad(lambda m: jnp.sum(jnp.tanh(plain_logits(m, ids, counts))))(model)
        pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True)
        return max(check("gradient", a / jnp.max(jnp.abs(b)), b / jnp.max(jnp.abs(b)), 1e-12) for a, b in pairs)


def training_rows(encoded, ids, labels, words: int, d: int) -> list[dict]:
    say(f"training, d = {d}: gradient against autodiff {gradient_error(d):.1e}")
    recipe, steps = sentiment.Recipe.of_dim(d), -(-len(encoded) // BATCH)
    ours = [our_epoch(encoded, words, recipe.with_(drop=drop), steps) for drop in (0.0, recipe.drop)]
    theirs = Program("published, PyTorch", published_step(ids, labels, d), STEPS / steps)
    rows = rows_of([theirs, *ours], repeats=7, budget_s=120.0, question=f"epoch of {len(encoded):,} reviews", d=d)
    return [row | {"times faster": theirs.median / row["seconds"], "reviews a second": len(encoded) / row["seconds"]}
            for row in rows]  # fmt: skip


def answer_row(question: str, d: int | None, name: str, run, reviews: int, repeats: int) -> dict:
    program = measure(Program(name, run), repeats=repeats)
    return {"question": question, "d": d} | program.columns() | {"reviews a second": reviews / program.median}


def main() -> None:
    chosen = options(__doc__, "sentiment_speed.json", IMDB)
    split = sentiment.random_split(sentiment.load_imdb(chosen.imdb), key=jax.random.key(0), validation=0.0)
    train = split.train
    if chosen.quick:
        train = sentiment.Reviews(train.texts[:2000], train.labels[:2000])
    vocabulary = sentiment.Vocabulary.build(train.texts, sentiment.TextOptions(), min_count=3)
    encoded, size = sentiment.encode_reviews(train, vocabulary), vocabulary.size
    ids, _ = vocabulary.encode_many(train.texts[: STEPS * BATCH], length=LENGTH)
    rows, found = [], []
    for d, goal in ((2, 12), (16, 5)):
        rows += training_rows(encoded, ids, train.labels, size, d)
        found.append(f"Goal: an epoch at least {goal} times faster than the published model at d = {d}. Measured "
                     f"{rows[-2]['times faster']:.1f} times without token dropout, "
                     f"{rows[-1]['times faster']:.1f} with it.")  # fmt: skip
    answers = []
    for d in (2, 16):
        model = sentiment.start(encoded, size, sentiment.Recipe.of_dim(d), key=jax.random.key(0))
        run = lambda model=model: [sentiment.predict_logits(model, p.ids, p.counts) for p in encoded.buckets()]
        answers.append(answer_row("ids to logits", d, "clusterjax", run, len(encoded), 7))
    texts = train.texts[:5000]
    encode = lambda: vocabulary.encode_many(texts)
    answers.append(answer_row("text to ids", None, "clusterjax, one core", encode, len(texts), 5))
    found.append("Goal: at least 20,000 reviews a second from ids at d = 2. Measured "
                 f"{answers[0]['reviews a second']:,.0f}.")  # fmt: skip
    found.append("Goal: at least 5,000 reviews a second from text to ids. Measured "
                 f"{answers[-1]['reviews a second']:,.0f}.")  # fmt: skip
    report([*rows, *answers], chosen.out, title="Speed of the sentiment model", columns=COLUMNS,
           group=("question", "d"), findings=tuple(found), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
