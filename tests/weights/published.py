"""Made-up weights in the published layouts."""

import json
import re

import ml_dtypes
import msgpack
import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

# What transformers 5 writes of a T5.1.1, and what earlier versions wrote.
SIZES = {
    "vocab_size": 384,
    "d_model": 8,
    "d_kv": 3,
    "d_ff": 10,
    "num_heads": 2,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "relative_attention_num_buckets": 32,
}
NEW = {"tie_word_embeddings": True, "scale_decoder_outputs": False}
OLD = {"tie_word_embeddings": False}


def write_hugging_face(folder, weights, shards=1, **config):
    """Writes config.json and safetensors; `config` adds to what all have."""
    folder.mkdir(parents=True, exist_ok=True)
    gated = any(".wi_0." in name for name in weights)
    decoder = any(name.startswith("decoder") for name in weights)
    kind = config.get("model_type", "t5").upper()
    config = {
        "architectures": [
            f"{kind}ForConditionalGeneration" if decoder else f"{kind}EncoderModel"
        ],
        "model_type": "t5",
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        **SIZES,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return
    weight_map = {}
    for shard in range(shards):
        part = dict(list(weights.items())[shard::shards])
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _sublayers(name):
    """Splits "encoder.block.1.layer.0.SelfAttention.q.weight" for the others."""
    pattern = r"(\w+)\.block\.(\d+)\.layer\.(\d+)\.(.+)\.weight"
    return re.fullmatch(pattern, name).groups()


def mesh_names(weights, norm="rms_norm"):
    """The same weights under Mesh TensorFlow's names."""
    final = "rms_norm" if norm == "rms_norm" else "final_layer_norm"
    renamed = {
        "shared/embedding": weights["shared.weight"],
        "encoder/" + final + "/scale": weights["encoder.final_layer_norm.weight"],
        "decoder/" + final + "/scale": weights["decoder.final_layer_norm.weight"],
    }
    if "lm_head.weight" in weights:
        renamed["decoder/logits/kernel"] = weights["lm_head.weight"].T
    for name, value in weights.items():
        if ".block." not in name:
            continue
        stack, block, layer, rest = _sublayers(name)
        rest = rest.replace("layer_norm", f"{norm}/scale").replace(".", "/")
        rest += "/kernel" if "Dense" in rest else ""
        where = f"{stack}/block_{int(block):03}/layer_{int(layer):03}/{rest}"
        renamed[where] = value.T if value.ndim == 2 else value
    return renamed


def write_mesh_tensorflow(prefix, weights, norm="rms_norm"):
    """Writes a TensorFlow 1 checkpoint in bfloat16, with slots of the optimizer."""
    tensors = {}
    for name, value in mesh_names(weights, norm).items():
        tensors[name] = tf.cast(np.ascontiguousarray(value), tf.bfloat16)
        if value.ndim == 2:
            tensors[f"{name}_slot_vr"] = tf.zeros(value.shape[:1])
            tensors[f"{name}_slot_vc"] = tf.zeros(value.shape[1:])
        else:
            tensors[f"{name}_slot_v"] = tf.zeros(value.shape)
    tensors["global_step"] = tf.constant(1000, tf.int64)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def t5x_names(weights):
    """The same weights under T5X's names."""
    renamed = {
        "token_embedder/embedding": weights["shared.weight"],
        "decoder/logits_dense/kernel": weights["lm_head.weight"].T,
        "encoder/encoder_norm/scale": weights["encoder.final_layer_norm.weight"],
        "decoder/decoder_norm/scale": weights["decoder.final_layer_norm.weight"],
    }
    attentions = {"encoder": "attention", "decoder": "self_attention"}
    projections = {"q": "query", "k": "key", "v": "value", "o": "out"}
    for name, value in weights.items():
        if ".block." not in name:
            continue
        stack, block, layer, rest = _sublayers(name)
        kind, _, part = rest.partition(".")
        of_layer = [attentions[stack], "encoder_decoder_attention", "mlp"]
        if stack == "encoder":
            of_layer = [attentions[stack], "mlp"]
        sublayer = of_layer[int(layer)]
        if part == "relative_attention_bias":
            renamed[f"{stack}/relpos_bias/rel_embedding"] = value.T
        elif kind == "layer_norm":
            sublayer = sublayer.replace("encoder_decoder", "cross")
            renamed[f"{stack}/layers_{block}/pre_{sublayer}_layer_norm/scale"] = value
        else:
            part = projections.get(part, part)
            renamed[f"{stack}/layers_{block}/{sublayer}/{part}/kernel"] = value.T
    return renamed


def from_t5x_names(arrays):
    """Weights under Hugging Face's names, of arrays under T5X's."""
    renamed = {
        "shared.weight": arrays["token_embedder/embedding"],
        "lm_head.weight": arrays["decoder/logits_dense/kernel"].T,
    }
    kinds = ("SelfAttention", "EncDecAttention")
    for stack in ("encoder", "decoder"):
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        renamed[bias] = arrays[f"{stack}/relpos_bias/rel_embedding"].T
        scale = arrays[f"{stack}/{stack}_norm/scale"]
        renamed[f"{stack}.final_layer_norm.weight"] = scale
        attentions = ["attention"]
        if stack == "decoder":
            attentions = ["self_attention", "encoder_decoder_attention"]
        for block in range(2):
            ours, theirs = f"{stack}.block.{block}.layer", f"{stack}/layers_{block}"
            for number, name in enumerate(attentions):
                for part in ("query", "key", "value", "out"):
                    kernel = arrays[f"{theirs}/{name}/{part}/kernel"].T
                    where = f"{ours}.{number}.{kinds[number]}"
                    renamed[f"{where}.{part[0]}.weight"] = kernel
                name = name.replace("encoder_decoder", "cross")
                scale = arrays[f"{theirs}/pre_{name}_layer_norm/scale"]
                renamed[f"{ours}.{number}.layer_norm.weight"] = scale
            last = len(attentions)
            scale = arrays[f"{theirs}/pre_mlp_layer_norm/scale"]
            renamed[f"{ours}.{last}.layer_norm.weight"] = scale
            for part in ("wi_0", "wi_1", "wo"):
                kernel = arrays[f"{theirs}/mlp/{part}/kernel"].T
                renamed[f"{ours}.{last}.DenseReluDense.{part}.weight"] = kernel
    return renamed


def flax_array(array):
    """An array as Flax writes it with msgpack."""
    content = (array.shape, array.dtype.name, np.ascontiguousarray(array).tobytes())
    return msgpack.ExtType(1, msgpack.packb(content))


def write_t5x(path, weights, leaf=lambda name, array: flax_array(array)):
    """Writes a msgpack file; `leaf(name, array)` is what it has for an array."""
    target = {}
    for name, value in t5x_names(weights).items():
        *folders, last = name.split("/")
        place = target
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = leaf(name, value)
    state = {"step": flax_array(np.int32(7))}
    tree = {"version": 3, "optimizer": {"target": target, "state": state}}
    path.write_bytes(msgpack.packb(tree))


def write_zarr(folder, name, array, as_uint16=False):
    """Writes a zarr array of bfloat16 as T5X does; returns what msgpack has of it."""
    import tensorstore

    array = np.ascontiguousarray(array).astype(ml_dtypes.bfloat16)
    if as_uint16:
        array = array.view(np.uint16)
    path = f"target.{name.replace('/', '.')}"
    tensorstore.open(
        {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/{path}"}},
        create=True,
        dtype=array.dtype.name,
        shape=array.shape,
    ).result().write(array).result()
    # It was written on Google Cloud Storage, says the specification.
    return {
        "driver": "zarr",
        "dtype": array.dtype.name,
        "kvstore": {"driver": "gfile", "path": path},
        "metadata": {"shape": list(array.shape), "chunks": list(array.shape)},
    }
