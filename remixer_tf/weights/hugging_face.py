"""Reads the folders that transformers writes: T5, its relatives, and BERT."""

import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.weights import tokenizers
from remixer_tf.weights.bert import read_bert
from remixer_tf.weights.generation import (
    Generation,
    check_ids,
    read_generation,
    settings_in,
)
from remixer_tf.weights.names import ACTIVATIONS, HUGGING_FACE_T5, same
from remixer_tf.weights.safetensors_files import read_json
from remixer_tf.weights.sentence_transformers import MODULES, add_embedding
from remixer_tf.weights.source import BYTES, Source
from remixer_tf.weights.t5 import T5
from remixer_tf.weights.values import check_fields, flag, integer, real, short, word

_WITH_DECODER = (
    "T5ForConditionalGeneration",
    "T5WithLMHeadModel",
    "MT5ForConditionalGeneration",
    "UMT5ForConditionalGeneration",
)
_ENCODERS = ("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel")
# Extra ids where tokenizer_config.json names none. mT5's are pieces of its vocabulary.
_EXTRA_IDS = {"t5": 100, "mt5": 0, "umt5": 300}
_BYTE_EXTRA_IDS = 125
_MANY_IDS = 2**16
_PROJECTIONS = (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))
_CONVERTING = (
    "Where its origin is trusted, transformers converts it: "
    "AutoModel.from_pretrained(FOLDER).save_pretrained(NEW), with the class that "
    "config.json names in place of AutoModel."
)
_EMBEDDINGS = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
)
_UNUSED_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def read_hugging_face(folder):
    """Reads a `PublishedFolder` that transformers wrote as a `Source`.

    It holds a T5, T5.1.1, FLAN-T5, ByT5, mT5 or umT5, the encoder of one, or a BERT.
    Raises a ValueError if the model is another one, or a value is out of range; the
    message names the field.
    """
    config = folder.json("config.json")
    kind = word(config, "model_type", None, (*_EXTRA_IDS, "bert"))
    # Other values make another model under the same names.
    check_fields(
        config,
        is_decoder=False,
        add_cross_attention=False,
        tie_encoder_decoder=False,
        pruned_heads={},
    )
    if kind == "bert":
        return read_bert(folder, config, _CONVERTING)
    embeds = folder.file(MODULES) is not None
    encoder_only = _architecture(config) in _ENCODERS or embeds
    check_ids(config, "config.json")
    files = folder.safetensors(_CONVERTING)
    shapes = dict(files.shapes)
    embedding, copies = _embedding(folder.path, files)
    skipped = {name: f"equal to {embedding}" for name in copies}
    skipped[_UNUSED_BIAS] = "transformers does not use it either"
    tied = "lm_head.weight" not in shapes or "lm_head.weight" in copies
    model = t5_of_config(config, tied, encoder_only)
    model.check_fits(shapes)
    if embeds:
        names = [x for x in shapes if x.startswith("decoder.") or x == "lm_head.weight"]
        skipped |= dict.fromkeys(names, "the decoder embeds no text")
    # transformers never scales mT5's logits.
    scaled = kind != "mt5" and _scales_logits(config)
    # Here tied logits are scaled, and others not. Tied ones without scale get a matrix.
    logits = "lm_head.weight"
    if tied and not scaled:
        logits, model = embedding, model._replace(tied_logits=False)
    factor = np.float32(model.d_model**-0.5 if scaled and not tied else 1)
    rows = (
        ("token_embedding/embeddings", embedding, same),
        ("logits/kernel", logits, lambda x: np.transpose(x) * factor),
        *HUGGING_FACE_T5[2:],
    )
    settings = settings_in(config)
    if path := folder.file("generation_config.json"):
        settings = read_json(path)  # `read_generation` accounts for its fields.
    tokenizer = folder.json(tokenizers.CONFIG)
    if reads_bytes := tokenizers.reads_bytes(folder):  # transformers 5 writes 0
        extra_ids = integer(tokenizer, "extra_ids", 0, low=0) or _BYTE_EXTRA_IDS
        vocabulary, added = None, ()
        tokenizers.check_bytes(folder)
    else:
        extra_ids = integer(tokenizer, "extra_ids", _EXTRA_IDS[kind], 0, _MANY_IDS)
        vocabulary, added = tokenizers.pieces_of_t5(folder, extra_ids)
    generation = read_generation(settings)
    if flag(tokenizer, "clean_up_tokenization_spaces", False):
        cleaned = {"text_to_text.clean_up_tokenization_spaces": True}
        generation = generation._replace(bindings=generation.bindings | cleaned)
    source = Source(
        f"Hugging Face {kind.replace('t5', 'T5')}{' encoder' * encoder_only}",
        *model.architecture(),
        rows,
        shapes,
        files.read,
        skipped,
        vocabulary,
        extra_ids,
        Generation() if encoder_only else generation,
        **({"run": BYTES} if reads_bytes else {}),
        eos_after_trim=True,
        added_tokens=added,
    )
    return add_embedding(folder, source)


