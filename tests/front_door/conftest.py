"""Runs that `remixer_tf.load` loads: tiny, each trained for some steps."""

import gin
import pytest

from remixer_tf.commands import run_command
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.tasks import benchmark_files, squad
from tests.data.toy_images import make_folder
from tests.tasks.benchmark_layouts import write_glue
from tests.tasks.test_squad import as_json, question
from tests.tiny_run import LINE, write_text

SHORT = [
    "--gin.D_MODEL=16",
    "--gin.D_FF=24",
    "--gin.NUM_LAYERS=1",
    "--gin.BATCH_SIZE=4",
    "--gin.TRAIN_STEPS=2",
    "--gin.WARMUP_STEPS=1",
    "--gin.Schedule.log_period=1",
    "--gin.Schedule.checkpoint_period=2",
    "--gin.train.evaluations=[]",
    "--gin.LongExamples.count_limit=0",
]
BERT = [
    "--gin.D_KV=8",
    "--gin.NUM_HEADS=2",
    "--gin.INITIAL_CHECKPOINT=None",
    "--gin.Checkpointing.initial=None",
    "--gin.VOCABULARY=@byte_vocabulary()",
    "--gin.VOCABULARY_FILE=None",
    "--gin.VOCAB_SIZE=262",
]
QUESTIONS = [
    question("1", "who?", "it was Ann or Bo who came in first, before all", "Ann"),
    question("2", "wo?", "in Köln", "Köln"),
    question("3", "when?", "never"),
]


def train(folder, *arguments):
    run_command("train", [f"--model_dir={folder}", *arguments])
    gin.clear_config()


@pytest.fixture(scope="session")
def classifier_run(make_once):
    """A BERT that says whether a text is "negative" or "positive"."""

    def make(folder):
        write_glue(folder)
        benchmark_files.glue_folder.set(str(folder))
        train(
            folder / "run",
            "--gin_file=models/bert_tiny.gin",
            "--gin_file=runs/finetune_classifier.gin",
            *BERT,
            "--gin.TASK=sst2_classes",
            "--gin.NUM_CLASSES=2",
            "--gin.FEATURE_LENGTHS={'inputs': 24, 'token_types': 24, 'targets': 1}",
            *SHORT,
        )

    folder = make_once("glue", make)
    benchmark_files.glue_folder.set(str(folder))
    yield folder / "run"
    benchmark_files.glue_folder.set(None)


@pytest.fixture(scope="session")
def span_run(make_once):
    """A BERT that answers by spans, in windows of 24 bytes, or not at all."""

    def make(folder):
        folder.mkdir()
        for split in ("train", "dev"):
            (folder / f"{split}.json").write_text(as_json(QUESTIONS))
        train(
            folder / "run",
            "--gin_file=models/bert_tiny.gin",
            "--gin_file=runs/finetune_squad.gin",
            *BERT,
            "--gin.TASK=squad_files_spans",
            f"--gin.squad_files.directory='{folder}'",
            "--gin.FEATURE_LENGTHS={'inputs': 80, 'token_types': 80, "
            "'answerable': 80, 'targets': 2}",
            "--gin.NULL_THRESHOLD=1.0",
            *SHORT,
        )

    folder = make_once("squad", make)
    squad.data_folder.set(str(folder))
    yield folder / "run"
    squad.data_folder.set(None)


@pytest.fixture(scope="session")
def image_run(make_once):
    """A gMLP that says the colour of images of 12 x 12 pixels."""
    return make_once("colors", _train_on_images) / "run"


def _train_on_images(folder):
    make_folder(folder / "images", {"train": 4, "validation": 2}, size=(12, 12))
    train(
        folder / "run",
        "--gin_file=models/gmlp_vision_tiny.gin",
        "--gin_file=runs/imagenet.gin",
        "--gin.SOURCE=@ImageFolder()",
        f"--gin.ImageFolder.directory='{folder / 'images'}'",
        "--gin.IMAGE_SIZE=8",
        "--gin.NUM_CLASSES=3",
        "--gin.EXAMPLES_PER_EPOCH=12",
        "--gin.image_dataset.transforms=[@random_resized_crop, @normalize]",
        "--gin.image_dataset.mixing=[]",
        *SHORT,
    )


@pytest.fixture(scope="session")
def lm_run(make_once):
    """A gMLP that continues texts."""
    return make_once("lm", _train_on_bytes) / "run"


@pytest.fixture(scope="session")
def words_lm_run(make_once):
    """As `lm_run`, on the words of `words.model` next to it."""
    return make_once("words_lm", _train_on_words) / "run"


def _train_on_bytes(folder):
    folder.mkdir()
    _train_on_texts(
        folder,
        "--gin.VOCABULARY=@byte_vocabulary()",
        "--gin.VOCABULARY_FILE=None",
        "--gin.VOCAB_SIZE=259",
    )


def _train_on_words(folder):
    folder.mkdir()
    file = f"{folder}/words.model"
    train_vocabulary([LINE] * 40, file, model_type="word")
    _train_on_texts(folder, f"--gin.VOCABULARY_FILE='{file}'", "--gin.VOCAB_SIZE=40")


def _train_on_texts(folder, *vocabulary):
    train(
        folder / "run",
        "--gin_file=models/gmlp_lm_tiny.gin",
        "--gin_file=runs/lm.gin",
        *vocabulary,
        "--gin.FEATURE_LENGTHS={'targets': 64}",
        f"--gin.text_files.directory='{write_text(folder / 'text')}'",
        *SHORT,
    )
