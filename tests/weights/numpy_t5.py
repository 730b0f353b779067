"""T5 in NumPy, float64, written from the paper and Hugging Face's names of weights."""

import numpy as np


def made_up_weights(
    seed=0,
    *,
    gated=True,
    tied=False,
    vocab_size=384,
    dtype="float32",
    own_biases=False,
    layers=(2, 1),
):
    """A tiny T5 under Hugging Face's names: 2 + 1 layers, 2 heads of 3, d_model 8.

    `own_biases`: each layer has a position bias, as umT5's. Without layers in the
    decoder it is an encoder alone.
    """
    rng = np.random.default_rng(seed)
    d_model, inner, d_ff, heads = 8, 6, 10, 2
    weights = {"shared.weight": rng.normal(size=(vocab_size, d_model))}
    if not tied and layers[1]:
        weights["lm_head.weight"] = rng.normal(size=(vocab_size, d_model))

    def matrix(name, rows, columns):
        weights[f"{name}.weight"] = rng.normal(size=(rows, columns)) * columns**-0.5

    def norm(name):
        weights[f"{name}.weight"] = 1 + 0.3 * rng.normal(size=d_model)

    for stack, number in zip(("encoder", "decoder"), layers, strict=True):
        if not number:
            continue
        kinds = ["SelfAttention", "EncDecAttention", "DenseReluDense"]
        if stack == "encoder":
            kinds.remove("EncDecAttention")
        for block in range(number):
            for place, kind in enumerate(kinds):
                layer = f"{stack}.block.{block}.layer.{place}"
                norm(f"{layer}.layer_norm")
                if kind == "DenseReluDense":
                    for name in ("wi_0", "wi_1") if gated else ("wi",):
                        matrix(f"{layer}.{kind}.{name}", d_ff, d_model)
                    matrix(f"{layer}.{kind}.wo", d_model, d_ff)
                    continue
                for name in "qkv":
                    matrix(f"{layer}.{kind}.{name}", inner, d_model)
                matrix(f"{layer}.{kind}.o", d_model, inner)
            if own_biases or block == 0:
                bias = f"{stack}.block.{block}.layer.0.SelfAttention"
                bias = f"{bias}.relative_attention_bias.weight"
                weights[bias] = rng.normal(size=(32, heads))
        norm(f"{stack}.final_layer_norm")
    return {name: x.astype(dtype) for name, x in weights.items()}


def logits(weights, inputs, targets, *, scaled=False, heads=2):
    """The logits of target tokens, or without targets the encoder's output.

    Args:
        weights: as `made_up_weights` gives.
        inputs, targets: int `[batch, length]`; 0 is padding of the inputs. `targets`
            may be None.
        scaled: bool, whether the decoder's output is scaled by d_model ** -0.5.

    Returns:
        float64 `[batch, targets, vocab_size]`, or `[batch, inputs, d_model]`.
    """
    w = {name: np.asarray(x, "float64") for name, x in weights.items()}
    table = w["shared.weight"]
    real = (inputs != 0)[:, None, None, :]

    def norm(name, x):
        x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)
        return x * w[f"{name}.weight"]

    def attend(name, x, memory, allowed, bias):
        def split(kind, x):
            y = x @ w[f"{name}.{kind}.weight"].T
            return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

        scores = split("q", x) @ split("k", memory).transpose(0, 1, 3, 2) + bias
        scores = np.where(allowed, scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        y = (scores @ split("v", memory)).transpose(0, 2, 1, 3)
        return y.reshape(*y.shape[:2], -1) @ w[f"{name}.o.weight"].T

    def feed_forward(name, x):
        if f"{name}.wi.weight" in w:
            hidden = np.maximum(x @ w[f"{name}.wi.weight"].T, 0)
        else:
            g = x @ w[f"{name}.wi_0.weight"].T
            g = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
            hidden = g * (x @ w[f"{name}.wi_1.weight"].T)
        return hidden @ w[f"{name}.wo.weight"].T

    def bias(stack, block, length):
        name = "layer.0.SelfAttention.relative_attention_bias.weight"
        if (own := f"{stack}.block.{block}.{name}") in w:
            name = own
        else:
            name = f"{stack}.block.0.{name}"
        offsets = np.arange(length)[None] - np.arange(length)[:, None]
        bucket = np.vectorize(lambda n: _bucket(int(n), stack == "encoder"))
        return w[name][bucket(offsets)].transpose(2, 0, 1)[None]

    def run(stack, x, allowed, encoded=None):
        block = 0
        while f"{stack}.block.{block}.layer.0.layer_norm.weight" in w:
            layer = f"{stack}.block.{block}.layer"
            own = bias(stack, block, x.shape[1])
            y = norm(f"{layer}.0.layer_norm", x)
            x = x + attend(f"{layer}.0.SelfAttention", y, y, allowed, own)
            last = 1
            if encoded is not None:
                y = norm(f"{layer}.1.layer_norm", x)
                x = x + attend(f"{layer}.1.EncDecAttention", y, encoded, real, 0)
                last = 2
            y = norm(f"{layer}.{last}.layer_norm", x)
            x = x + feed_forward(f"{layer}.{last}.DenseReluDense", y)
            block += 1
        return norm(f"{stack}.final_layer_norm", x)

    encoded = run("encoder", table[inputs], real)
    if targets is None:
        return encoded
    length = targets.shape[1]
    before = np.pad(targets, [(0, 0), (1, 0)])[:, :-1]
    causal = np.tril(np.ones((length, length), bool))
    decoded = run("decoder", table[before], causal, encoded)
    if scaled:
        decoded = decoded * decoded.shape[-1] ** -0.5
    return decoded @ w.get("lm_head.weight", w["shared.weight"]).T.astype("float64")


def _bucket(offset, bidirectional):
    """The bucket of 32 of `key position - query position`, up to distance 128."""
    buckets, base = 32, 0
    if bidirectional:
        buckets //= 2
        base = buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    grown = np.log(distance / exact) / np.log(128 / exact) * (buckets - exact)
    return base + min(exact + int(grown), buckets - 1)
