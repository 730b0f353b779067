"""Every gin model: it parses, has the parameters its header tells, builds and runs."""

import math
import pathlib
import re

import keras
import numpy as np
import pytest

from remixer_tf import configuration
from remixer_tf.models import EncoderOnly
from remixer_tf.models.build import declare
from remixer_tf.optimizers import Adafactor
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, check_rows_stand_alone, tiny_batch
from tests.settings import value_of

# Besides the tiny ones.
NOT_IN_A_PAPER = {
    "remixer_small",
    "t5_1_1_xl",
    "t5_1_1_xxl",
    "remixer_large",
    "remixer_xl",
    "remixer_xxl",
}
MODELS = pathlib.Path(configuration.gin_folder()) / "models"

# Millions of parameters, computed from the papers but for sizes that these do not have.
PARAMETERS = {
    "gmlp_ti": 5.896,
    "gmlp_s": 19.501,
    "gmlp_b": 73.350,
    "gmlp_vision_tiny": 0.18,
    "mixer_b16": 59.880,
    "mixer_l16": 208.196,
    "deit_ti": 5.717,
    "deit_s": 22.051,
    "deit_b": 86.568,
    "vit_b16": 86.859,
    "vit_l16": 304.716,
    "resmlp_12": 15.351,
    "resmlp_24": 30.021,
    "resmlp_36": 44.690,
    "t5_1_1_tiny": 9.21,
    "t5_1_1_small": 76.96,
    "t5_1_1_base": 247.58,
    "t5_1_1_large": 783.15,
    "t5_1_1_xl": 2849.76,
    "t5_1_1_xxl": 11135.33,
    "remixer_tiny": 9.47,
    "remixer_small": 81.16,
    "remixer_base": 253.87,
    "remixer_large": 795.73,
    "remixer_xl": 2862.34,
    "remixer_xxl": 11147.92,
    "remixer_sbase": 224.76,
    "remixer_base_table1": 323.30,
    "remixer_sbase_table1": 224.11,
    "remixer_base_literal": 183.09,
    "remixer_sbase_literal": 148.67,
    "bert_tiny": 4.96,
    "bert_relative_tiny": 4.89,
    "bert_base": 110.0,
    "bert_large": 335.6,
    "gmlp_tiny_mlm": 4.70,
    "gmlp_base_mlm": 130.1,
    "gmlp_large_mlm": 365.3,
    "gmlp_xlarge_mlm": 940.6,
    "amlp_tiny_mlm": 4.83,
    "amlp_upper_tiny_mlm": 4.75,
    "amlp_base_mlm": 108.8,
    "amlp_large_mlm": 315.6,
    "transformer_lm_tiny": 4.89,
    "gmlp_lm_tiny": 4.70,
    "gmlp_tiny": 8.96,
    "amlp_tiny": 9.01,
    "mixer_tiny": 9.32,
    "mixer_base": 212.19,
    "mixer_encoder_tiny": 9.37,
    "mixer_encoder_base": 233.42,
    "base_lm_3b": 3474.67,
    "base_lm_9b": 9230.60,
    "base_lm_tiny": 6.73,
    "gmlp_1_head_lm_tiny": 4.91,
    "gmlp_8_heads_lm_tiny": 5.72,
    "gmlp_tmoe_lm_tiny": 6.78,
    "gshard_lm_3b": 3474.67,
    "gshard_lm_9b": 9230.60,
    "gshard_lm_tiny": 6.73,
    "hash_lm_3b": 3474.28,
    "hash_lm_9b": 9230.08,
    "hash_lm_tiny": 6.72,
    "smlp_3b": 3884.13,
    "smlp_9b": 9478.48,
    "smlp_partial_tiny": 7.01,
    "smlp_tiny": 7.01,
    "switch_lm_3b": 3474.67,
    "switch_lm_9b": 9230.60,
    "switch_lm_tiny": 6.72,
    "switch_remixer_tiny": 10.23,
    "switch_t5_tiny": 10.10,
}
TINY = str(pathlib.Path(__file__).parents[1] / "testdata" / "tiny.gin")


def configured_model(settings):
    """The model that the gin files read name as Run.model."""
    return value_of(settings, "Run.model")()


def model_bindings(settings):
    """What gin binds of the model, from what `Run.model` refers to on; a tuple.

    Files with the same bindings make the same model.
    """
    text = settings.text(defaults=False)
    statements = re.findall(
        r"^([\w/]+)(\.\w+)? =(.*(?:\n[^\w#\n].*)*)", text, re.MULTILINE
    )
    names, found = {"Run"}, set()
    while names:
        of_names = {x for x in statements if x[0].split("/")[-1] in names} - found
        if names == {"Run"}:
            of_names = {x for x in of_names if x[1] == ".model"}
        found |= of_names
        values = " ".join(value for *_, value in of_names)
        names = {x.split("/")[-1] for x in re.findall(r"[@%]([\w/]+)", values)}
    return tuple(sorted(found))


