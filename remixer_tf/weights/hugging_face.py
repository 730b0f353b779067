"""Reads Hugging Face's T5, T5.1.1 and FLAN-T5."""

import os

import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.weights.generation import read_generation
from remixer_tf.weights.names import HUGGING_FACE_T5, same
from remixer_tf.weights.safetensors_files import SafetensorsFolder, read_json
from remixer_tf.weights.source import Source
from remixer_tf.weights.t5 import T5
from remixer_tf.weights.values import integer, real, short, word

ARCHITECTURES = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
# Hugging Face's names of activations, and ours. "gated-gelu" alone is the tanh form.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "silu",
    "swish": "silu",
}
_PROJECTIONS = (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))
_CONVERTING = (
    "Where its origin is trusted, transformers converts it: "
    "T5ForConditionalGeneration.from_pretrained(FOLDER).save_pretrained(NEW)."
)
_EMBEDDINGS = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
)
_UNUSED_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def read_hugging_face_t5(folder):
    """Reads a folder that transformers wrote as a `Source`: config.json, safetensors.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: it is of another kind of model.
    """
    config = read_json(os.path.join(folder, "config.json"))
    _check_kind(config)
    files = SafetensorsFolder(folder, _CONVERTING)
    shapes = dict(files.shapes)
    skipped = {_UNUSED_BIAS: "transformers does not use it either"}

    copies = [name for name in _EMBEDDINGS if name in shapes]
    if not copies:
        raise UserError(f"There is no {_EMBEDDINGS[0]} in {folder}, the embedding.")
    embedding, *copies = copies
    if "lm_head.weight" in shapes:
        copies.append("lm_head.weight")
    table = files.read(embedding)
    equal = {name for name in copies if np.array_equal(files.read(name), table, True)}
    for name in copies:
        if name in equal:
            skipped[name] = f"equal to {embedding}"
        elif name != "lm_head.weight":
            raise UserError(
                f"{name} differs from {embedding}. The encoder and the decoder of a T5 "
                "share one embedding here."
            )
    tied = not copies or copies[-1] != "lm_head.weight" or "lm_head.weight" in equal
    model = t5_of_config(config, tied)
    model.check_fits(shapes)
    scaled = _scales_logits(config)
    # Here tied logits are scaled, and others not. What is neither gets a matrix.
    logits = "lm_head.weight"
    if tied and not scaled:
        logits, model = embedding, model._replace(tied_logits=False)
    factor = np.float32(model.d_model**-0.5 if scaled and not tied else 1)
    rows = (
        ("token_embedding/embeddings", embedding, same),
        ("logits/kernel", logits, lambda x: np.transpose(x) * factor),
        *HUGGING_FACE_T5[2:],
    )
    vocabulary = os.path.join(folder, "spiece.model")
    tokenizer, generation = (
        read_json(os.path.join(folder, name), optional=True)
        for name in ("tokenizer_config.json", "generation_config.json")
    )
    return Source(
        "Hugging Face T5",
        *model.architecture(),
        rows,
        shapes,
        files.read,
        skipped,
        vocabulary if os.path.exists(vocabulary) else None,
        integer(tokenizer, "extra_ids", 100, low=0),
        read_generation(generation),
    )


def _check_kind(config):
    """Raises ValueError unless it is T5's, as an encoder-decoder."""
    kind = config.get("model_type")
    if kind != "t5":
        raise UserError(
            f"config.json is of a {short(kind)} model. Of Hugging Face's formats only "
            "T5's, 't5', has the layers of a model here."
            + (
                " (BERT normalises after each sublayer, the encoders here before it.)"
                if kind == "bert"
                else ""
            )
        )
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or any(
        name not in ARCHITECTURES for name in architectures
    ):
        raise UserError(
            f"config.json is of {short(architectures)}. Expected: "
            f"{' or '.join(ARCHITECTURES)}."
        )
    expected = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise UserError(
                f"{name} must be {value}, as in T5. config.json has "
                f"{short(config[name])}."
            )


def t5_of_config(config, tied):
    """The `T5` that config.json describes; `tied`: the embedding makes its logits.

    Raises:
        ValueError: a size is missing, or the activation is unknown.
    """
    projection = word(config, "feed_forward_proj", "relu", _PROJECTIONS)
    gated, name = projection.startswith("gated-"), projection.removeprefix("gated-")
    if projection == "gated-gelu":
        name = "gelu_new"
    layers = integer(config, "num_layers")
    sizes = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads")
    return T5(
        **{name: integer(config, name) for name in sizes},
        num_encoder_layers=layers,
        num_decoder_layers=integer(config, "num_decoder_layers", layers),
        gated=gated,
        activation=ACTIVATIONS[name],
        tied_logits=tied,
        num_buckets=integer(config, "relative_attention_num_buckets", 32),
        max_distance=integer(config, "relative_attention_max_distance", 128),
        epsilon=real(config, "layer_norm_epsilon", 1e-6),
        dropout_rate=real(config, "dropout_rate", 0.1),
    )


def _scales_logits(config):
    """Whether the decoder's output is scaled by d_model ** -0.5.

    transformers 5 writes `tie_word_embeddings` as true whatever the model, and says
    with `scale_decoder_outputs` what the former said before.
    """
    tie = config.get("tie_word_embeddings", True) is not False
    return config.get("scale_decoder_outputs", tie)
