"""A layer, a task, a metric, a schedule and a decoding function of a user's module."""

import json
import pathlib

import gin
import numpy as np
import pytest
import seqio

from remixer_tf import configuration
from remixer_tf.checkpoints.reading import restore_model
from remixer_tf.commands import run_command
from remixer_tf.data.epochs import examples_per_epoch
from remixer_tf.data.pipeline import data_of, get_task, train_dataset
from remixer_tf.data.vocabularies import vocabulary_size
from remixer_tf.models.build import build_model, declare
from remixer_tf.run import Run
from tests.settings import value_of

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


pytestmark = pytest.mark.usefixtures("clear_gin")


@pytest.mark.slow
def test_a_run_of_parts_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TESTDATA))
    arguments = [f"--model_dir={tmp_path}", f"--gin_file={TESTDATA / 'my_run.gin'}"]
    run_command("train", arguments)
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["metric"] == "my_copies/validation/same_length"
    assert best["value"] == pytest.approx(100 * 2 / 3)  # "def" became "de"

    # Read from what training wrote, it is the same evaluation; with other bindings not.
    path = tmp_path / "eval" / "my_copies" / "validation" / "2" / "metrics.json"
    scored = path.stat().st_mtime_ns
    for binding, new in ((), False), (("--gin.copy_input.leave_out=5",), True):
        gin.clear_config()
        with pytest.raises(configuration.UserError, match="--module_import=my_parts"):
            run_command("eval", [f"--model_dir={tmp_path}", *binding])
        trusted = f"--model_dir={tmp_path}", "--module_import=my_parts"
        run_command("eval", [*trusted, *binding])
        assert (path.stat().st_mtime_ns > scored) == new

    # What training wrote names the module too. Two steps at a rate of 0 change nothing.
    gin.clear_config()
    settings = configuration.read([str(tmp_path / "operative_config.gin")], [])
    model = build_model(value_of(settings, "Run.model"), "float32")
    assert restore_model(str(tmp_path), model) == 2
    (scale,) = (w for w in model.trainable_weights if w.path.endswith("/scale/scale"))
    np.testing.assert_array_equal(scale, np.full(16, 2.0))


def test_what_earlier_runs_wrote_is_still_read():
    """Their layers said one by one what the stack says now."""
    of_layers = [
        "TransformerStack.max_length = None",
        "RemixerBlock.max_length = 64",
        "decoder/RemixerBlock.causal = True",
        "encoder/RemixerBlock.causal = False",
        "encoder/SelfAttention.causal = False",
        "decoder/SelfAttention.causal = True",
        "encoder/RelativePositionBias.bidirectional = True",
        "decoder/RelativePositionBias.bidirectional = False",
        "MoE.causal = True",
    ]
    shapes = []
    for bindings in (of_layers, ["MAX_LENGTH = 64"]):
        gin.clear_config()
        settings = configuration.read(["models/switch_remixer_tiny.gin"], bindings)
        make = value_of(settings, "Run.model")
        model = declare(lambda make=make: build_model(make, "float32"))
        shapes.append({v.path: v.shape for v in model.variables})
    assert shapes[0] == shapes[1]
    assert (1, 64, 64) in shapes[0].values()


NAMED_PARTS = """
import gin
from remixer_tf.layers import FeedForward

@gin.register
class Windowed(FeedForward):
    def __init__(self, windows=1, **options):
        super().__init__(**options)

@gin.register
def of_any_size(size=1, **options):
    return size, options

@gin.register
def of_width(width=1):
    return width
"""


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("train.optimizer = @of_wdith", "knows no 'of_wdith'. Nearest: of_width"),
        ("TransformerStack.norm = 'Windowed'", ".norm=@Windowed"),
        ("TransformerStack.norm = 'named_parts.Windowed'", ".norm=@Windowed"),
        ("Windowed.window = 2", "no parameter 'window'. Nearest: windows"),
        ("of_width.widht = 2", "no parameter 'widht'. Nearest: width"),
        ("of_any_size.lenght = 2", None),
    ],
)
def test_names_of_ones_own(tmp_path, monkeypatch, binding, words):
    """Only a function with **options may take any name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "named_parts.py").write_text(NAMED_PARTS)
    if words is None:
        settings = configuration.read([], [binding], modules=["named_parts"])
        assert value_of(settings, "of_any_size.lenght") == 2
        return
    with pytest.raises(configuration.UserError) as error:
        settings = configuration.read([], [binding], modules=["named_parts"])
    assert words in str(error.value)


def test_gin_configurable_on_a_layer_is_told(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wrong_layer.py").write_text(
        "import gin\n"
        "from remixer_tf.layers import FeedForward\n"
        "@gin.configurable\n"
        "class Wrong(FeedForward):\n"
        "    pass\n"
    )
    (tmp_path / "run.gin").write_text(
        "import wrong_layer\ninclude 'models/t5_1_1_tiny.gin'\n"
        "encoder/TransformerStack.sublayers = {'mine': @Wrong}\n"
    )
    with pytest.raises(configuration.UserError, match="@gin.register") as error:
        configuration.read([str(tmp_path / "run.gin")], [])
    assert "Wrong" in str(error.value) and "\n" not in str(error.value)


PART_WITH_RUN = """
import gin
from remixer_tf.arguments import TheRun
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.run import Run

