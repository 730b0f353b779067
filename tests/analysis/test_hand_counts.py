"""Counts of `costs` for each row and preset, compared with `hand_counts`."""

import json
import pathlib
import re

import pytest

from remixer_tf import configuration
from remixer_tf.commands import costs
from remixer_tf.configuration.command_line import parse_command_line
from tests.analysis.hand_counts import MODELS, ROWS, T5, Bag, Language

GIN = pathlib.Path(configuration.gin_folder())
FILES = {f"models/{name}": model for name, model in MODELS.items()}
FILES |= {f"papers/{name}": model for name, model in ROWS.items()}
BATCH = {"batch_size": 128, "input_length": 512, "target_length": 114}

pytestmark = pytest.mark.usefixtures("clear_gin")


def test_every_row_and_preset_is_counted():
    paths = [
        *GIN.joinpath("models").glob("*.gin"),
        *GIN.joinpath("papers").rglob("*.gin"),
    ]
    assert {p.relative_to(GIN).with_suffix("").as_posix() for p in paths} == {*FILES}


@pytest.mark.parametrize("file", FILES)
def test_headers_say_what_the_equations_give(file):
    text = GIN.joinpath(f"{file}.gin").read_text()
    header = " ".join(x[1:].strip() for x in text.splitlines() if x.startswith("#"))
    batch = re.search(r"PaperRow.batch = (\{.*\})", text)
    batch = BATCH | (json.loads(batch[1].replace("'", '"')) if batch else {})
    found = FILES[file].count((*batch.values(),))
    if said := re.search(r"ours ([\d,.]+)M", header):
        digits = len(said[1].partition(".")[2])
        assert f"{found.parameters / 1e6:.{digits}f}" == said[1].replace(",", "")
    if said := re.search(r"ours (\d\.\d+e\d+) of matrix products", header):
        assert f"{found.products:.2e}".replace("e+", "e") == said[1]


def arguments_of(file, *bindings):
    """An optimizer and the other arguments of `count` of a gin file."""
    options = [f"--gin_file={file}.gin", *(f"--gin.{x}" for x in bindings)]
    options = parse_command_line(options, None, costs.add_arguments)
    settings = costs.read_model(options.gin_file[0], options)
    return costs.what_to_count(settings, options)[1:]


@pytest.mark.parametrize(
    ("file", "lengths"),
    [
        ("models/remixer_tiny", (256, 114)),
        ("models/t5_1_1_base", (512, 114)),
        ("models/smlp_3b", (512, 114)),
        ("papers/gmlp/table3/gmlp_split", (128, 114)),
        ("papers/smlp/mainexperiments/smlp", (512, 1024)),
    ],
)
def test_lengths_are_no_longer_than_the_model_takes(file, lengths):
    _, arguments = arguments_of(file)
    assert (*arguments["feature_lengths"].values(),) == lengths


def shallow(file, model):
    """The bindings of a model with a few of its layers, and that model."""
    if isinstance(model, T5):
        layers = ["NUM_ENCODER_LAYERS = 2", "NUM_DECODER_LAYERS = 2"]
        return layers, model._replace(layers=(2, 2))
    if isinstance(model, Bag) or "upper" in file:
        return [], model
    if isinstance(model, Language) and model.sparse:
        layers = ["NUM_LAYERS = 3", "NUM_SPARSE_LAYERS = 1"]
        return layers, model._replace(layers=3, sparse=1)
    return ["NUM_LAYERS = 2"], model._replace(layers=2)


# Each model once: rows of several tables, and those of other depths, are the same.
MODELS_OF_TWO = {}
for _file, _model in FILES.items():
    _bindings, _model = shallow(_file, _model)
    MODELS_OF_TWO.setdefault(_model, (_file, _bindings))


@pytest.mark.slower
@pytest.mark.parametrize(
    "model", MODELS_OF_TWO, ids=[file for file, _ in MODELS_OF_TWO.values()]
)
def test_counts_are_those_of_the_equations(model):
    """At full width, with two layers or three. Nothing that is heavy is left out."""
    from remixer_tf.analysis.costs import count

    file, bindings = MODELS_OF_TWO[model]
    optimizer, arguments = arguments_of(file, *bindings)
    found = count(optimizer=optimizer, **arguments)
    batch = arguments["batch_size"], *arguments["feature_lengths"].values()
    expected = model.count(batch)
    assert found.total.parameters == expected.parameters
    assert found.total.matmul_flops == expected.products
    assert not found.uncounted