def _architecture(config):
    """The one class that config.json names, of a T5, or None."""
    names = config.get("architectures") or [None]
    known = (*_WITH_DECODER, *_ENCODERS)
    if type(names) is not list or len(names) != 1 or names[0] not in (None, *known):
        raise UserError(
            f"architectures in config.json must be one of {', '.join(known)}. "
            f"Received: {short(names)}"
        )
    return names[0]


def _embedding(folder, files):
    """The name of the embedding of both stacks, and the arrays equal to it."""
    copies = [name for name in _EMBEDDINGS if name in files.shapes]
    if not copies:
        raise UserError(f"There is no {_EMBEDDINGS[0]} in {folder}, the embedding.")
    embedding, *copies = copies
    table, equal = files.read(embedding), []
    for name in (*copies, "lm_head.weight"):
        if name not in files.shapes:
            continue
        if np.array_equal(files.read(name), table, True):
            equal.append(name)
        elif name != "lm_head.weight":
            raise UserError(
                f"{name} differs from {embedding}. The encoder and the decoder of a T5 "
                "share one embedding here."
            )
    return embedding, equal


def t5_of_config(config, tied, encoder_only=False):
    """The `T5` that config.json describes; `tied`: the embedding makes its logits."""
    projection = word(config, "feed_forward_proj", "relu", _PROJECTIONS)
    gated, name = projection.startswith("gated-"), projection.removeprefix("gated-")
    if projection == "gated-gelu":
        name = "gelu_new"
    check_fields(config, dense_act_fn=name, is_gated_act=gated)
    layers = integer(config, "num_layers")
    sizes = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads")
    decoder_layers = integer(config, "num_decoder_layers", layers, low=not encoder_only)
    buckets = {
        "num_buckets": integer(config, "relative_attention_num_buckets", 32),
        "max_distance": integer(config, "relative_attention_max_distance", 128),
    }
    own_biases = config["model_type"] == "umt5"
    if own_biases and tuple(buckets.values()) != (32, 128):
        raise UserError(
            "relative_attention_num_buckets must be 32 and "
            "relative_attention_max_distance 128 in a umt5, whose layers have biases "
            f"of their own. Received: {buckets}"
        )
    return T5(
        **{name: integer(config, name) for name in sizes},
        num_encoder_layers=layers,
        num_decoder_layers=0 if encoder_only else decoder_layers,
        gated=gated,
        activation=ACTIVATIONS[name],
        tied_logits=tied,
        **buckets,
        epsilon=real(config, "layer_norm_epsilon", 1e-6),
        dropout_rate=real(config, "dropout_rate", 0.1),
        own_biases=own_biases,
    )


def _scales_logits(config):
    """Whether the decoder's output is scaled by d_model ** -0.5."""
    # transformers 5 writes `tie_word_embeddings` as true whatever the model, and says
    # with `scale_decoder_outputs` what the former said before.
    tie = config.get("tie_word_embeddings", True) is not False
    return config.get("scale_decoder_outputs", tie)
