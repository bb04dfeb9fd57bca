"""Whole runs and sweeps on an accelerator, each beside PyTorch: the parts of `accelerator.py` after the sums.

The PyTorch programs are written as a user writes them, and run eagerly: the published cell of the phase diagram, the
published step of the sentiment model, a batched Tsit5 in which each system has its own step size
(`_plain.torch_solve`), the transformer of `transformer_step.py`, and the Llama of transformers. The answers of both
libraries are checked against a reference in float64.
"""

from typing import Any, cast

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _card import Peer, check_no_host, launch_columns, measured
from _harness import Program, check, compiled, rows_of, say, sphere, timed
from _plain import solve, torch_solve
from _published_phase import BETA as PHASE_BETA, STEP, Cell, starts, steps_of, times_of

import clusterjax as cjx


# The distinct words of a review of sentiment_speed.py at these quantiles, and the size of its vocabulary.
QUANTILES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
LENGTHS, VOCABULARY = (3, 19, 29, 40, 55, 75, 118, 182, 204, 221, 250), 50_254
BETA, END, RTOL, ATOL = 9.0, 5.0, 1e-6, 1e-8


def phase_cells(n: int, systems: int, times: int, peer: Peer | None) -> list[dict]:
    """A row of the published phase diagram in d = 2; `median ms` is that of one of its cells."""
    from clusterjax.phase import Given, NormalisedEuler, PhaseDiagram

    ts = times_of(times)
    x0, steps = starts(systems, 2, n), steps_of(ts)

    def plain(x):
        def step(x, _):
            x = x + STEP * jax.nn.softmax(PHASE_BETA * x @ jnp.swapaxes(x, 1, 2), axis=2) @ x
            x = x / jnp.linalg.norm(x, axis=2, keepdims=True)
            pairs = jnp.sum(x @ jnp.swapaxes(x, 1, 2) > 0.999) - systems * n
            return x, pairs / (systems * n * (n - 1))

        return jax.lax.scan(step, x, length=steps[-1])[1]

    def row(x, ts, beta):
        return PhaseDiagram(Given(x), ts, integrator=NormalisedEuler(STEP))(beta)["close_pairs"]

    expected = np.asarray(jax.jit(plain)(x0))[np.asarray(steps) - 1]
    given = [jnp.asarray(part, jnp.float32) for part in (x0, ts, PHASE_BETA)]
    programs = [compiled("clusterjax", row, *given, count=times)]
    if peer is not None:
        cell = Cell(x0.astype(np.float32), PHASE_BETA, STEP, device=peer.device)
        programs.append(peer.program("as published", lambda: np.asarray(cell.row(steps)), count=times))
    return measured("cell of a phase diagram", programs, expected, 2e-3, profiled=True, dtype="float32", d=2, n=n,
                    systems=systems)  # fmt: skip


def end_of(x0, beta):
    """The tokens of one system at the end of a run with all defaults."""
    ts = jnp.asarray([0, END], x0.dtype)
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x0, ts).x1


def exact_ends(x0: np.ndarray, betas: np.ndarray) -> np.ndarray:
    """The ends of the first systems in float64, by plain jax and diffrax."""
    one = lambda x, beta: solve(x, beta, False, jnp.asarray([0, END]), dfx.Tsit5(), 1e-10).ys[-1]
    return np.asarray(jax.jit(jax.vmap(one))(x0.astype(np.float64), betas))


def adaptive(n: int, systems: int, peer: Peer | None) -> list[dict]:
    x0, few = sphere(systems * n, 3, np.float32).reshape(systems, n, 3), slice(8)
    betas = np.full(systems, BETA, np.float32)
    programs = [compiled("vmap(simulate)", jax.vmap(end_of), jnp.asarray(x0), jnp.asarray(betas))]
    if peer is not None:
        tokens = peer.tensor(x0)
        programs.append(peer.program("Tsit5", lambda: torch_solve(tokens, BETA, END, RTOL, ATOL)))
    return measured(f"adaptive run to t = {END:.0f}", programs, exact_ends(x0[few], betas[few]), 1e-3, profiled=True,
                    answer=lambda ends: ends[few], dtype="float32", d=3, n=n, systems=systems)  # fmt: skip