def declared_model(settings):
    """The configured model at full size; its variables are declared and never made."""

    def make():
        model = configured_model(settings)
        model.build()
        return model

    return declare(make)


_counted = {}  # The parameters of a model, by its bindings.


def count_parameters(file, bindings=()):
    """Counts without allocating."""
    settings = configuration.read([str(file)], list(bindings), complete=False)
    bound = tuple(x for x in model_bindings(settings) if x[0] != "DROPOUT_RATE")
    if bound not in _counted:
        model = declared_model(settings)
        variables = model.trainable_variables
        assert all(v._value is None for v in variables)
        for v in model.variables:  # No layer forgets the names of its axes.
            assert hasattr(v, "axes") or v.name == "seed_generator_state", v.path
        _counted[bound] = sum(math.prod(v.shape) for v in variables)
    return _counted[bound]


def test_a_declared_model_is_never_made():
    settings = configuration.read(["models/gmlp_tiny_mlm.gin"], [], complete=False)
    model = declared_model(settings)
    dense = keras.layers.Dense(1)
    dense.build((1, 1))
    dense.stateless_call([np.ones((1, 1)), np.ones(1)], [], np.ones((1, 1)))
    assert all(variable._value is None for variable in model.trainable_variables)


def test_equal_models_are_built_once():
    def bindings(*lines):
        settings = configuration.read(
            ["models/bert_base.gin"], list(lines), complete=False
        )
        return model_bindings(settings)

    plain = bindings()
    assert {"EncoderOnly", "TransformerStack", "BertFeedForward", "D_FF"} <= {
        name for name, *_ in plain
    }
    assert plain == bindings("Schedule.train_steps = 3", "Run.seed = 4")
    for change in (
        "D_FF = 5",
        "BertFeedForward.d_ff = 5",
        "TransformerStack.norm=None",
    ):
        assert bindings(change) != plain


def test_every_model_file_is_listed():
    assert {path.stem for path in MODELS.glob("*.gin")} == set(PARAMETERS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slower] * (millions > 120))
        for name, millions in PARAMETERS.items()
    ],
)
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
    decimals = len(told[1].partition(".")[2])
    assert round(millions, decimals) == float(told[1]), header
    if "tiny" not in name and name not in NOT_IN_A_PAPER:
        assert re.search(r"Parameters: paper [\d.]+M", header), header


VISION_MODELS = [
    name
    for name in PARAMETERS
    if name.startswith(("deit", "vit", "resmlp"))
    or name in ("gmlp_ti", "gmlp_s", "gmlp_b", "gmlp_vision_tiny")
    or name in ("mixer_b16", "mixer_l16")
]
_ran = set()  # The bindings of models that ran: sizes of a family shrink to one model.
# Its layers differ, so that the one layer of tiny.gin is too few for it.
LAYERS_DIFFER = "amlp_upper_tiny_mlm"
TEXT_MODELS = [
    # Models of paper size shrink to the tiny ones.
    pytest.param(name, marks=[pytest.mark.slow] * name.endswith(("_3b", "_9b")))
    for name in PARAMETERS
    if name not in (*VISION_MODELS, LAYERS_DIFFER, *NOT_IN_A_PAPER)
]
# Of a pattern of two layers, which the one layer of tiny.gin does not have.
TWO_LAYERS = TINY.replace("tiny.gin", "two_layers.gin")


@pytest.mark.parametrize("name", VISION_MODELS)
def test_image_classifier_runs_when_shrunk(name):
    settings = configuration.read([str(MODELS / f"{name}.gin"), TINY], [])
    if (bound := model_bindings(settings)) in _ran:
        pytest.skip("shrunk, it is a model that has run")
    _ran.add(bound)
    model = configured_model(settings)
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    model.build()
    randomize(model)  # The last layer starts at zero.
    logits = check_rows_stand_alone(model, {"images": images})
    assert logits.shape == (3, 1, 5) and np.abs(logits[0] - logits[1]).max() > 0.01


