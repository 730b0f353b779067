"""Pictures of a checkpoint: what they show, and the files."""

import functools
import pathlib
import re
import shutil

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from matplotlib.figure import Figure
from PIL import Image

from remixer_tf import configuration
from remixer_tf.analysis.drawing import Pictures, draw_checkpoints
from remixer_tf.analysis.observe import observe
from remixer_tf.analysis.panels import Curves, Map, draw_attention, draw_models
from remixer_tf.commands import run_command
from remixer_tf.layers import (
    Context,
    GatedMLP,
    LengthMixing,
    SpatialGatingUnit,
    Sublayer,
    TinyAttention,
    sow,
)
from remixer_tf.models import TransformerStack
from tests.data.toy_tasks import rows, toy_task
from tests.layers.harness import randomize
from tests.models.test_image_classifier import random_images, tiny_classifier
from tests.models.tiny import tiny_batch, tiny_model
from tests.tiny_run import BYTES, TINY

LENGTHS = {"inputs": 10, "targets": 7}
MODELS = "remixer", "t5_1_1"


pytestmark = pytest.mark.usefixtures("clear_gin")


def images_of(figure):
    """{title: array} of the heat maps of a figure."""
    assert isinstance(figure, Figure)
    return {
        axis.get_title(): np.ma.filled(axis.images[0].get_array(), np.nan)
        for axis in figure.axes
        if axis.images and axis.get_title()
    }