def swept(side: int, batch: int, peer: Peer | None) -> list[dict]:
    """`side` betas times `side` starts of 32 tokens by `sweep.run`, two batches in flight on each device.

    A sweep compiles in each run, so that its time includes the compilation; `compile s` is the time of a sweep of one
    batch.
    """
    from clusterjax import sweep

    betas = np.linspace(1, 9, side).astype(np.float32)
    x0 = sphere(side * 32, 3, np.float32).reshape(side, 32, 3)
    tokens, devices = jnp.asarray(x0), jax.devices() * 2

    def point(beta, start):
        return {"end": end_of(tokens[start], beta)}

    def run(count):
        axes = {"beta": betas[:count], "start": np.arange(side)}
        return sweep.run(point, axes, batch_size=batch, devices=devices, progress=False)["end"].to_numpy()

    compile_s = timed(lambda: run(max(1, batch // side)))[1]
    programs = [Program(f"sweep.run, {len(devices)} in flight", lambda: run(side), compile_s=compile_s)]
    if peer is not None:
        all_x, all_betas = (peer.tensor(part) for part in (np.tile(x0, (side, 1, 1)), np.repeat(betas, side)))

        def theirs():
            ends = [torch_solve(x, beta[:, None, None], END, RTOL, ATOL) for x, beta in zip(
                all_x.split(batch), all_betas.split(batch), strict=True)]  # fmt: skip
            return peer.torch.cat(ends).reshape(side, side, 32, 3)

        programs.append(peer.program("Tsit5", theirs))
    at, rows = np.arange(0, side, -(-side // 8)), []
    exact, labels = exact_ends(x0[at], betas[at]), {"dtype": "float32", "d": 3, "n": 32, "systems": side * side}
    for program in programs:
        ends, seconds = timed(program.run)
        program.error = check(
            program.name, np.asarray(ends.cpu() if hasattr(ends, "cpu") else ends)[at, at], exact, 1e-3
        )
        program.samples.append(seconds)
        rows.append({"what": f"sweep of {side * side:,} runs to t = {END:.0f}"} | labels | program.columns())
    return rows


def training_step(quick: bool, peer: Peer | None) -> list[dict]:
    from transformer_step import our_step, published_step

    from clusterjax import transformer

    small: Any = {"words": 256, "d": 32, "hidden": 64, "length": 16} if quick else {}
    recipe = transformer.LanguageRecipe(**small)
    model, shape = cast(transformer.LanguageModel, recipe.model(0)), (recipe.batch_size, recipe.length + 1)
    rows = np.random.default_rng(0).integers(0, recipe.words, shape).astype(np.int32)
    double = jax.tree.map(lambda a: a.astype(float) if jnp.issubdtype(jnp.result_type(a), jnp.inexact) else a, model)
    exact = eqx.filter_jit(transformer.language_loss)(double, jnp.asarray(rows))[0]
    programs = [our_step(model, rows)] + ([] if peer is None else [published_step(model, rows, peer.device)])
    last = lambda found: found[-1] if isinstance(found, tuple) else found
    for program in programs:  # only the first losses are compared, since later losses depend on the updated weights
        program.run = lambda run=program.run: last(run())
    return measured("training step", programs, float(exact), 1e-3, dtype="float32", d=recipe.d, n=recipe.length,
                    systems=recipe.batch_size)  # fmt: skip


def forward_pass(quick: bool, peer: Peer | None) -> list[dict]:
    """SmolLM2-135M's sizes with random weights, which need no file: 8 texts of 256 tokens."""
    from flax import nnx

    from clusterjax import probe

    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "intermediate_size", "num_hidden_layers")  # fmt: skip
    numbers = (256, 64, 4, 2, 16, 128, 2) if quick else (49_152, 576, 9, 3, 64, 1536, 30)
    config = dict(zip(names, numbers, strict=True)) | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}
    texts, n = (2, 32) if quick else (8, 256)
    network = probe.from_config(config | {"model_type": "llama"}, jax.random.key(0)).network
    form, state = nnx.split(network)
    sizes = network.sizes
    form64 = nnx.split(nnx.eval_shape(lambda: probe.Network(sizes, nnx.Rngs(0), dtype=jnp.float64)))[0]
    ids = jnp.asarray(np.random.default_rng(0).integers(3, sizes.vocab_size, (texts, n)), jnp.int32)
    run = lambda form: lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
    mask = jnp.ones(ids.shape, bool)
    exact = jax.jit(run(form64))(jax.tree.map(lambda a: a.astype(float), state), ids, mask)
    programs = [compiled("clusterjax", run(form), state, ids, mask)]
    if peer is not None:
        from language_forward import random_twin

        theirs, tokens = random_twin(peer.torch, network).to(peer.device), peer.tensor(np.asarray(ids, np.int64))
        with peer.torch.inference_mode():
            programs.append(peer.program("transformers", lambda: theirs(tokens).last_hidden_state))
    # transformers computes norms in float32 whatever the dtype: both are compared with our network in float64.
    return measured("forward pass, sizes of SmolLM2", programs, exact, 2e-4 * float(jnp.abs(exact).max()),
                    dtype="float32", d=sizes.hidden_size, n=n, systems=texts)  # fmt: skip


def hardmax_epoch(d: int, reviews: int, peer: Peer | None) -> list[dict]:
    """An epoch on random reviews of the lengths of the real ones; the published model is another, softmax at 0.001."""
    from sentiment_speed import BATCH, DEPTH, LENGTH, STEPS, gradient_error, our_epoch, published_step

    from clusterjax import sentiment

    rng = np.random.default_rng(0)
    lengths = np.interp(rng.random(reviews), QUANTILES, LENGTHS).astype(np.int32)
    filled = np.arange(256) < lengths[:, None]
    words = np.exp(rng.random(filled.shape) * np.log(VOCABULARY - 1)).astype(np.int32)  # the law of Zipf
    labels = rng.integers(0, 2, reviews).astype(np.int8)
    rows = np.arange(reviews, dtype=np.int32)
    encoded = sentiment.Encoded(np.where(filled, words, 0), filled.astype(np.int32), labels, lengths, rows)
    recipe, steps = sentiment.Recipe.of_dim(d), -(-reviews // BATCH)
    error = gradient_error(d)
    programs = [our_epoch(encoded, VOCABULARY, recipe.with_(drop=0.0), steps)]
    programs[0].error, text = error, programs[0].executable.as_text()
    check_no_host(programs[0].name, text)
    if peer is not None and reviews >= STEPS * BATCH:
        theirs = published_step(words[:, :LENGTH], labels, d, peer.device)
        programs.append(peer.program("published", theirs, STEPS / steps))
    say(f"the gradient differs from that of plain autodiff by {error:.1e}; {DEPTH} layers are published")
    found = rows_of(programs, budget_s=3.0, what=f"hardmax epoch of {reviews:,} reviews", dtype="float32", d=d, n=256,
                    systems=BATCH)  # fmt: skip
    return [found[0] | launch_columns(text), *found[1:]]
