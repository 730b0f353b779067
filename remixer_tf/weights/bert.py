"""Reads Hugging Face's BERT."""

import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.weights.names import ACTIVATIONS, bert_rows
from remixer_tf.weights.sentence_transformers import MODULES, add_embedding
from remixer_tf.weights.source import ENCODER, SPANS, Source, check_size
from remixer_tf.weights.tokenizers import check_word_pieces
from remixer_tf.weights.values import (
    Reference,
    check_fields,
    flag,
    integer,
    real,
    shape_of,
    short,
    word,
)

# Our heads of transformers' classes.
HEADS = {
    "BertModel": "MaskedLMHead",
    "BertForMaskedLM": "MaskedLMHead",
    "BertForPreTraining": "MaskedLMHead",
    "BertForSequenceClassification": "ClassificationHead",
    "BertForQuestionAnswering": "SpanHead",
}
_WITH_TRANSFORM = ("BertForMaskedLM", "BertForPreTraining")
_TABLE = "embeddings.word_embeddings.weight"
_DECODER = "cls.predictions.decoder"
_TOKENIZERS = ("BertTokenizer", "BertTokenizerFast")


def read_bert(folder, config, converting):
    """Reads a `PublishedFolder` that transformers wrote of a BERT as a `Source`.

    `config` is the content of config.json; for `converting` see `SafetensorsFolder`.
    Raises a ValueError if the encoder here cannot hold it; the message names the field.
    """
    names = config.get("architectures")
    if type(names) is not list or len(names) != 1 or names[0] not in [*HEADS]:
        raise UserError(
            "architectures in config.json of a BERT must be one of "
            f"{', '.join(HEADS)}. Received: {short(names)}"
        )
    (kind,) = names
    if folder.file(MODULES) and kind != "BertModel":
        raise UserError(
            f"{folder.path} has {MODULES}, which makes vectors of texts, and "
            f"architectures in config.json is {kind}. Expected: BertModel. Remove "
            f"{MODULES} to read the {kind}."
        )
    check_fields(
        config,
        pad_token_id=0,
        position_embedding_type="absolute",
    )
    files = folder.safetensors(converting)
    # Its first checkpoints have TensorFlow's names of a norm's parameters.
    stored = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        ): name
        for name in files.shapes
    }
    shapes = {name: files.shapes[old] for name, old in stored.items()}

    def read(name):
        return files.read(stored[name])

    prefix = "" if _TABLE in shapes else "bert."
    bindings = _sizes(config, kind, shapes)
    if HEADS[kind] == "ClassificationHead":
        bindings |= _classes(config, kind, shapes)
    vocabulary, settings = _vocabulary(folder, config)
    source = Source(
        f"Hugging Face {kind}",
        ("architectures/bert_published.gin",),
        bindings
        | {f"wordpiece_vocabulary.{name}": value for name, value in settings.items()},
        bert_rows(prefix),
        shapes,
        read,
        _skipped(kind, prefix, shapes, read),
        vocabulary,
        extra_ids=0,
        run=SPANS if HEADS[kind] == "SpanHead" else ENCODER,
    )
    return add_embedding(folder, source, settings["lower_case"])


def _sizes(config, kind, shapes):
    """The bindings of the model's sizes."""
    d_model, heads, layers, d_ff = (
        integer(config, name)
        for name in (
            "hidden_size",
            "num_attention_heads",
            "num_hidden_layers",
            "intermediate_size",
        )
    )
    if d_model % heads:
        raise UserError(
            f"num_attention_heads must divide hidden_size. Received: {heads}, {d_model}"
        )
    activation = word(config, "hidden_act", "gelu", ACTIVATIONS)
    if kind in _WITH_TRANSFORM and activation != "gelu":
        raise UserError(
            f"hidden_act must be gelu in a {kind}, whose head has it too. Received: "
            f"{activation}"
        )
    vocab_size = integer(config, "vocab_size")
    length = integer(config, "max_position_embeddings")
    size = (vocab_size + length) * d_model + layers * d_model * (4 * d_model + 2 * d_ff)
    check_size("BERT", size, layers, shapes)
    of_head = {}
    if kind in _WITH_TRANSFORM:
        of_head = {
            "MaskedLMHead.mlm_transform": True,
            "MaskedLMHead.bias_size": vocab_size,
        }
    return of_head | {
        "VOCAB_SIZE": vocab_size,
        "MAX_LENGTH": length,
        "D_MODEL": d_model,
        "D_FF": d_ff,
        "D_KV": d_model // heads,
        "NUM_HEADS": heads,
        "NUM_LAYERS": layers,
        "DROPOUT_RATE": real(config, "hidden_dropout_prob", 0.1),
        "HEAD": Reference(HEADS[kind]),
        "NORM_EPSILON": real(config, "layer_norm_eps", 1e-12),
        "BertFeedForward.activation": ACTIVATIONS[activation],
        "EncoderOnly.num_token_types": integer(config, "type_vocab_size", 2),
    }


