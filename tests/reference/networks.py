"""Layers of ALBERT, BERT, T5, GPT-2 and Llama, word by word and number by number, from tensors named as in PyTorch."""

import math

import numpy as np

from tests.reference import transformer


def linear(x, weight, bias=None):
    """The products of each row of x with the rows of `weight`, plus the bias."""
    out = np.zeros((len(x), len(weight)))
    for i in range(len(x)):
        for a in range(len(weight)):
            shift = 0.0 if bias is None else float(bias[a])
            out[i, a] = shift + math.fsum(float(weight[a][b]) * float(x[i][b]) for b in range(len(x[i])))
    return out


def layer_norm(x, weight, bias, eps):
    return np.array([transformer.layer_norm(row, weight, bias, eps) for row in x])


def rms_norm(x, weight, eps):
    out = np.zeros(x.shape)
    for i, row in enumerate(x):
        square = math.fsum(v * v for v in row) / len(row)
        for a, v in enumerate(row):
            out[i, a] = v / math.sqrt(square + eps) * weight[a]
    return out


def act(name, v):
    if name == "relu":
        return max(v, 0.0)
    if name == "silu":
        return v / (1 + math.exp(-v))
    if name == "gelu":
        return v * (1 + math.erf(v / math.sqrt(2))) / 2
    return transformer.gelu(v)


def bent(name, x):
    """`act` of every entry."""
    return np.vectorize(lambda v: act(name, v))(x)


def maps(tensors, prefix, eps):
    """The affine map, and the layer norm, of a name below `prefix`."""

    def map_(name, y):
        return linear(y, tensors[f"{prefix}{name}.weight"], tensors.get(f"{prefix}{name}.bias"))

    def norm(name, y):
        return layer_norm(y, tensors[f"{prefix}{name}.weight"], tensors[f"{prefix}{name}.bias"], eps)

    return map_, norm


def attention(query, key, value, heads, scale, word, bias=None, back=None):
    """The mean values of each word's attention, heads side by side, and the weights; rows of padding are zero.

    A word sees `back` tokens, of which it is the last itself; without `back` it sees all, also later ones.
    """
    n, size = len(query), query.shape[1] // heads
    out, weights = np.zeros((n, heads * size)), np.zeros((heads, n, n))
    for h in range(heads):
        part = range(h * size, (h + 1) * size)
        for i in range(n):
            if not word[i]:
                continue
            seen = [j for j in range(n) if word[j] and (back is None or i - back < j <= i)]
            score = {j: scale * math.fsum(query[i, a] * key[j, a] for a in part) for j in seen}
            if bias is not None:
                score = {j: score[j] + bias[h][i][j] for j in seen}
            top = max(score.values())
            total = math.fsum(math.exp(score[j] - top) for j in seen)
            for j in seen:
                weights[h, i, j] = math.exp(score[j] - top) / total
                for a in part:
                    out[i, a] += weights[h, i, j] * value[j, a]
    return out, weights


def albert_layer(x, tensors, prefix, heads, word, activation, eps):
    """x after one layer, and its attention, (heads, n, n)."""
    map_, norm = maps(tensors, prefix, eps)
    query, key, value = (map_(f"attention.{name}", x) for name in ("query", "key", "value"))
    out, weights = attention(query, key, value, heads, 1 / math.sqrt(x.shape[1] / heads), word)
    x = norm("attention.LayerNorm", x + map_("attention.dense", out))
    return norm("full_layer_layer_norm", x + map_("ffn_output", bent(activation, map_("ffn", x)))), weights


def t5_bucket(distance, buckets, furthest):
    """The bucket of the distance from the attending token to the attended token, by whole numbers only."""
    half = buckets // 2
    first = half // 2
    side, r = (half if distance > 0 else 0), abs(distance)
    if r < first:
        return side + r
    k = 0
    while k + 1 < half - first and r ** (half - first) * first ** (k + 1) >= furthest ** (k + 1) * first ** (
        half - first
    ):
        k += 1
    return side + first + k


def t5_bias(n, table, buckets, furthest):
    """The bias of each head for each pair of places, (heads, n, n)."""
    heads = len(table[0])
    return [
        [[float(table[t5_bucket(j - i, buckets, furthest)][h]) for j in range(n)] for i in range(n)]
        for h in range(heads)
    ]