@gin.register
class AsksTheRun:
    def __init__(self, size, run: TheRun | None = None):
        self.size, self.run = size, run

@gin.register
class OwnEvaluation(LossEvaluation):
    def __init__(self, task="mini_cogs", *, period=100):
        lengths = {"inputs": 8, "targets": 8}
        super().__init__(task, period=period, feature_lengths=lengths)

@gin.register
class WithOthers(LossEvaluation):
    def __init__(self, **kwargs):
        self.given = kwargs

@gin.register
def required(run: TheRun): return run

@gin.register
def quoted(run: "TheRun | None" = None): return run

@gin.register
def of_its_class(run: Run | None = None): return run

@gin.register
def is_of(kind, value=3):
    return isinstance(value, kind), issubclass(bool, kind)

@gin.register
class Kind(int): pass
"""


@pytest.fixture
def read_with_parts(tmp_path, monkeypatch):
    """Reads a run of mini_cogs with bindings that may name PART_WITH_RUN."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "part_with_run.py").write_text(PART_WITH_RUN)
    (tmp_path / "cache").mkdir()

    def read(*bindings):
        return configuration.read(
            ["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin"],
            [
                "VOCABULARY_FILE = 'words.model'",
                "VOCABULARY = @byte_vocabulary()",
                f"CACHE_DIR = '{tmp_path / 'cache'}'",
                *bindings,
            ],
            modules=["part_with_run"],
        )

    return read


def test_a_part_receives_the_run(tmp_path, read_with_parts):
    settings = read_with_parts(
        "train.evaluations = [@AsksTheRun(), @b/AsksTheRun()]",
        "AsksTheRun.size = 3",
        "b/AsksTheRun.run = None",
    )
    asks, without = value_of(settings, "train.evaluations")
    run = settings.call(Run)
    assert (asks.run.task, asks.run.cache_dir) == ("mini_cogs", run.cache_dir)
    assert run.cache_dir == str(tmp_path / "cache") and without.run is None
    lines = settings.text().splitlines()
    assert [x for x in lines if "AsksTheRun.run" in x] == ["b/AsksTheRun.run = None"]
    # What reads data has the run's task and lengths. The caller's come first.
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "cache")):
        settings.call(train_dataset)
    assert settings.call(vocabulary_size) == 384  # 259 bytes and 100 extra ids
    own = get_task("cogs", seqio.ByteVocabulary(extra_ids=300))
    assert settings.call(vocabulary_size, own) == 640
    # The run's own task by its name has the run's cache, too.
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "cache")):
        data_of(run, "mini_cogs")
    assert data_of(run, "cogs")[0].name == "cogs"
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "cache")):
        settings.call(examples_per_epoch)


@pytest.mark.parametrize("part", ["required", "quoted", "of_its_class"])
def test_ways_to_ask_for_the_run(read_with_parts, part):
    settings = read_with_parts(f"train.evaluations = [@{part}()]")
    (run,) = value_of(settings, "train.evaluations")
    assert run.task == "mini_cogs"


def test_evaluations_of_ones_own_get_what_their_call_takes(read_with_parts):
    settings = read_with_parts("train.evaluations = [@OwnEvaluation(), @WithOthers()]")
    own, others = value_of(settings, "train.evaluations")
    assert own.period == 100 and others.given["run"].task == "mini_cogs"


def test_a_value_of_the_run_cannot_ask_for_it(read_with_parts):
    with pytest.raises(configuration.UserError, match="circle: quoted.run is the run"):
        read_with_parts("Run.adapters = @quoted()").call(Run)


def test_a_class_by_reference_is_one_for_isinstance(read_with_parts):
    settings = read_with_parts(
        "train.evaluations = [@is_of(), @b/is_of()]",
        "is_of.kind = @Kind",
        "b/is_of.kind = @AsksTheRun",
    )
    values = value_of(settings, "train.evaluations")
    assert values == [(False, False), (False, False)]
    (kind,) = [settings.written("", "part_with_run.is_of")["kind"]]
    kind = settings.resolve(kind)
    assert isinstance(kind(3), kind) and issubclass(kind.__wrapped__, kind)
