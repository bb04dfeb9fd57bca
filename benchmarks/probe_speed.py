"""How much faster are the measurements of a network than the published ways, on the same weights and texts?

Head correlations of four texts, the batch of the published script, and similarity histograms of one text are measured
in the trained ALBERT of ../shared/data (or with random weights of base size if it is absent). They start either from
the maps and states that PyTorch has returned, or from token ids, in which case the time includes the forward pass.
Spectra of all heads are measured at the sizes of albert-base and albert-xlarge with random weights; the published way
with (d, d) matrices is timed for one head, and its time multiplied by the number of heads. All computations are in
float32, except that NumPy correlates, and clusterjax computes eigenvalues, in float64.

The error of correlations is the difference from the published correlations. The error of histograms is the largest
difference of the cumulative distributions from NumPy's in the same bins, or of the means if the bins differ. The error
of spectra is the distance to the nearest published eigenvalue, relative to the largest eigenvalue.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, called, check, interleave, options, ratio, report, say, timed, torch_or_none
from _networks import BASE, XLARGE, cores, full_texts, random_model, run_twin, trained_model, twin
from _published_probes import all_cosines, head_correlations, head_spectra, same_bins, similarity_histograms

from clusterjax import probe
from clusterjax.probe.measures.heads import correlate


PUBLISHED, EQUAL = "published, PyTorch and NumPy", "PyTorch and NumPy, our bins"
GOAL = 50
COLUMNS = ["question", "network", "method", "seconds", "best s", "IQR/median", "repeats", "compile s", "times faster",
           "error"]  # fmt: skip


def rows_of(question: str, network: str, programs: list[Program], errors: list[float | None]) -> list[dict]:
    """A row for each program; the first is the published one."""
    labels = {"question": question, "network": network}
    return [labels | program.columns() | {"times faster": ratio(programs[0], program), "error": error}
            for program, error in zip(programs, errors, strict=True)]  # fmt: skip


def in_turn(states: Any, analyse: Any, ours: list[Program], *, rounds: int, repeats: int) -> tuple[Any, list[Program]]:
    """The result of the published way, and its times without and with the computation of the states; the programs of
    clusterjax are timed in turn with it."""
    theirs = [Program(PUBLISHED, analyse), Program(PUBLISHED, analyse)]
    for _ in range(rounds):
        given, states_s = timed(states)
        found, analyse_s = timed(lambda given=given: analyse(given))
        theirs[0].samples.append(analyse_s)
        theirs[1].samples.append(states_s + analyse_s)
        interleave(ours, repeats=repeats)
    say(f"{PUBLISHED}: {theirs[0].median:.3g} s, with the forward pass {theirs[1].median:.3g} s")
    return found, theirs


def correlation_rows(model: probe.Model, texts: probe.Encoded, name: str, whole: bool, rounds: int) -> list[dict]:
    say(f"head correlations, {name}")
    theirs = twin(model, "eager")
    attentions = lambda: [
        layer.numpy() for layer in run_twin(theirs, texts.token_ids, output_attentions=True).attentions
    ]
    maps, mask, of_layer = [jnp.asarray(layer) for layer in attentions()], jnp.asarray(texts.mask), jax.jit(correlate)
    # An encoder allows all pairs of words.
    mask = mask[:, :, None] & mask[:, None, :]
    ours = [called("clusterjax", lambda: [of_layer(layer, mask) for layer in maps])]
    if whole:
        ours.append(called("clusterjax, with clusters of heads", probe.head_correlations, model, texts))
    loops = lambda maps: np.stack([head_correlations(layer) for layer in maps])
    expected, published = in_turn(attentions, loops, ours, rounds=rounds, repeats=1)
    error = check("correlations of maps", np.mean(ours[0].run(), axis=1), expected, 1e-5)
    rows = rows_of("head correlations, given the maps", name, [published[0], ours[0]], [None, error])
    if whole:
        error = check("correlations of ids", ours[1].run().correlation.mean, expected, 1e-4)
        rows += rows_of("head correlations, from token ids", name, [published[1], ours[1]], [None, error])
    return rows


def of_equal_bins(levels: list[Any], edges: np.ndarray) -> np.ndarray:
    """The density of the pairs i < j of each level by NumPy."""
    squares = [np.asarray(level).reshape(int(np.sqrt(len(level))), -1) for level in levels]
    pairs = np.clip([square[np.triu_indices(len(square), 1)] for square in squares], -1, 1)
    return np.stack([np.histogram(row, bins=edges, density=True)[0] for row in pairs])


def of_counts(hidden: list[Any], edges: np.ndarray) -> np.ndarray:
    """The density from the counts of the faster way, after the pairs i = i are subtracted."""
    counts = np.array(same_bins(hidden, edges), float)
    for count, level in zip(counts, all_cosines(hidden), strict=True):
        n = int(np.sqrt(len(level)))
        count -= np.histogram(level[:: n + 1], bins=edges)[0]
    return counts / (counts.sum(axis=1, keepdims=True) * np.diff(edges))


def distribution_error(name: str, density: np.ndarray, expected: np.ndarray, edges: np.ndarray) -> float:
    cumulate = lambda rows: np.cumsum(rows * np.diff(edges), axis=-1)
    return check(name, cumulate(density), cumulate(expected), 2e-4)


def mean_error(histograms: list[tuple], cosine: np.ndarray, n: int) -> float:
    """The largest difference of the means of the published histograms, without the pairs i = i, from clusterjax."""
    means = np.array([np.sum(h * np.diff(e) * (e[1:] + e[:-1]) / 2) for h, e in histograms])
    return check("published histograms", (means * n - 1) / (n - 1), cosine, 5e-3)


def similarity_rows(model: probe.Model, text: probe.Encoded, name: str) -> list[dict]:
    say(f"similarity histograms, {name}")
    theirs, n = twin(model, "sdpa"), text.token_ids.shape[1]
    states = lambda: [level[0] for level in run_twin(theirs, text.token_ids, output_hidden_states=True).hidden_states]
    hidden = states()
    stacked = jnp.asarray(np.stack(hidden))[None]
    ours = [
        called("clusterjax, with clusters of tokens", lambda: probe.similarity_of_hidden(stacked, rank=False)),
        called("clusterjax, with clusters and rank", probe.similarity_of_hidden, stacked),
        called("clusterjax, with clusters of tokens", lambda: probe.similarity_histograms(model, text, rank=False)),
    ]
    found = [program.run() for program in ours]
    edges = found[0].edges
    equal = [Program(EQUAL, lambda: same_bins(hidden, edges)), Program(EQUAL, lambda: same_bins(states(), edges))]
    histograms, published = in_turn(states, similarity_histograms, [*equal, *ours], rounds=1, repeats=3)
    expected = of_equal_bins(all_cosines(hidden), edges)
    errors = [distribution_error(p.name, f.density.mean, expected, edges) for p, f in zip(ours, found, strict=True)]
    of_equal = distribution_error(EQUAL, of_counts(hidden, edges), expected, edges)
    of_mean = mean_error(histograms, found[0].cosine.mean, n)
    given, whole = [published[0], equal[0], *ours[:2]], [published[1], equal[1], ours[2]]
    return [
        *rows_of("similarity, given the states", name, given, [of_mean, of_equal, *errors[:2]]),
        *rows_of("similarity, from token ids", name, whole, [of_mean, of_equal, errors[2]]),
    ]


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance from an eigenvalue that is not near zero to the nearest of the others."""
    gaps, large = np.abs(found[:, None] - expected[None, :]), 1e-3
    one, other = (np.abs(values) > large * np.abs(expected).max() for values in (found, expected))
    return max(gaps[one].min(axis=1).max(), gaps[:, other].min(axis=0).max()) / np.abs(expected).max()


