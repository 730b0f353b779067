"""BERT in NumPy, float64, by its paper and Hugging Face's names of weights."""

import json
import math

import numpy as np
from safetensors.numpy import save_file

SIZES = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##able", "##s"]
PIECES += ["!", "cafe", "中"]


def made_up_weights(kind, classes=3, seed=0):
    """The weights of a `transformers` class of this name."""
    rng = np.random.default_rng(seed)
    weights, prefix = {}, "" if kind == "BertModel" else "bert."
    d_model, d_ff = SIZES["hidden_size"], SIZES["intermediate_size"]

    def dense(name, d_out, d_in):
        weights[f"{name}.weight"] = rng.normal(size=(d_out, d_in)) * d_in**-0.5
        weights[f"{name}.bias"] = rng.normal(size=d_out)

    def norm(name):
        weights[f"{name}.weight"] = 1 + 0.3 * rng.normal(size=d_model)
        weights[f"{name}.bias"] = 0.3 * rng.normal(size=d_model)

    rows = ("vocab_size", "max_position_embeddings", "type_vocab_size")
    for name, size in zip(("word", "position", "token_type"), rows, strict=True):
        table = rng.normal(size=(SIZES[size], d_model))
        weights[f"{prefix}embeddings.{name}_embeddings.weight"] = table
    norm(f"{prefix}embeddings.LayerNorm")
    for number in range(SIZES["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{number}"
        for name in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{name}", d_model, d_model)
        dense(f"{layer}.attention.output.dense", d_model, d_model)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", d_ff, d_model)
        dense(f"{layer}.output.dense", d_model, d_ff)
        norm(f"{layer}.output.LayerNorm")
    if kind in ("BertModel", "BertForSequenceClassification"):
        dense(f"{prefix}pooler.dense", d_model, d_model)
    if kind == "BertForSequenceClassification":
        dense("classifier", classes, d_model)
    elif kind == "BertForQuestionAnswering":
        dense("qa_outputs", 2, d_model)
    elif kind == "BertForMaskedLM":
        dense("cls.predictions.transform.dense", d_model, d_model)
        norm("cls.predictions.transform.LayerNorm")
        weights["cls.predictions.bias"] = rng.normal(size=SIZES["vocab_size"])
    return {name: x.astype("float32") for name, x in weights.items()}


def write(folder, kind, weights, **config):
    """Writes config.json, model.safetensors and vocab.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": [kind], "model_type": "bert", **SIZES, **config}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def encode(weights, tokens, types):
    """The encoder's output `[batch, length, d_model]`; token 0 is padding."""
    w = {k.removeprefix("bert."): x.astype("float64") for k, x in weights.items()}
    heads = SIZES["num_attention_heads"]

    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    x = w["embeddings.word_embeddings.weight"][tokens]
    x = x + w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = norm(w, "embeddings.LayerNorm", x)
    for number in range(SIZES["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            split(dense(w, f"{layer}.attention.self.{name}", x))
            for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(2, 3) / math.sqrt(query.shape[-1])
        scores = np.where((tokens != 0)[:, None, None], scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = (scores / scores.sum(-1, keepdims=True) @ value).swapaxes(1, 2)
        y = dense(w, f"{layer}.attention.output.dense", y.reshape(x.shape))
        x = norm(w, f"{layer}.attention.output.LayerNorm", x + y)
        y = gelu(dense(w, f"{layer}.intermediate.dense", x))
        y = dense(w, f"{layer}.output.dense", y)
        x = norm(w, f"{layer}.output.LayerNorm", x + y)
    return x


def logits(kind, weights, tokens, types):
    """The outputs of a head for `encode`'s output."""
    w = {k.removeprefix("bert."): x.astype("float64") for k, x in weights.items()}
    x = encode(weights, tokens, types)
    if kind == "BertForSequenceClassification":
        pooled = np.tanh(dense(w, "pooler.dense", x[:, 0]))
        return dense(w, "classifier", pooled)[:, None]
    if kind == "BertForQuestionAnswering":
        return dense(w, "qa_outputs", x).swapaxes(1, 2)
    x = gelu(dense(w, "cls.predictions.transform.dense", x))
    x = norm(w, "cls.predictions.transform.LayerNorm", x)
    table = w["embeddings.word_embeddings.weight"]
    return x @ table.T + w["cls.predictions.bias"]


def dense(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