def test_imagenet_decays_neither_norms_nor_biases():
    """As DeiT, whose recipe gMLP follows; also the spatial unit's biases."""
    files = ["models/gmlp_vision_tiny.gin", "runs/imagenet.gin"]
    settings = configuration.read([*files, TINY], [])
    model = configured_model(settings)
    model.build()
    randomize(model)
    optimizer = value_of(settings, "train.optimizer")(learning_rate=1.0)
    variables = model.trainable_variables
    before = [v.numpy() for v in variables]
    optimizer.apply([np.zeros(v.shape, "float32") for v in variables], variables)
    decays = {True: set(), False: set()}
    for variable, value in zip(variables, before, strict=True):
        moved = not np.array_equal(variable.numpy(), value)
        decays[moved].add(variable.path.split("/")[-1])
        if moved:
            np.testing.assert_allclose(variable.numpy(), 0.95 * value, rtol=1e-5)
    assert decays[False] == {"beta", "bias", "gamma", "spatial_bias"}
    assert decays[True] >= {"kernel", "mixing_matrix"}


def test_gmlp_with_mean_pooling():
    """Specs 1.6: without class token and pre_logits."""
    for name, millions in (("ti", 5.867), ("s", 19.423), ("b", 73.075)):
        count = count_parameters(MODELS / f"gmlp_{name}.gin", ["POOL = 'gap'"])
        assert round(count / 1e6, 3) == millions


def test_remixer_small_at_the_parameters_of_t5_1_1_small():
    remixer = count_parameters(MODELS / "remixer_small.gin", ["D_FF = 853"])
    t5 = count_parameters(MODELS / "t5_1_1_small.gin")
    assert abs(remixer / t5 - 1) < 0.001


@pytest.mark.parametrize("name", [*TEXT_MODELS, "architectures/t5_1_0"])
def test_model_runs_when_shrunk(name):
    file = f"{name}.gin" if "/" in name else str(MODELS / f"{name}.gin")
    mixture = name.startswith(("switch", "gshard", "base", "hash", "smlp", "gmlp_tmoe"))
    settings = configuration.read([file, TINY, *[TWO_LAYERS] * mixture], [])
    bound = model_bindings(settings)
    if bound in _ran:
        pytest.skip("shrunk, it is a model that has run")
    model = configured_model(settings)
    model.build()
    logits = check_rows_stand_alone(model, tiny_batch())
    length = 10 if isinstance(model, EncoderOnly) else 7
    assert logits.shape == (3, length, VOCAB_SIZE)
    assert np.abs(logits[0] - logits[1]).max() > 0.01
    _ran.add(bound)


def test_t5_1_0_has_tied_logits_and_plain_relu():
    settings = configuration.read(["architectures/t5_1_0.gin", TINY], [])
    model = configured_model(settings)
    model.build()
    paths = [v.path for v in model.variables]
    assert not [path for path in paths if "logits" in path or "wi_0" in path]
    assert model.encoder.blocks[1].sublayer.activation == "relu"


def test_adafactor_state_of_remixer_base_is_under_one_percent():
    settings = configuration.read([str(MODELS / "remixer_base.gin")], [])
    model = declared_model(settings)
    optimizer = Adafactor()
    parameters = state = 0
    for variable in model.trainable_variables:
        parameters += math.prod(variable.shape)
        for axes in optimizer.slot_axes(variable.shape).values():
            state += math.prod(variable.shape[axis] for axis in axes)
    assert 0 < state < 0.01 * parameters


def attentive_layers(model):
    """The layers of the encoder that have an attention, after a step forward."""
    logits = np.array(model(tiny_batch()))
    assert np.isfinite(logits).all()
    paths = [v.path for v in model.encoder.variables]
    numbers = [re.search(r"/layer_(\d+)_.*attention", path) for path in paths]
    return {int(number[1]) for number in numbers if number}


def test_layers_may_differ(tmp_path):
    file, sizes = str(MODELS / f"{LAYERS_DIFFER}.gin"), ["VOCAB_SIZE = 40"]
    settings = configuration.read([file], sizes)
    assert attentive_layers(configured_model(settings)) == {4, 5}
    written = tmp_path / "operative_config.gin"  # A run goes on with it.
    written.write_text(settings.text())
    settings = configuration.read([str(written)], [])
    assert attentive_layers(configured_model(settings)) == {4, 5}
    settings = configuration.read([file], [*sizes, "NUM_LAYERS = 8"])
    with pytest.raises(ValueError, match="a list of 6 for num_layers=8"):
        configured_model(settings)


def test_an_architecture_of_ones_own(tmp_path):
    """The guide's example: mixing in the lower half, attention in the upper."""
    root = pathlib.Path(__file__).parents[2]
    guide = (root / "docs/guides/own_parts.md").read_text()
    (text,) = re.findall(r"```gin\n(include[^`]*\nLOWER = [^`]*)```", guide)
    (tmp_path / "own.gin").write_text(text)
    tiny = ["D_MODEL = 12", "D_FF = 12", "VOCAB_SIZE = 40"]
    settings = configuration.read([str(tmp_path / "own.gin")], tiny)
    assert attentive_layers(configured_model(settings)) == {4, 5, 6, 7}
