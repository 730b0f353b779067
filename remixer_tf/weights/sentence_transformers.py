"""Reads how a folder of sentence-transformers makes a text's vector.

`modules.json` lists the steps: the encoder, its pooling, matrices, a norm. Each has a
folder with a config.json.
"""

import os

import numpy as np

from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.weights.names import same
from remixer_tf.weights.safetensors_files import SafetensorsFolder, read_json_list
from remixer_tf.weights.values import (
    Reference,
    check_fields,
    flag,
    integer,
    short,
    word,
)

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_OF_ENCODER = "sentence_bert_config.json"
_CONVERTING = "Save the model with a newer sentence-transformers: model.save(NEW)."
_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_MOST_TOKENS = 2**16
_SENTENCE = "sentence_embedding"
# Fields of the first versions, and our names in their order.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# The last words of PyTorch's classes, and Keras' activations.
_OURS = {
    "Tanh": "tanh",
    "Identity": "linear",
    "ReLU": "relu",
    "GELU": "gelu_exact",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


def add_embedding(folder, source, lower_case=False):
    """Returns the `Source` of an encoder with the pooling that its folder names.

    `folder` is a `PublishedFolder`. Without modules.json the source is as it was.
    `lower_case` says whether the encoder's vocabulary makes small letters. Raises a
    ValueError if the steps are others than pooling, matrices and a norm.
    """
    path = folder.file(MODULES)
    if path is None:
        return source
    places = _steps(path)
    _check_texts(folder, lower_case)
    pooling, *others = [(kind, folder.json(f"{x}/config.json")) for kind, x in places]
    if not flag(pooling[1], "include_prompt", True):
        folder.remark(
            "include_prompt = False of the pooling: here a prompt is a part of the "
            "text, and its tokens count"
        )
    layers, rows, shapes, reads = [], [], dict(source.shapes), {}
    for number, ((kind, config), (_, place)) in enumerate(
        zip(others, places[1:], strict=True)
    ):
        check_fields(
            config,
            module_input_name=_SENTENCE,
            module_output_name=_SENTENCE,
            use_residual=False,
        )
        if kind == "Normalize":
            continue
        layers.append(_dense(config))
        files = SafetensorsFolder(os.path.join(folder.path, place), _CONVERTING)
        for theirs, shape in files.shapes.items():
            name = f"{place}/{theirs}"
            shapes[name] = shape
            reads[name] = files, theirs
        rows += [
            (f"head/dense_{number}/kernel", f"{place}/linear.weight", np.transpose),
            (f"head/dense_{number}/bias", f"{place}/linear.bias", same),
        ]

    def read(name):
        if name in reads:
            files, name = reads[name]
            return files.read(name)
        return source.read(name)

    head = "HEAD" if "HEAD" in source.bindings else "EncoderOnly.head"
    return source._replace(
        format=f"{source.format} of sentence-transformers",
        bindings=source.bindings
        | {
            head: Reference("EmbeddingHead"),
            "EmbeddingHead.pooling": _pooling(pooling[1]),
            "EmbeddingHead.layers": tuple(layers),
            "EmbeddingHead.normalize": places[-1][0] == "Normalize",
        },
        rows=(*rows, *source.rows),
        shapes=shapes,
        read=read,
        max_length=_max_length(folder, source.bindings.get("MAX_LENGTH")),
    )


def _steps(path):
    """The steps after the encoder, a list of (kind, folder)."""
    steps = []
    for step in read_json_list(path):
        kind, place = (
            step.get(x) if isinstance(step, dict) else None for x in ("type", "path")
        )
        if not isinstance(kind, str) or not isinstance(place, str) or ".." in place:
            raise UserError(
                f"{path} must be a list of objects with type and path. Received: "
                f"{short(step)}"
            )
        kind, place = kind.rpartition(".")[2], place.strip("/")
        config = os.path.join(os.path.dirname(path), place, "config.json")
        if kind != "Normalize" and not os.path.isfile(config):
            raise MissingFileError(f"There is no {config}, which {path} names.")
        steps.append((kind, place))
    kinds = [kind for kind, _ in steps]
    dense = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or {*dense} - {"Dense"}:
        raise UserError(
            f"{path} has the steps {', '.join(kinds)}. Expected: Transformer, Pooling, "
            "then Dense any number of times, then Normalize or nothing."
        )
    if steps[0][1]:
        raise UserError(
            f"{path} has the encoder in the folder {steps[0][1]}. Expected: next to "
            "modules.json, as sentence-transformers writes it since version 2."
        )
    return steps[1:]


def _check_texts(folder, lower_case):
    """Raises a ValueError if texts are changed before they are read."""
    check_fields(folder.json(_PROMPTS), default_prompt_name=None)
    config = folder.json(_OF_ENCODER)
    if flag(config, "do_lower_case", False) and not lower_case:
        raise UserError(
            f"do_lower_case in {_OF_ENCODER} must be false, since the vocabulary keeps "
            "capitals here."
        )
    check_fields(config, module_output_name="token_embeddings")
    check_fields(config, transformer_task="feature-extraction")
    for name in ("model_args", "tokenizer_args", "config_args", "processor_kwargs"):
        check_fields(config, **{name: {}})
    modality = config.get("modality_config")
    if modality is not None and modality != _MODALITY:
        raise UserError(
            f"modality_config in {_OF_ENCODER} must be {_MODALITY}. Received: "
            f"{short(modality)}"
        )


def _max_length(folder, most):
    """The tokens that are read of a text, or None; `most` is the encoder's limit."""
    length = folder.json(_OF_ENCODER).get("max_seq_length")
    length = length or folder.json("tokenizer_config.json").get("model_max_length")
    # transformers writes a huge number where there is no limit.
    if length is None or isinstance(length, (int, float)) and length > _MOST_TOKENS:
        if most is None:
            folder.remark(
                "texts of any length: they are cut to those of FEATURE_LENGTHS"
            )
        return None
    length = integer({"max_seq_length": length}, "max_seq_length", low=2)
    return min(length, most or length)


def _pooling(config):
    """The names of the poolings, a tuple of str."""
    for name in ("word_embedding_dimension", "embedding_dimension"):
        config.get(name)  # The encoder has it.
    flags = tuple(ours for name, ours in _FLAGS.items() if flag(config, name, False))
    modes = config.get("pooling_mode") or flags or "mean"
    modes = (modes,) if isinstance(modes, str) else modes
    if not isinstance(modes, (list, tuple)):
        raise UserError(
            f"pooling_mode must be a list of names. Received: {modes!r:.60}"
        )
    for mode in modes:
        word({"pooling_mode": mode}, "pooling_mode", None, [*_FLAGS.values()])
    others = [x for x in config if x.startswith("pooling_mode_") and x not in _FLAGS]
    if unknown := [name for name in others if config[name]]:
        raise UserError(f"{unknown[0]} is a pooling that is not known here.")
    return tuple(modes)


def _dense(config):
    """Units, activation and whether it has a bias, of a `EmbeddingHead`'s layer."""
    config.get("in_features")  # The arrays have it.
    function = config.get("activation_function") or "torch.nn.Tanh"
    # sentence-transformers imports no others.
    if isinstance(function, str) and function.startswith("torch."):
        function = function.rpartition(".")[2]
    name = word({"activation_function": function}, "activation_function", None, _OURS)
    return integer(config, "out_features"), _OURS[name], flag(config, "bias", True)
