"""Writes a T5 as the folder that transformers loads: `from_pretrained(FOLDER)`."""

import functools
import json
import os

import numpy as np
import seqio

from remixer_tf.checkpoints.whole_folder import check_absent, copy_file, whole_folder
from remixer_tf.data.pieces import SentencePieceVocabulary
from remixer_tf.data.published_vocabulary import PublishedVocabulary
from remixer_tf.errors import UserError
from remixer_tf.layers import (
    CrossAttention,
    FeedForward,
    GatedFeedForward,
    RelativePositionBias,
    RMSNorm,
    SelfAttention,
)
from remixer_tf.models import EncoderDecoder, TransformerStack
from remixer_tf.models.build import build_model
from remixer_tf.models.stack import Block
from remixer_tf.weights.hugging_face import t5_of_config
from remixer_tf.weights.names import ACTIVATIONS, HUGGING_FACE_T5, find_name
from remixer_tf.weights.safetensors_files import WEIGHTS, write_safetensors
from remixer_tf.weights.source import Source, logits_distance, merged_arrays, take

_FEED_FORWARDS = (FeedForward, GatedFeedForward)
_LAYERS = {
    "encoder": [(SelfAttention,), _FEED_FORWARDS],
    "decoder": [(SelfAttention,), (CrossAttention,), _FEED_FORWARDS],
}
# Float32 rounding gives some 1e-5 of the logits' deviation, another equation far more.
_TOLERANCE = 1e-3


def export_hugging_face(model, task, folder, generation=None, clean_up=False):
    """Writes config.json, model.safetensors and the vocabulary's files to a new folder.

    First a T5 is built from the model's arrays, and its logits are compared with the
    model's, which must be a built `EncoderDecoder` with T5's layers. The task has its
    vocabulary. `generation` are settings of transformers' `generate`, see
    `write_generation`; None for its defaults. `clean_up` is the tokenizer's setting
    clean_up_tokenization_spaces. Returns the folder, which appears whole or not at all.
    """
    check_absent(folder)
    config = t5_config(model)
    vocabulary = _one_vocabulary(task)
    tokenizer = _tokenizer_config(vocabulary)
    # Earlier versions of transformers take true where the file does not say it.
    tokenizer["clean_up_tokenization_spaces"] = clean_up
    ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    generation = {**{name: config[name] for name in ids}, **(generation or {})}
    arrays = named_arrays(model)
    sizes = t5_of_config(config, config["tie_word_embeddings"])
    _compare(model, t5_model(sizes), arrays)
    with whole_folder(folder) as place:
        write_safetensors(os.path.join(place, WEIGHTS), arrays)
        for name, content in (
            ("config.json", config),
            ("generation_config.json", generation),
            ("tokenizer_config.json", tokenizer),
        ):
            with open(os.path.join(place, name), "w") as file:
                json.dump(content, file, indent=2)
        if isinstance(vocabulary, seqio.SentencePieceVocabulary):
            file = vocabulary.sentencepiece_model_file
            name = "tokenizer.json" if file.endswith(".json") else "spiece.model"
            copy_file(file, os.path.join(place, name))
    return folder


def named_arrays(model):
    """The arrays of a T5 under Hugging Face's names, {name: float32}."""
    arrays = {}
    for path, array in merged_arrays(model).items():
        name, change = find_name(path, HUGGING_FACE_T5)
        # Contiguous: safetensors writes a transposed array as if it were not.
        arrays[name] = np.ascontiguousarray(change(array))
    return arrays


def t5_config(model):
    """Returns the content of config.json for a model, which must be a T5."""
    if not isinstance(model, EncoderDecoder):
        raise _refusal(f"a {type(model).__name__}")
    layers, norms, biases = [], [], []
    for name, kinds in _LAYERS.items():
        stack = getattr(model, name)
        for number, block in enumerate(stack.blocks):
            if type(block) is not Block:
                raise _refusal(f"a {type(block).__name__}")
            # Not isinstance: BERT's attention is a SelfAttention with biases.
            if type(block.sublayer) not in kinds[number % len(kinds)]:
                raise _refusal(f"{type(block.sublayer).__name__} in its {name}")
            layers.append(block.sublayer)
            norms.append(block.norm)
        norms.append(stack.final_norm)
        biases.append(stack.position_bias)
        if stack.positions is not None or stack.input_norm is not None:
            raise _refusal(f"absolute positions or an input norm in its {name}")
    feed_forwards = [x for x in layers if isinstance(x, FeedForward)]
    attentions = [x for x in layers if not isinstance(x, FeedForward)]
    if wrong := [norm for norm in norms if type(norm) is not RMSNorm]:
        raise _refusal(f"the norm {type(wrong[0]).__name__}")
    if None in biases or any(getattr(a, "relative_bias", False) for a in attentions):
        raise _refusal("no relative position bias that the layers of a stack share")
    gated = {type(f) is GatedFeedForward for f in feed_forwards}
    if len(gated) > 1:
        raise _refusal("layers that differ")
    (gated,) = gated
    activation = _one(feed_forwards, "activation")
    projections = {ours: name for name, ours in ACTIVATIONS.items()}
    if gated:  # "gated-gelu" is the tanh form, and the exact one has no name
        projections |= {"gelu": "gelu"}
        del projections["gelu_exact"]
    if activation not in projections:
        raise _refusal(f"the activation {activation!r}")
    tied = model.tied_logits
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "d_kv": _one(attentions, "d_kv"),
        "d_ff": _one(feed_forwards, "d_ff"),
        "num_layers": model.encoder.num_layers,
        "num_decoder_layers": model.decoder.num_layers,
        "num_heads": _one(attentions, "num_heads"),
        "relative_attention_num_buckets": _one(biases, "num_buckets"),
        "relative_attention_max_distance": _one(biases, "max_distance"),
        "layer_norm_epsilon": _one(norms, "epsilon"),
        "dropout_rate": _one(feed_forwards, "dropout_rate"),
        "feed_forward_proj": "gated-" * gated + projections[activation],
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "dtype": "float32",
    }