@pytest.mark.slow
def test_mean_attention_leaves_padding_out():
    model, batch = tiny_model("remixer"), tiny_batch()
    batch["decoder_target_tokens"][:, 5:] = 0  # No example has more than 5 targets.
    observations = observe(model, batch)
    (cross,) = (
        o for o in observations if "layer_1_cross" in o.layer.path and o.value.ndim == 3
    )
    assert cross.value.shape == (2, 5, 10)
    np.testing.assert_allclose(cross.value.sum(-1), 1, atol=1e-5)
    alone = []
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        alone.append(
            next(
                o.value for o in observe(model, one) if o.layer.path == cross.layer.path
            )
        )
    assert [x.shape for x in alone] == [(2, 5, 10), (2, 5, 9), (2, 5, 8)]
    padded = [np.pad(x, [(0, 0), (0, 0), (0, 10 - x.shape[2])]) for x in alone]
    np.testing.assert_allclose(cross.value, np.mean(padded, axis=0), atol=1e-5)
    batch["decoder_target_tokens"][1, 3:] = 0
    (cross,) = (o for o in observe(model, batch) if o.layer.path == cross.layer.path)
    expected = (padded[0][:, 4] + padded[2][:, 4]) / 2
    np.testing.assert_allclose(cross.value[:, 4], expected, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_axes_of_few_positions_have_whole_numbers(size):
    figure = Figure()
    axes = figure.subplots(2)
    Map(np.eye(size)).draw(figure, axes[0])
    Curves(np.arange(size), {"a": np.ones(size)}, "source").draw(figure, axes[1])
    for axis in (axes[0].xaxis, axes[0].yaxis, axes[1].xaxis):
        assert all(tick == round(tick) for tick in axis.get_ticklocs())


def test_matrices_drawn_equal_the_layers():
    model = tiny_model("remixer")
    observations = observe(model, tiny_batch())
    figures = draw_models({"": (observations, None)}, "a test")
    assert figures.keys() == {"encoder_matrices", "decoder_matrices", "alpha"}
    mixing = {
        layer.path: layer
        for layer in model._flatten_layers()
        if isinstance(layer, LengthMixing)
    }
    assert len(mixing) == 4
    for path, layer in mixing.items():
        _, stack, block, *_ = path.split("/")
        images = images_of(figures[f"{stack}_matrices"])
        image = images[f"layer {block.split('_')[1]}\nremixer: softmax(H)"]
        length = {"encoder": 10, "decoder": 7}[stack]
        np.testing.assert_allclose(image, np.array(layer.matrix(length))[0], rtol=1e-6)
    attention = {o.layer.path: o.value for o in observations if o.name == "attention"}
    images = images_of(figures["decoder_matrices"])
    np.testing.assert_allclose(
        images["layer 1\ncross_attention: mean of heads"],
        attention[
            "encoder_decoder/decoder/layer_1_cross_attention/cross_attention"
        ].mean(0),
        rtol=1e-6,
    )
    assert len(images) == 2 * 3
    lines = figures["alpha"].axes[0].containers
    assert len(lines) == 2
    np.testing.assert_array_equal(lines[0].lines[0].get_ydata(), [0.5, 0.5])


@pytest.mark.slow
def test_models_side_by_side():
    """A Remixer's softmax(H) and a T5's attention, in one row a layer."""
    found = {name: observe(tiny_model(name), tiny_batch()) for name in MODELS}
    alone = {name: draw_models({"": (o, None)}, "one") for name, o in found.items()}
    figures = draw_models({name: (o, None) for name, o in found.items()}, "two")
    assert figures.keys() == {"encoder_matrices", "decoder_matrices", "alpha"}
    for stack in ("encoder", "decoder"):
        expected = {
            title.replace("\n", f"\n{name}\n"): image
            for name in MODELS
            for title, image in images_of(alone[name][f"{stack}_matrices"]).items()
        }
        images = images_of(figures[f"{stack}_matrices"])
        assert images.keys() == expected.keys()
        for title, image in images.items():
            np.testing.assert_array_equal(image, expected[title])
        layers = [title.partition("\n")[0] for title in images]
        assert layers == sorted(layers)
    assert "layer 0\nremixer\nremixer: softmax(H)" in images
    assert "layer 0\nt5_1_1\nself_attention: mean of heads" in images
    labels = figures["alpha"].axes[0].get_legend_handles_labels()[1]
    assert labels == ["remixer: encoder", "remixer: decoder"]


class Gated(keras.Model):
    """gMLP with a matrix, then aMLP with a Toeplitz filter, twice."""

    def __init__(self):
        super().__init__(name="gated")
        gated = functools.partial(GatedMLP, d_ff=8)
        sublayers = {
            "full": gated,
            "filter": functools.partial(
                gated,
                gate=functools.partial(SpatialGatingUnit, toeplitz=True),
                attention=functools.partial(TinyAttention, d_kv=2),
            ),
        }
        self.stack = TransformerStack(
            sublayers, num_layers=2, max_length=8, name="encoder"
        )

    def build(self, input_shape=None):
        self.stack.build((None, None, 4))
        self.built = True

    def call(self, batch, training=False):
        x = ops.one_hot(batch["encoder_input_tokens"], 4)
        return self.stack(x, context=Context())[0]


def test_spatial_gates_are_signed_matrices_and_curves():
    model = Gated()
    model.build()
    randomize(model)
    tokens = np.array([[1, 2, 3, 1, 2, 0], [3, 3, 0, 0, 0, 0]], "int32")
    observations = observe(model, {"encoder_input_tokens": tokens})
    (figure,) = draw_models({"": (observations, None)}, "gated").values()
    layers = {o.layer.path: o.layer for o in observations}
    assert len(layers) == 6  # four with a matrix, two with tiny attention
    full = layers["gated/encoder/layer_1_full/full/gating/mixing"]
    filters = layers["gated/encoder/layer_1_filter/filter/gating/mixing"]
    matrix, toeplitz = (np.array(layer.matrix(5))[0] for layer in (full, filters))
    images = images_of(figure)  # No example has more than 5 tokens.
    for name, expected in (("full", matrix), ("filter", toeplitz)):
        image = images[f"layer 1\n{name}/gating: W"]
        np.testing.assert_allclose(image, expected, rtol=1e-6)
    tiny = images["layer 1\nfilter/attention: mean of heads"]
    np.testing.assert_allclose(tiny.sum(-1), 1, atol=1e-5)
    curves = {axis.get_title(): axis.lines[:-1] for axis in figure.axes if axis.lines}
    for t, line in enumerate(curves["layer 1\nfull/gating: rows of W"]):
        np.testing.assert_allclose(line.get_ydata(), matrix[t], rtol=1e-6)
    (line,) = curves["layer 1\nfilter/gating: filter"]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(-4, 5))
    np.testing.assert_allclose(
        line.get_ydata(), [*toeplitz[:0:-1, 0], *toeplitz[0]], rtol=1e-6
    )


class Own(Sublayer):
    """Sows a mixing matrix, and what pictures do not show."""

    def __init__(self, matrix, **kwargs):
        super().__init__(**kwargs)
        self.matrix = matrix

    def call(self, x, context, training=False):
        sow(self, "intermediates", "mixing", ops.convert_to_tensor(self.matrix))
        sow(self, "intermediates", "speed", x)
        return x