def spectra_rows(config: dict, name: str) -> list[dict]:
    import torch

    say(f"spectra, {name}")
    model = random_model(config, depth=1)
    sizes, heads = model.network.sizes, model.num_heads
    prefix = "encoder.albert_layer_groups.0.albert_layers.0.attention."
    tensors = probe.tensors(model.network)
    matrices = [torch.tensor(tensors[f"{prefix}{part}.weight"]).T for part in ("query", "key", "value", "dense")]
    one_head = lambda: head_spectra(matrices, 0, sizes.hidden_size // heads)
    (of_value, of_form), seconds = timed(one_head)
    ours = probe.value_spectra(model)
    error = max(
        check("spectrum of V", apart(ours.value[0, 0], of_value), 0, 1e-4),
        check("spectrum of B", apart(ours.query_key[0, 0], of_form), 0, 1e-4),
    )
    theirs = Program(f"{PUBLISHED}, one head of {heads}", one_head, 1 / heads, samples=[seconds * heads])
    programs = [theirs, called("clusterjax, all heads", probe.value_spectra, model, compiles=False)]
    # A program that takes half a minute for one head is not repeated.
    interleave(programs if seconds < 3 else programs[1:], repeats=5)
    return rows_of("spectra of all heads of a layer", name, programs, [None, error])


def findings(rows: list[dict]) -> list[str]:
    """The goals and the results."""
    ours, found = {}, []
    for row in rows:
        if row["method"].startswith("clusterjax"):
            ours.setdefault((row["question"], row["network"]), row)  # the first way that answers a question
    for (question, network), row in ours.items():
        what, times = f"{question.capitalize()}, {network}", f"{row['times faster']:.0f} times"
        if question.startswith("spectra"):
            goal = "Goal: under 1 s. " if network.startswith("albert-xlarge") else ""
            found.append(f"{goal}{what}: {row['seconds']:.2f} s, {times} faster.")
        else:
            missed = "" if row["times faster"] >= GOAL else ", missed"
            goal = f"Goal of {GOAL} times{missed}. " if "given" in question else "With the forward pass: "
            found.append(f"{goal}{what}: {times}.")
    return [*found, f"All methods had {cores()} of {os.cpu_count()} cores."]


def main() -> None:
    chosen = options(__doc__, "probe_speed.json")
    if torch_or_none() is None:
        return
    depth, length = (2, 64) if chosen.quick else (12, 512)
    model = trained_model(depth)
    texts = full_texts(model, 4, length)
    name = f"{'albert-plbert' if model.folder else 'albert-base, random'}, {depth} layers, {model.num_heads} heads"
    rows = correlation_rows(model, texts, name, True, rounds=3)
    rows += similarity_rows(model, probe.Encoded(*(part[:1] for part in texts)), name)
    if not chosen.quick:
        large = random_model(XLARGE, 2)
        texts, name = full_texts(large, 4, length), "albert-xlarge, random, 2 layers, 16 heads"
        rows += correlation_rows(large, texts, name, False, rounds=3)
    rows += spectra_rows(BASE, "albert-base, random")
    if not chosen.quick:
        rows += spectra_rows(XLARGE, "albert-xlarge, random")
    report(rows, chosen.out, title=f"Measuring a network, texts of {length} tokens", columns=COLUMNS, best="seconds",
           group=("question", "network"), findings=tuple(findings(rows)), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
