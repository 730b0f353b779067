"""`--format=huggingface`: ours to Hugging Face and back, bitwise."""

import dataclasses
import json
import os
import resource

import numpy as np
import pytest
import seqio
from safetensors.numpy import load_file

from remixer_tf import configuration
from remixer_tf.checkpoints.whole_folder import write_whole
from remixer_tf.data.vocabularies import sentencepiece_vocabulary
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.weights.to_hugging_face import export_hugging_face, t5_config
from tests.data.toy_tasks import toy_task
from tests.models.tiny import tiny_decoder, tiny_model
from tests.settings import value_of
from tests.weights.test_importing import imported

pytestmark = pytest.mark.usefixtures("clear_gin")


def values(model):
    return {v.path: v.numpy() for v in model.trainable_variables}


@pytest.mark.parametrize(
    "tied_logits", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_round_trip(tmp_path, tied_logits):
    model = tiny_model("t5_1_1", tied_logits=tied_logits)
    folder = str(tmp_path / "1")
    # A file over the limit fails as a write to a full disk does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with pytest.raises(OSError, match="Cannot write .*File too large"):
            export_hugging_face(model, toy_task({"dev": []}), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not os.listdir(tmp_path)
    assert export_hugging_face(model, toy_task({"dev": []}), folder) == folder
    assert sorted(os.listdir(folder)) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ]
    with open(f"{folder}/tokenizer_config.json") as file:  # 4.x has another default
        assert json.load(file)["clean_up_tokenization_spaces"] is False
    back = imported(folder, tmp_path)
    file = str(tmp_path / "imported.gin")
    settings = configuration.read([file], [], complete=False)
    assert value_of(settings, "GatedFeedForward.activation") == "gelu"
    expected, received = values(model), values(back)
    assert expected.keys() == received.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(received[path], value, err_msg=path)
    with pytest.raises(FileExistsError, match="already"):
        export_hugging_face(model, toy_task({"dev": []}), folder)


def test_a_head_of_zeros(tmp_path):
    model = tiny_model("t5_1_1", max_length=200)
    model.logits.kernel.assign(np.zeros(model.logits.kernel.shape))
    export_hugging_face(model, toy_task({"dev": []}), str(tmp_path / "1"))


def test_what_enable_lora_added_is_merged(tmp_path):
    model = tiny_model("t5_1_1")
    layer = model.encoder.blocks[0].sublayer.query
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.random.default_rng(0).normal(size=(2, layer.units)))
    folder = export_hugging_face(model, toy_task({"dev": []}), str(tmp_path / "1"))
    found = load_file(f"{folder}/model.safetensors")
    name = "encoder.block.0.layer.0.SelfAttention.q.weight"
    np.testing.assert_allclose(found[name].T, layer.kernel, rtol=1e-5, atol=1e-6)
    assert not any("lora" in name for name in found)


@pytest.mark.slow
def test_the_vocabulary_of_an_object_store(tmp_path):
    words, ram = str(tmp_path / "words.model"), f"ram://{tmp_path}/words.model"
    train_vocabulary(["the girl saw a dog"], words, model_type="word")
    write_whole(ram, (tmp_path / "words.model").read_bytes())
    feature = seqio.Feature(sentencepiece_vocabulary(ram))
    task = toy_task({"dev": []})
    task.output_features.update(inputs=feature, targets=feature)
    folder = export_hugging_face(tiny_model("t5_1_1"), task, str(tmp_path / "1"))
    copy = tmp_path / "1" / "spiece.model"
    assert folder and copy.read_bytes() == (tmp_path / "words.model").read_bytes()


def test_inputs_without_eos_are_refused(tmp_path):
    task = toy_task({"dev": []})
    feature = dataclasses.replace(task.output_features["inputs"], add_eos=False)
    task.output_features["inputs"] = feature
    with pytest.raises(ValueError, match="ends texts with </s>, and the inputs of"):
        export_hugging_face(tiny_model("t5_1_1"), task, str(tmp_path / "1"))


def test_a_language_model_is_refused():
    with pytest.raises(ValueError, match="it has a DecoderOnly"):
        t5_config(tiny_decoder("gmlp"))


@pytest.mark.parametrize(
    "kind, name", [("remixer", "RemixerBlock"), ("mixer_encoder", "TokenMixingMLP")]
)
def test_others_are_refused(kind, name):
    with pytest.raises(ValueError, match=f"cannot hold this model: it has .*{name}"):
        t5_config(tiny_model(kind))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.encoder.blocks[0].sublayer, "causal", True),
        lambda model: setattr(model.decoder.position_bias, "bidirectional", True),
    ],
)
@pytest.mark.parametrize("head_of_zeros", [False, True])
def test_another_equation_in_the_same_layers_is_refused(
    tmp_path, change, head_of_zeros
):
    """transformers would load the file, and answer otherwise."""
    model = tiny_model("t5_1_1", max_length=200)
    change(model)
    if head_of_zeros:
        model.logits.kernel.assign(np.zeros(model.logits.kernel.shape))
    with pytest.raises(ValueError, match="other logits than a T5 with its weights"):
        export_hugging_face(model, toy_task({"dev": []}), str(tmp_path / "1"))
    assert not os.listdir(tmp_path)