def test_an_own_layer_is_drawn():
    def figures(matrix):
        own = functools.partial(Own, np.array(matrix, "float32"))
        stack = TransformerStack({"own": own}, 1, name="encoder")
        stack.build((None, None, 4))

        def model(batch, training):
            return stack(np.ones((1, 2, 4), "float32"), context=Context())

        tokens = {"encoder_input_tokens": np.ones((1, 2), "int32")}
        return draw_models({"": (observe(model, tokens), None)}, "own")

    weights = [[1.0, 0.0], [0.25, 0.75]]
    image = images_of(figures([weights])["encoder_matrices"])["layer 0\nown: W"]
    np.testing.assert_array_equal(image, weights)
    figure = figures([[[3.0, -1.0], [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]])
    curves = {x.get_title(): x.lines for x in figure["encoder_matrices"].axes}
    first, second, _ = curves["layer 0\nown: rows of W, head 0"]
    np.testing.assert_array_equal(
        [first.get_ydata(), second.get_ydata()], [[3, -1], [4, 5]]
    )
    with pytest.raises(ValueError, match=r"own' \(Own\) sows 'mixing' of .*\(2, 2\)"):
        figures(weights)


@pytest.mark.parametrize("pool", ["cls", "gap"])
def test_rows_of_spatial_gates_as_images(pool):
    model = tiny_classifier("gmlp", pool)  # 2 x 2 patches
    randomize(model)
    observations = observe(model, {"images": random_images()})
    (figure,) = draw_models({"": (observations, 2)}, "images").values()
    matrix = np.array(observations[0].value)[0]
    assert len(matrix) == (5 if pool == "cls" else 4)
    patches = matrix[-4:, -4:]
    shown = images_of(figure)["layer 0\ngmlp/gating: rows of W as images"]
    assert shown.shape == (5, 5)
    for row in range(2):
        for column in range(2):
            image = shown[3 * row : 3 * row + 2, 3 * column : 3 * column + 2]
            expected = patches[2 * row + column].reshape(2, 2)
            np.testing.assert_allclose(image, expected, rtol=1e-6)


@pytest.mark.parametrize("heads, shape", [(5, (1, 6)), (13, (3, 6))])
def test_many_heads_fill_rows_of_six(heads, shape):
    """Each head has a panel, and head 0 one with curves."""
    layer = LengthMixing(heads, max_length=4)
    layer.build((None, 4, heads))
    matrices = np.arange(heads)[:, None, None] - np.ones((4, 4))
    figures = draw_models({"": ([(layer, "mixing", matrices)], None)}, "heads")
    (figure,) = figures.values()
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert panels[0].get_subplotspec().get_gridspec().get_geometry() == shape
    assert len(panels) == heads + 1
    for head, image in enumerate(images_of(figure).values()):
        np.testing.assert_array_equal(image, matrices[head])


def test_text_attention_has_its_tokens_on_the_axes():
    model = tiny_model("t5_1_1")
    one = {key: value[1:2] for key, value in tiny_batch().items()}
    tokens = {
        "encoder": ([f"k{i}" for i in range(9)], [f"k{i}" for i in range(9)]),
        "decoder": ([f"in{i}" for i in range(6)], [f"out{i}" for i in range(6)]),
    }
    figures = draw_attention({"": (observe(model, one), tokens)}, "text")
    assert figures.keys() == {"encoder_text_attention", "decoder_text_attention"}
    for axis in figures["decoder_text_attention"].axes:
        if not axis.get_title():
            continue
        labels = [
            [x.get_text() for x in get()]
            for get in (axis.get_xticklabels, axis.get_yticklabels)
        ]
        keys = "encoder" if "cross" in axis.get_title() else "decoder"
        assert labels == [tokens[keys][0], tokens["decoder"][1]]


def check_page(model_dir, step, names):
    folder = pathlib.Path(model_dir) / "pictures" / str(step)
    page = (folder / "index.html").read_text()
    assert {path.stem for path in folder.glob("*.png")} == names
    for name in names:
        with Image.open(folder / f"{name}.png") as image:
            assert image.format == "PNG" and min(image.size) > 200
            assert len(image.convert("L").getcolors()) > 10
    assert len(re.findall(r'src="data:image/png;base64,', page)) == len(names)
    assert "://" not in page


def read_images(model_dir):
    """{tag: set of steps} of the images that TensorBoard finds."""
    images = {}
    for file in pathlib.Path(model_dir, "tensorboard", "pictures").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                width, height, png = value.tensor.string_val
                shape = tf.io.decode_png(png).shape
                assert shape == (int(height), int(width), 3)
                images.setdefault(value.tag, set()).add(event.step)
    return images


@pytest.mark.slower
@pytest.mark.parametrize("tiny_run", ["words"], indirect=True)
def test_binary_on_a_run(tiny_run, tmp_path, capsys):
    gin.clear_config()
    tiny_run = shutil.copytree(tiny_run, tmp_path / "run")
    names = {"encoder_matrices", "decoder_matrices", "alpha"}
    text = "A cat ."
    names |= {"encoder_text_attention", "decoder_text_attention"}
    run_command(
        "pictures",
        [f"--model_dir={tiny_run}", f"--text={text}", "--gin.Pictures.batch_size=3"],
    )
    page = capsys.readouterr().out.splitlines()[-1]
    assert page == str(tiny_run / "pictures" / "1" / "index.html")
    check_page(tiny_run, 1, names)
    assert read_images(tiny_run) == {name: {1} for name in names}

    other = shutil.copytree(tiny_run, tmp_path / "other")
    shutil.rmtree(other / "pictures")
    run_command(
        "pictures", [f"--model_dir={tiny_run}", f"--next_to={other}", f"--text={text}"]
    )
    check_page(tiny_run, 1, names)
    assert not (other / "pictures").exists()


@pytest.mark.slower
def test_while_training(tmp_path):
    run_command(
        "train",
        [
            f"--model_dir={tmp_path}",
            *BYTES,
            *TINY,
            "--gin.TRAIN_STEPS=2",
            "--gin.train.evaluations=[@Pictures()]",
            "--gin.Pictures.period=1",
            "--gin.Pictures.batch_size=2",
        ],
    )
    for step in (1, 2):
        check_page(tmp_path, step, {"encoder_matrices", "decoder_matrices"})
    steps = read_images(tmp_path)
    assert steps == {name: {1, 2} for name in ("encoder_matrices", "decoder_matrices")}


class Plain(keras.Model):
    """A model without a layer that mixes tokens."""

    def build(self, input_shape=None):
        self.built = True

    def call(self, batch, training=False):
        return ops.one_hot(batch["decoder_input_tokens"], 4)


def test_a_folder_that_cannot_be_written_is_told_before_the_work():
    def parts():
        raise AssertionError("work was done")

    with pytest.raises(OSError, match="Nothing can be written to --model_dir /proc/"):
        draw_checkpoints({"/proc/self": parts})


@pytest.mark.slower
def test_errors_are_one_message(tmp_path, bytes_run):
    task = toy_task({"train": rows([(2, 2)]), "dev": rows([(3, 2), (4, 5)])})
    drawer = Pictures(task, period=1, feature_lengths=LENGTHS)
    with pytest.raises(ValueError, match="nothing to show"):
        drawer.draw_page(str(tmp_path), Plain(name="plain"), 3)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="training splits only.*train"):
        only = toy_task({"train": rows([(2, 2)])}, "only")
        Pictures(only, period=1, feature_lengths=LENGTHS)
    long = Pictures(task, period=1, feature_lengths=LENGTHS, text="a" * 11)
    with pytest.raises(ValueError, match="12 tokens.*1 to 10"):
        long.draw(tiny_model("t5_1_1", max_length=16), 1)
    gin.clear_config()
    for arguments, words in (
        (["--model_dir=nowhere"], "there is no nowhere"),
        ([f"--model_dir={bytes_run}", "--step=7"], "no checkpoint of step 7"),
        ([f"--model_dir={bytes_run}", "--next_to=nowhere"], "--next_to=nowhere is not"),
        ([f"--model_dir={bytes_run}", f"--next_to={bytes_run}/"], "are one run. Name"),
        ([f"--model_dir={bytes_run}", "--gin.Pictures.split='x'"], "no split 'x'"),
        ([f"--model_dir={bytes_run}", "--text= "], "--text is empty. Give it a text"),
        (
            [f"--model_dir={bytes_run}", "--gin.Pictures.batch_size=-2"],
            "batch_size must be an integer of at least 1. Received: batch_size=-2",
        ),
    ):
        with pytest.raises(Exception, match=words) as error:
            run_command("pictures", arguments)
        assert isinstance(error.value, configuration.UserError)