def t5_model(sizes):
    """Builds an `EncoderDecoder` of a `T5`'s sizes, as Hugging Face defines it."""
    part = functools.partial
    heads = {"num_heads": sizes.num_heads, "d_kv": sizes.d_kv}
    feed_forward = part(
        GatedFeedForward if sizes.gated else FeedForward,
        d_ff=sizes.d_ff,
        activation=sizes.activation,
    )

    def stack(num_layers, **cross_attention):
        return part(
            TransformerStack,
            num_layers=num_layers,
            sublayers={
                "self_attention": part(SelfAttention, **heads),
                **cross_attention,
                "feed_forward": feed_forward,
            },
            position_bias=part(
                RelativePositionBias,
                num_heads=sizes.num_heads,
                num_buckets=sizes.num_buckets,
                max_distance=sizes.max_distance,
            ),
            norm=part(RMSNorm, epsilon=sizes.epsilon),
        )

    model = part(
        EncoderDecoder,
        encoder=stack(sizes.num_encoder_layers),
        decoder=stack(
            sizes.num_decoder_layers, cross_attention=part(CrossAttention, **heads)
        ),
        vocab_size=sizes.vocab_size,
        d_model=sizes.d_model,
        tied_logits=sizes.tied_logits,
    )
    return build_model(model, "float32")


def _compare(model, reference, arrays):
    """Raises ValueError unless a T5 with these arrays has the model's logits."""
    shapes = {name: array.shape for name, array in arrays.items()}
    rows, read = HUGGING_FACE_T5, arrays.__getitem__
    take(reference, Source("Hugging Face T5", (), {}, rows, shapes, read))
    random = np.random.default_rng(0)
    inputs = random.integers(1, model.vocab_size, (2, 160)).astype("int32")
    inputs[1, 90:] = 0
    targets = random.integers(1, model.vocab_size, (2, 24)).astype("int32")
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": targets}
    distance = logits_distance(reference, model, batch)
    if not distance < _TOLERANCE:
        raise _refusal(
            f"other logits than a T5 with its weights, by {distance:.1e} of their "
            "standard deviation. Is one of its layers configured otherwise, such as a "
            "causal encoder, or a position bias of the other direction"
        )


def _one(layers, name):
    """The value that the attribute has in all layers."""
    values = {getattr(layer, name) for layer in layers}
    if len(values) != 1:
        raise _refusal(f"layers that differ in {name}: {sorted(values)}")
    return values.pop()


def _refusal(what):
    return UserError(
        f"Hugging Face's T5 cannot hold this model: it has {what}. Models of "
        "architectures/t5_1_1.gin and t5_1_0.gin can be exported. For others, write a "
        "SavedModel (--format=saved_model)."
    )


def _one_vocabulary(task):
    """The vocabulary that inputs and targets share."""
    features = task.output_features
    reads, writes = (features[name].vocabulary for name in ("inputs", "targets"))
    if not features["inputs"].add_eos:
        raise UserError(
            "transformers' tokenizer of a T5 ends texts with </s>, and the inputs of "
            f"{task.name} end without EOS (add_eos=False)."
        )
    if reads != writes:
        raise UserError(
            "transformers has one tokenizer for inputs and targets, and the "
            f"vocabularies of {task.name} differ."
        )
    return reads


def _tokenizer_config(vocabulary):
    """Returns the content of tokenizer_config.json for a vocabulary."""
    kinds = {
        seqio.SentencePieceVocabulary: "T5Tokenizer",
        SentencePieceVocabulary: "T5Tokenizer",
        PublishedVocabulary: "T5Tokenizer",
        seqio.ByteVocabulary: "ByT5Tokenizer",
    }
    if type(vocabulary) not in kinds:
        raise UserError(
            f"transformers has no tokenizer for a {type(vocabulary).__name__}. Known: "
            f"{', '.join(kind.__name__ for kind in kinds)}."
        )
    config = {
        "tokenizer_class": kinds[type(vocabulary)],
        "extra_ids": vocabulary.extra_ids,
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    if tokens := getattr(vocabulary, "added_tokens", ()):
        others = dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
        config["added_tokens_decoder"] = {
            str(token.id): {
                "content": token.text,
                "normalized": token.normalized,
                "special": token.special,
                **others,
            }
            for token in tokens
        }
    return config