def t5_block(x, tensors, prefix, heads, word, bias, activation, gated, eps, normed=True):
    """x after one block, and its attention, (heads, n, n); the norms are left out unless `normed`."""
    get = lambda name: tensors[f"{prefix}{name}.weight"]
    norm = lambda x, name: rms_norm(x, get(name), eps) if normed else x
    y = norm(x, "layer.0.layer_norm")
    query, key, value = (linear(y, get(f"layer.0.SelfAttention.{name}")) for name in "qkv")
    out, weights = attention(query, key, value, heads, 1.0, word, bias)
    x = x + linear(out, get("layer.0.SelfAttention.o"))
    y = norm(x, "layer.1.layer_norm")
    wide = bent(activation, linear(y, get("layer.1.DenseReluDense.wi_0" if gated else "layer.1.DenseReluDense.wi")))
    if gated:
        wide = wide * linear(y, get("layer.1.DenseReluDense.wi_1"))
    return x + linear(wide, get("layer.1.DenseReluDense.wo")), weights


def llama_frequency(a, size, rope):
    """The angle by which pair a of the entries of a head turns from one place to the next."""
    frequency = rope["rope_theta"] ** (-2 * a / size)
    if rope["rope_type"] == "linear":
        return frequency / rope["factor"]
    if rope["rope_type"] == "llama3":
        low, high, length = (
            rope[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        )
        wave = 2 * math.pi / frequency
        if wave > length / low:
            return frequency / rope["factor"]
        if wave >= length / high:
            smooth = (length / wave - low) / (high - low)
            return (1 - smooth) * frequency / rope["factor"] + smooth * frequency
    return frequency


def rotated(x, size, rope):
    """Turns each row of x, heads of this size side by side, by its place."""
    out, half = np.zeros(x.shape), size // 2
    for i, row in enumerate(x):
        for first in range(0, len(row), size):
            for a in range(half):
                angle, (u, v) = i * llama_frequency(a, size, rope), (row[first + a], row[first + half + a])
                out[i, first + a] = u * math.cos(angle) - v * math.sin(angle)
                out[i, first + half + a] = v * math.cos(angle) + u * math.sin(angle)
    return out


def llama_block(x, tensors, prefix, heads, shared, word, back, rope, activation, eps):
    """x after one block, and its attention, (heads, n, n); each word sees `back` words, of which it is the last."""
    map_, _ = maps(tensors, prefix, eps)
    y = rms_norm(x, tensors[f"{prefix}input_layernorm.weight"], eps)
    query, key, value = (map_(f"self_attn.{name}_proj", y) for name in "qkv")
    size = query.shape[1] // heads
    query, key = rotated(query, size, rope), rotated(key, size, rope)
    # Each head of keys and values serves the same number of consecutive heads of queries.
    columns = [h // (heads // shared) * size + a for h in range(heads) for a in range(size)]
    out, weights = attention(query, key[:, columns], value[:, columns], heads, size**-0.5, word, back=back)
    x = x + map_("self_attn.o_proj", out)
    y = rms_norm(x, tensors[f"{prefix}post_attention_layernorm.weight"], eps)
    wide = bent(activation, map_("mlp.gate_proj", y)) * map_("mlp.up_proj", y)
    return x + map_("mlp.down_proj", wide), weights


def bert_layer(x, tensors, prefix, heads, word, activation, eps):
    """x after one layer, and its attention, (heads, n, n)."""
    map_, norm = maps(tensors, prefix, eps)
    query, key, value = (map_(f"attention.self.{name}", x) for name in ("query", "key", "value"))
    out, weights = attention(query, key, value, heads, 1 / math.sqrt(x.shape[1] / heads), word)
    x = norm("attention.output.LayerNorm", x + map_("attention.output.dense", out))
    return norm("output.LayerNorm", x + map_("output.dense", bent(activation, map_("intermediate.dense", x)))), weights


def gpt2_block(x, tensors, prefix, heads, word, activation, eps, scale):
    """x after one block, and its attention, (heads, n, n); the scores are multiplied by `scale`."""
    # The inputs are the rows of these weights; vectors are their own transposes.
    map_, norm = maps({name: tensor.T for name, tensor in tensors.items()}, prefix, eps)
    d, all_three = x.shape[1], map_("attn.c_attn", norm("ln_1", x))
    query, key, value = (all_three[:, k * d : (k + 1) * d] for k in range(3))
    out, weights = attention(query, key, value, heads, scale, word, back=math.inf)
    x = x + map_("attn.c_proj", out)
    return x + map_("mlp.c_proj", bent(activation, map_("mlp.c_fc", norm("ln_2", x)))), weights
