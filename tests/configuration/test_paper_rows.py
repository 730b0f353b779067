"""The papers' rows: listed, as their headers say, and they build, run and train."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.analysis.costs import random_superbatch
from remixer_tf.data.pipeline import get_task
from remixer_tf.layers import LengthMixing
from remixer_tf.objectives import losses
from remixer_tf.objectives.batches import targets_and_weights
from tests.configuration.test_gin_files import (
    TINY,
    TWO_LAYERS,
    configured_model,
    count_parameters,
    model_bindings,
)
from tests.settings import part_of, value_of

PAPERS = pathlib.Path(configuration.gin_folder()) / "papers"
LISTED = pathlib.Path(__file__).parents[1] / "testdata" / "paper_rows.json"
ROWS = json.loads(LISTED.read_text())

# Millions of parameters as computed from the configurations. Every row of Remixer's
# tables 2, 3 and 5 is a model of its Table 1, the gated ones of Table 5 apart. Specs
# count 2 n - 1 position biases a head, where T5's buckets are 32: 0.1M at 24 layers.
SPECS = {
    "gmlp/table1/gmlp_ti": 5.896,
    "gmlp/table1/gmlp_s": 19.501,
    "gmlp/table1/gmlp_b": 73.350,
    "gmlp/table3/bert_base_relative_without_attention": 95.5,
    "gmlp/table3/mixer": 112.0,
    "gmlp/table3/gmlp_linear": 92.2,
    "gmlp/table3/gmlp_additive": 92.2,
    "gmlp/table3/gmlp_multiplicative": 92.2,
    "gmlp/table3/gmlp_split": 101.6,
    "gmlp/table4/transformer_6": 67.1,
    "gmlp/table4/transformer_12": 109.7,
    "gmlp/table4/transformer_24": 194.8,
    "gmlp/table4/transformer_48": 364.9,
    "gmlp/table4/gmlp_18": 59.0,
    "gmlp/table4/gmlp_36": 101.6,
    "gmlp/table4/gmlp_72": 186.8,
    "gmlp/table4/gmlp_144": 357.3,
    "gmlp/table5/bert_base": 110.0,
    "gmlp/table5/bert_large": 335.6,
    "gmlp/table5/gmlp_base": 130.1,
    "gmlp/table5/gmlp_large": 365.3,
    "gmlp/table5/gmlp_xlarge": 940.6,
    "gmlp/table5/amlp_base": 108.8,
    "gmlp/table5/amlp_large": 315.6,
    "remixer/table1/t5_1_1_base": 247.58,
    "remixer/table1/mixer": 212.19,
    "remixer/table1/remixer_base": 253.87,
    "remixer/table1/remixer_sbase": 224.76,
    "remixer/table1/remixer_base_table1": 323.30,
    "remixer/table1/remixer_sbase_table1": 224.11,
    "remixer/table4/t5_1_1_large": 783.2,
    "remixer/table4/t5_1_0_large": 737.7,
    "remixer/table4/remixer_base": 253.87,
}
LENGTHS = {"inputs": 10, "targets": 7}
BATCH_SIZE = 2

_trained = set()  # bindings of models and their optimizer; several rows share a model


pytestmark = pytest.mark.usefixtures("clear_gin")


def header(file):
    lines = (PAPERS / file).read_text().splitlines()
    return " ".join(line[1:].strip() for line in lines if line.startswith("#"))


def printed(row):
    """What a `PaperRow` says under the names that headers use."""
    numbers = {
        "Parameters": row.parameters and row.parameters / 1e6,
        "FLOPs": row.flops,
        "Steps/s": row.steps_per_second,
        **row.metrics,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def test_every_file_is_listed():
    files = {path.relative_to(PAPERS).as_posix() for path in PAPERS.rglob("*.gin")}
    assert files == set(ROWS)
    assert {f"{name}.gin" for name in SPECS} <= files


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[pytest.mark.slower] * (row["parameters"] > 90))
        for file, row in ROWS.items()
    ],
)
def test_parameters_at_full_size(file):
    millions = count_parameters(PAPERS / file) / 1e6
    ours, paper, fits = (
        ROWS[file][key] for key in ("parameters", "paper_parameters", "fits")
    )
    assert abs(millions - ours) < 0.01
    if expected := SPECS.get(file.removesuffix(".gin")):
        assert abs(millions - expected) < 0.11
    if paper is None:
        assert fits is None
    else:
        assert fits == (abs(millions / paper - 1) < 0.01)


# Images, and the row whose header asks for a task of the user's.
NO_TASK = ("gmlp/table1/", "gmlp/table2/", "remixer/table2/cbow")


@pytest.mark.parametrize("file", ROWS)
def test_a_row_is_what_its_header_says(file):
    settings = configuration.read([str(PAPERS / file)], [], complete=False)
    check_header(settings, file)
    if file.startswith("gmlp/"):
        check_that_padding_is_not_masked(settings, file)
    if not file.startswith(NO_TASK):
        check_the_task(settings)


def check_header(settings, file):
    row = part_of(settings, "PaperRow")()
    text = header(file)
    assert text.startswith(f'{row.paper}, {row.table}, row "{row.row}": ')
    paper, table, _ = file.split("/")
    assert (row.paper.lower(), row.table.lower().replace(" ", "")) == (paper, table)
    told = re.findall(r"([A-Z][\w./-]*(?: gen)?): paper ([\d.]+(?:e\d+)?)", text)
    told = {name: float(number) for name, number in told}
    assert told == pytest.approx(printed(row))
    assert told.get("Parameters") == ROWS[file]["paper_parameters"]
    ours = re.search(r"Parameters: .*?ours ([\d.]+)M", text)
    assert float(ours[1]) == ROWS[file]["parameters"]
    assert "not at hand" not in text


def check_that_padding_is_not_masked(settings, file):
    """gMLP, section 4, found it unnecessary; the header says so."""
    unmasked = value_of(settings, "EncoderOnly.mask_padding", True) is False
    name = pathlib.Path(file).stem
    of_text = "table1/" not in file and "table2/" not in file
    assert unmasked == (of_text and name.startswith(("gmlp", "amlp")))
    assert unmasked == ("Padding is not masked, as in the paper" in header(file))


def check_the_task(settings):
    """It is registered and fits the model."""
    task = value_of(settings, "Run.task")
    assert get_task(task).name == task
    lengths = value_of(settings, "Run.feature_lengths")
    macros = re.findall(
        r"^MAX_LENGTH = (\d+)", settings.text(defaults=False), re.MULTILINE
    )
    if macros:
        assert max(lengths.values()) <= int(macros[0])
    assert value_of(settings, "Schedule.train_steps") > 0


@pytest.mark.parametrize(
    "model, run, layers",
    [
        ("t5_1_1_base", "superglue", {"SelfAttention", "GatedFeedForward"}),
        ("remixer_base", "superglue", {"SelfAttention", "RemixerBlock"}),
        ("amlp_base_mlm", "classifier", {"TinyAttention"}),
    ],
)
def test_fine_tuning_drops_a_tenth(model, run, layers):
    """ "Remixers" 3.1.2: on all MLP layers; gMLP's Table 9: hidden units, attention."""
    files = [f"models/{model}.gin", f"runs/finetune_{run}.gin", TINY]
    settings = configuration.read(files, [], complete=False)
    rates = {
        type(layer).__name__: layer.dropout.rate
        for layer in configured_model(settings)._flatten_layers()
        if hasattr(layer, "dropout") and not isinstance(layer, LengthMixing)
    }
    assert layers | {"Block"} <= set(rates) and set(rates.values()) == {0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(f, marks=[pytest.mark.slower] * (i % 6 > 0))
        for i, f in enumerate(ROWS)
    ],
)
def test_runs_and_trains_when_shrunk(file):
    layers = [TWO_LAYERS] * file.startswith("smlp/")
    files = [str(PAPERS / file), TINY, *layers]
    settings = configuration.read(files, [], complete=False)
    optimizer = value_of(settings, "train.optimizer")
    bound = model_bindings(settings), optimizer.__name__
    if bound in _trained:
        return
    model = configured_model(settings)
    model.build()
    optimizer = optimizer()
    batch = random_superbatch(model.batch_spec(BATCH_SIZE, LENGTHS), model)
    batch = {key: value[0] for key, value in batch.items()}
    targets, weights = targets_and_weights(batch)
    with tf.GradientTape() as tape:
        logits = model(batch, training=True)
        loss = losses.cross_entropy(logits, targets, weights, z_loss=1e-4)["loss"]
    assert logits.shape[:-1] == targets.shape and np.isfinite(loss)
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    missing = [
        variable.path
        for variable, gradient in zip(variables, gradients, strict=True)
        if gradient is None
    ]
    assert not missing
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    optimizer.apply(gradients, variables)
    assert int(optimizer.iterations) == 1
    _trained.add(bound)
