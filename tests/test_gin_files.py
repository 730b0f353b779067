"""Every gin model: it parses, has the parameters its header tells, builds and runs."""

import math
import pathlib
import re

import keras
import numpy as np
import pytest

from remixer_tf import gin_utils
from remixer_tf.optimizers import Adafactor
from tests.models.tiny import VOCAB_SIZE, tiny_batch

MODELS = pathlib.Path(gin_utils.gin_folder()) / "models"

# Millions of parameters (specs 1.8 and 3.2; the tiny and small sizes are ours).
PARAMETERS = {
    "t5_1_1_tiny": 9.21,
    "t5_1_1_small": 76.96,
    "t5_1_1_base": 247.58,
    "t5_1_1_large": 783.15,
    "remixer_tiny": 9.47,
    "remixer_small": 81.16,
    "remixer_base": 253.87,
    "remixer_sbase": 224.76,
    "remixer_base_table1": 323.30,
    "remixer_sbase_table1": 224.11,
    "remixer_base_literal": 183.09,
    "remixer_sbase_literal": 148.67,
    "gmlp_tiny": 8.96,
    "amlp_tiny": 9.01,
    "mixer_tiny": 9.32,
    "mixer_base": 212.19,
    "mixer_encoder_tiny": 9.37,
}
TINY = {
    "D_MODEL": 12,
    "D_FF": 24,
    "D_KV": 4,
    "NUM_HEADS": 3,
    "NUM_ENCODER_LAYERS": 1,
    "NUM_DECODER_LAYERS": 1,
    "VOCAB_SIZE": VOCAB_SIZE,
}


def count_parameters(file, bindings=()):
    """Counts without allocating: the variables are declared and never made."""
    gin_utils.parse_gin([str(file)], list(bindings))
    with keras.StatelessScope(initialize_variables=False):
        model = gin_utils.call("EncoderDecoder")
        model.build()
    assert all(v._value is None for v in model.trainable_variables)
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def test_every_model_file_is_listed():
    assert {path.stem for path in MODELS.glob("*.gin")} == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_at_full_size(name):
    file = MODELS / f"{name}.gin"
    millions = count_parameters(file) / 1e6
    assert abs(millions - PARAMETERS[name]) < 0.05
    header = " ".join(
        line.lstrip("# ")
        for line in file.read_text().splitlines()
        if line.startswith("#")
    )
    told = re.search(r"Parameters: (?:.*?ours )?([\d.]+)M", header)
    assert told and abs(float(told[1]) - millions) < 0.01, header
    if "tiny" not in name and name != "remixer_small":
        assert re.search(r"Parameters: paper \d+M", header), header


def test_remixer_small_at_the_parameters_of_t5_1_1_small():
    remixer = count_parameters(MODELS / "remixer_small.gin", ["D_FF = 853"])
    t5 = count_parameters(MODELS / "t5_1_1_small.gin")
    assert abs(remixer / t5 - 1) < 0.001


@pytest.mark.parametrize("name", [*PARAMETERS, "architectures/t5_1_0"])
def test_model_runs_when_shrunk(name):
    file = f"{name}.gin" if "/" in name else str(MODELS / f"{name}.gin")
    bindings = [f"{macro} = {value}" for macro, value in TINY.items()]
    if "t5" not in name:
        bindings.append("MAX_LENGTH = 16")
    if "mixer_" in name and "remixer" not in name:
        bindings.append("D_TOKENS = 8")
        if "encoder" not in name:
            bindings.append("WINDOW = 4")
    gin_utils.parse_gin([file], bindings)
    model = gin_utils.call("EncoderDecoder")
    logits = np.array(model(tiny_batch()))
    assert logits.shape == (3, 7, VOCAB_SIZE) and np.isfinite(logits).all()


def test_t5_1_0_has_tied_logits_and_plain_relu():
    bindings = [f"{macro} = {value}" for macro, value in TINY.items()]
    gin_utils.parse_gin(["architectures/t5_1_0.gin"], bindings)
    model = gin_utils.call("EncoderDecoder")
    model.build()
    paths = [v.path for v in model.variables]
    assert not [path for path in paths if "logits" in path or "wi_0" in path]
    assert model.encoder.blocks[1].sublayer.activation == "relu"


def test_adafactor_state_of_remixer_base_is_under_one_percent():
    gin_utils.parse_gin([str(MODELS / "remixer_base.gin")], [])
    with keras.StatelessScope(initialize_variables=False):
        model = gin_utils.call("EncoderDecoder")
        model.build()
    optimizer = Adafactor()
    parameters = state = 0
    for variable in model.trainable_variables:
        parameters += math.prod(variable.shape)
        slots = optimizer.slot_shapes(variable.shape)
        state += sum(math.prod(shape) for shape in slots.values())
    assert 0 < state < 0.01 * parameters
