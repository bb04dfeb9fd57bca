"""How long do a forward pass, a training step and a continuation of the language model take, beside plain PyTorch?

The sizes are those of the default recipe. The PyTorch model has the same weights and is written in the usual way, with
embeddings, `layer_norm`, causal `scaled_dot_product_attention`, linear layers and the tied head. Both models are first
compared with PyTorch in float64. A training step consists of loss, gradient and AdamW, with the AdamW of each library.

The decomposition of the stream, `residual_stream`, is timed beside a forward pass and beside a simple alternative: one
forward pass without each head and each feed-forward layer. (The alternative includes the effect of a part on later
parts, so that the results differ and are not compared.)
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _harness import Program, check, compiled, options, report, rows_of, say

from clusterjax import transformer
from clusterjax.transformer import LanguageModel, LanguageRecipe


COLUMNS = ["what", "rows", "tokens", "method", "threads", "seconds", "best s", "IQR/median", "repeats", "compile s",
           "over PyTorch", "error"]  # fmt: skip
try:
    import torch
    from torch.nn import functional as F
except ImportError:  # without PyTorch this benchmark has no comparison
    torch = F = None


class Twin:
    """The same model in PyTorch, its parameters in a dictionary."""

    def __init__(self, model: LanguageModel, dtype: Any, device: str = "cpu"):
        blocks = model.stack.blocks
        attention, forward = blocks.attention, blocks.feed_forward
        layers, heads, d, k = attention.query.shape
        flat = lambda weights: np.asarray(weights).transpose(0, 1, 3, 2).reshape(layers, heads * k, d)
        arrays = {
            "embedding": model.embedding,
            "positions": model.positions.table,  # pyright: ignore[reportAttributeAccessIssue]
            "query": flat(attention.query), "key": flat(attention.key), "value": flat(attention.value),
            "output": np.asarray(attention.output).reshape(layers, heads * k, d).transpose(0, 2, 1),
            "w_in": np.asarray(forward.w_in).transpose(0, 2, 1), "w_out": np.asarray(forward.w_out).transpose(0, 2, 1),
            "bias_in": forward.bias_in, "bias_out": forward.bias_out,
            "gain": model.stack.norm.gain, "bias": model.stack.norm.bias,
        }  # fmt: skip
        for number, norm in enumerate(blocks.norms):
            arrays |= {f"gain{number}": norm.gain, f"bias{number}": norm.bias}
        assert np.allclose(attention.beta, k**-0.5), "as scaled_dot_product_attention has it"
        self.sizes = layers, heads, d, k
        given = {"dtype": dtype, "device": device, "requires_grad": True}
        self.p = {name: torch.tensor(np.array(array), **given) for name, array in arrays.items()}

    def __call__(self, ids: Any) -> Any:
        (layers, heads, d, k), p = self.sizes, self.p
        n = ids.shape[1]
        x = p["embedding"][ids] + p["positions"][:n]
        split = lambda y: y.reshape(*y.shape[:2], heads, k).transpose(1, 2)
        for layer in range(layers):
            y = F.layer_norm(x, (d,), p["gain0"][layer], p["bias0"][layer])
            q, key, v = (split(F.linear(y, p[name][layer])) for name in ("query", "key", "value"))
            mixed = F.scaled_dot_product_attention(q, key, v, is_causal=True).transpose(1, 2)
            x = x + F.linear(mixed.reshape(*y.shape[:2], heads * k), p["output"][layer])
            y = F.layer_norm(x, (d,), p["gain1"][layer], p["bias1"][layer])
            y = F.gelu(F.linear(y, p["w_in"][layer], p["bias_in"][layer]), approximate="tanh")
            x = x + F.linear(y, p["w_out"][layer], p["bias_out"][layer])
        return F.linear(F.layer_norm(x, (d,), p["gain"], p["bias"]), p["embedding"])

    def loss(self, rows: Any) -> Any:
        logits = self(rows[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))


def checked(what: str, rows: np.ndarray, programs: list[Program], expected: Any, timing: dict[str, Any]) -> list[dict]:
    """The rows of programs, whose last result is first compared with `expected`."""
    for program in programs:
        found = np.asarray(jax.tree_util.tree_leaves(program.run())[-1])
        program.error = check(program.name, found, expected, 1e-4 * float(np.abs(expected).max()))
    return measured(what, rows, programs, timing)


def forward_rows(model: LanguageModel, rows: np.ndarray, timing: dict[str, Any]) -> list[dict[str, Any]]:
    theirs, exact = Twin(model, torch.float32), Twin(model, torch.float64)
    ids = torch.from_numpy(rows[:, :-1].astype(np.int64))
    ours = compiled("clusterjax", lambda m, r: jax.vmap(m)(r), model, jnp.asarray(rows[:, :-1]))
    with torch.inference_mode():
        programs = [Program("PyTorch", lambda: theirs(ids).numpy()), ours]
        return checked("forward pass", rows, programs, exact(ids).numpy(), timing)


def published_step(model: LanguageModel, rows: np.ndarray, device: str = "cpu") -> Program:
    """A training step in PyTorch, which returns its loss to the host."""
    theirs = Twin(model, torch.float32, device)
    batch = torch.from_numpy(rows.astype(np.int64)).to(device)
    optimiser = torch.optim.AdamW(theirs.p.values(), lr=1e-4)

    def published() -> float:
        optimiser.zero_grad()
        loss = theirs.loss(batch)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return Program("PyTorch", published)


def our_step(model: LanguageModel, rows: np.ndarray) -> Program:
    params, fixed = eqx.partition(model, eqx.is_inexact_array)
    adam = optax.adamw(1e-4)

    def step(params, state, batch):
        of = lambda p: transformer.language_loss(eqx.combine(p, fixed), batch)[0]
        loss, gradient = jax.value_and_grad(of)(params)
        updates, state = adam.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    return compiled("clusterjax", step, params, adam.init(params), jnp.asarray(rows))


def training_rows(model: LanguageModel, rows: np.ndarray, timing: dict[str, Any]) -> list[dict[str, Any]]:
    exact = Twin(model, torch.float64).loss(torch.from_numpy(rows.astype(np.int64)))
    programs = [published_step(model, rows), our_step(model, rows)]
    return checked("training step", rows, programs, np.asarray(float(exact.detach())), timing)


def stream_rows(model: LanguageModel, rows: np.ndarray, timing: dict[str, Any]) -> list[dict[str, Any]]:
    ids = jnp.asarray(rows[0, :-1])
    layers, heads = model.stack.num_layers, model.stack.block(0).attention.num_heads

    def without(model, ids):
        """The last stream without each head, and without each feed-forward layer."""

        def one(layer, head):
            at_head = jnp.arange(heads) == head
            keep = jnp.where((jnp.arange(layers) == layer)[:, None] & at_head[None], 0.0, 1.0)
            forward = jnp.where((jnp.arange(layers) == layer) & (head == heads), 0.0, 1.0)
            parts = lambda m: (m.stack.blocks.attention.output, m.stack.blocks.feed_forward.w_out)
            output, w_out = parts(model)
            less = eqx.tree_at(parts, model, (output * keep[:, :, None, None], w_out * forward[:, None, None]))
            return less.stack.scan(lambda block, x, _: (block(x), None), less.embed(ids))[0]

        return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(jnp.arange(layers), jnp.arange(heads + 1))

    programs = [
        compiled("leave one out", without, model, ids),
        compiled("forward pass alone", lambda m, i: m.stack.levels(m.embed(i))[-1], model, ids),
        compiled("residual_stream", transformer.residual_stream, model, ids),
    ]
    last = model.stack.levels(model.embed(ids))[-1]
    total = transformer.residual_stream(model, ids).total
    programs[-1].error = check("residual_stream", total, last, 1e-5 * float(jnp.abs(last).max()))
    return measured("stream taken apart", rows[:1], programs, timing)


def measured(what: str, rows: np.ndarray, programs: list[Program], timing: dict[str, Any]) -> list[dict[str, Any]]:
    sizes = {"rows": len(rows), "tokens": rows.shape[1] - 1, "threads": torch.get_num_threads()}
    found = rows_of(programs, what=what, **sizes, **timing)
    base = found[0]["seconds"] if found[0]["method"] == "PyTorch" else None
    return [row | {"over PyTorch": base and row["seconds"] / base} for row in found]


def main() -> None:
    chosen = options(__doc__, "transformer_step.json")
    if torch is None:
        say("torch is not installed; there is nothing to compare with")
        return
    recipe = LanguageRecipe(words=256, d=32, hidden=64, length=16) if chosen.quick else LanguageRecipe()
    timing = {"repeats": 3, "budget_s": 3.0} if chosen.quick else {"repeats": 30, "budget_s": 40.0}
    model = recipe.model(0)
    shape = (recipe.batch_size, recipe.length + 1)
    rows = np.random.default_rng(0).integers(0, recipe.words, shape).astype(np.int32)
    found = forward_rows(model, rows, timing) + training_rows(model, rows, timing) + stream_rows(model, rows, timing)
    by = {(row["what"], row["method"]): row["seconds"] for row in found}
    apart = by["stream taken apart", "residual_stream"]
    findings = (
        f"Forward pass: {by['forward pass', 'clusterjax'] / by['forward pass', 'PyTorch']:.2f} of PyTorch's time; "
        f"training step: {by['training step', 'clusterjax'] / by['training step', 'PyTorch']:.2f}.",
        f"The stream taken apart costs {apart / by['stream taken apart', 'forward pass alone']:.1f} forward passes; "
        f"leaving out each part in turn {by['stream taken apart', 'leave one out'] / apart:.1f} times as much.",
    )
    report(found, chosen.out, title="A small language model, step by step", columns=COLUMNS, best="seconds",
           group=("what",), findings=findings, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
