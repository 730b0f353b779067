"""Which arrays are read of a folder of safetensors, and which are refused."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from remixer_tf.errors import UserError
from remixer_tf.weights.formats import read_source
from remixer_tf.weights.safetensors_files import SafetensorsFolder
from remixer_tf.weights.source import to_float32

ONE, TWO = np.ones([2, 3], "float32"), np.full([3], 2, "float32")


def _write(folder, files, index=None):
    for name, arrays in files.items():
        save_file(arrays, folder / name)
    if index:
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": index}))


def _read(folder):
    files = SafetensorsFolder(str(folder), "")
    return {name: files.read(name) for name in files.shapes}


def test_the_single_file_counts_before_an_index(tmp_path):
    """As in transformers, whose `save_pretrained` leaves an earlier index there."""
    _write(
        tmp_path,
        {"model.safetensors": {"a": ONE}, "old-1.safetensors": {"a": 0 * ONE}},
        {"a": "old-1.safetensors"},
    )
    np.testing.assert_array_equal(_read(tmp_path)["a"], ONE)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod."]
)
def test_what_a_wrapper_set_before_all_names(tmp_path, prefix):
    arrays = {f"{prefix}encoder.a": ONE, f"{prefix}b": TWO}
    _write(tmp_path, {"model.safetensors": arrays})
    found = _read(tmp_path)
    assert found.keys() == {"encoder.a", "b"}
    np.testing.assert_array_equal(found["b"], TWO)
    arrays = {f"{prefix}a": ONE, "b": TWO}  # not before all
    _write(tmp_path, {"model.safetensors": arrays})
    assert _read(tmp_path).keys() == arrays.keys()


def test_a_layer_of_a_users_own_is_no_adapter_by_its_name(tmp_path):
    _write(tmp_path, {"model.safetensors": {"encoder/flora_gate/kernel": ONE}})
    assert _read(tmp_path).keys() == {"encoder/flora_gate/kernel"}


@pytest.mark.parametrize(
    "files, index, message",
    [
        (
            {"1.safetensors": {"a": ONE, "b": TWO}, "2.safetensors": {"b": 3 * TWO}},
            {"a": "1.safetensors", "b": "1.safetensors"},
            None,  # the second file is not the index's
        ),
        (
            {"1.safetensors": {"a": ONE, "b": TWO}, "2.safetensors": {"b": 3 * TWO}},
            {"a": "1.safetensors", "b": "2.safetensors"},
            "1.safetensors has b, and .* says that 2.safetensors has it",
        ),
        ({"1.safetensors": {"a": ONE}}, {"b": "1.safetensors"}, "1.safetensors has a"),
        (
            {"1.safetensors": {"a": ONE}},
            {"a": "1.safetensors", "b": "1.safetensors"},
            "lack b",
        ),
        (
            {"model.safetensors": {"base_model.model.q.lora_A.weight": ONE}},
            None,
            "PEFT's adapters, such as .*merge_and_unload",
        ),
        (
            {"model.safetensors": {"q.base_layer.weight": ONE}},
            None,
            "PEFT's adapters",
        ),
    ],
)
def test_files_that_contradict_each_other(tmp_path, files, index, message):
    _write(tmp_path, files, index)
    if message is None:
        np.testing.assert_array_equal(_read(tmp_path)["b"], TWO)
        return
    with pytest.raises(UserError, match=message) as error:
        _read(tmp_path)
    assert "\n" not in str(error.value)


def test_adapters_of_peft_say_so(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match="PEFT's adapters. .*merge_and_unload"):
        read_source(str(tmp_path))


def test_quantized_models_say_so(tmp_path):
    config = {"model_type": "t5", "quantization_config": {"quant_method": "bnb"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="is quantized: .*bnb.*dequantize"):
        read_source(str(tmp_path))


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([1, 2], "int8"), "q has the type int8. Expected: float32"),
        (np.array([True]), "q has the type bool"),
        (np.array([1.0, 1e300]), "q has 1 numbers that are not finite .* 1e\\+300"),
        (np.array([np.nan, 1], "float32"), "q has 1 numbers .* nan"),
        (np.array([np.inf], "float16"), "q has 1 numbers .* inf"),
    ],
)
def test_numbers_that_are_no_weights(array, message):
    with pytest.raises(UserError, match=message):
        to_float32("q", array)
    half = np.array([1.5, -2], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(to_float32("q", half), [1.5, -2])