def _classes(config, kind, shapes):
    """The bindings of a classifier's classes."""
    check_fields(config, problem_type="single_label_classification")
    number, _ = shape_of(shapes, "classifier.weight", 2, f"every {kind}")
    labels = config.get("id2label") or {}
    if not isinstance(labels, dict):
        raise UserError(
            f"id2label must be an object of ids and names. Received: {short(labels)}"
        )
    names = [labels.get(str(i), f"LABEL_{i}") for i in range(number)]
    if number < 2:
        raise UserError(
            "a BERT's classifier.weight must have two classes at least. Received: "
            f"{number}, a regression"
        )
    if len({*names}) < number or any(type(x) is not str or len(x) > 200 for x in names):
        raise UserError(
            f"id2label must name {number} different classes. Received: {short(labels)}"
        )
    return {"CLASSES": tuple(names), "ClassificationHead.num_classes": number}


def _skipped(kind, prefix, shapes, read):
    """{name: why no variable needs it}; what is tied must be equal."""
    skipped = {f"{prefix}embeddings.position_ids": "it counts from 0"}
    for name, other in (
        (f"{_DECODER}.weight", f"{prefix}{_TABLE}"),
        (f"{_DECODER}.bias", "cls.predictions.bias"),
    ):
        if name in shapes and other in shapes:
            if not np.array_equal(read(name), read(other)):
                raise UserError(
                    f"{name} differs from {other}. Here a masked language model has "
                    "them once."
                )
            skipped[name] = f"equal to {other}"
    if HEADS[kind] != "ClassificationHead":
        for name in ("weight", "bias"):
            skipped[f"{prefix}pooler.dense.{name}"] = "no head that was read needs it"
    for name in ("weight", "bias"):
        skipped[f"cls.seq_relationship.{name}"] = "of next sentence prediction"
    return skipped


def _vocabulary(folder, config):
    """The path of the vocabulary, or None, and settings of `wordpiece_vocabulary`."""
    check_word_pieces(folder)
    tokenizer = folder.json("tokenizer_config.json")
    for values in (config, tokenizer):
        word(values, "tokenizer_class", _TOKENIZERS[0], _TOKENIZERS)
    check_fields(tokenizer, do_basic_tokenize=True)
    tokenizer.get("clean_up_tokenization_spaces")  # A BERT writes no text.
    lower_case = flag(tokenizer, "do_lower_case", True)
    settings = {
        "lower_case": lower_case,
        "strip_accents": flag(tokenizer, "strip_accents", lower_case),
        "tokenize_chinese_chars": flag(tokenizer, "tokenize_chinese_chars", True),
    }
    file = folder.json("tokenizer.json")
    if (file.get("pre_tokenizer") or {}).get("type") not in (None, "BertPreTokenizer"):
        raise UserError(
            "pre_tokenizer in tokenizer.json must be a BertPreTokenizer. Received: "
            f"{short(file['pre_tokenizer'])}"
        )
    # transformers reads tokenizer_config.json alone, the tokenizers library this file.
    normalizer = file.get("normalizer")
    names = ("lowercase", "strip_accents", "handle_chinese_chars")
    for name, (ours, value) in zip(names, settings.items(), strict=True):
        found = normalizer.get(name) if isinstance(normalizer, dict) else None
        if found not in (None, value):
            theirs = "do_lower_case" if ours == "lower_case" else ours
            raise UserError(
                f"{name} in tokenizer.json must be {value}, as {theirs} in "
                "tokenizer_config.json says, or its default. Make the files agree. "
                f"Received: {short(found)}"
            )
    model = file.get("model")
    settings["max_input_chars_per_word"] = integer(
        model if isinstance(model, dict) else {}, "max_input_chars_per_word", 100
    )
    paths = folder.file("vocab.txt"), folder.file("tokenizer.json")
    return paths[0] or paths[1], settings
