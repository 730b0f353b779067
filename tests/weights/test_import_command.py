"""`python -m remixer_tf import_weights`, and the run that it makes."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.weights import run
from tests.settings import value_of
from tests.tiny_run import TEXTS
from tests.weights import numpy_t5, published

pytestmark = pytest.mark.usefixtures("clear_gin")
SHORT = "--gin.FEATURE_LENGTHS={'inputs': 12, 'targets': 8}"
BYTES = ["--gin.VOCABULARY=@byte_vocabulary()", "--gin.VOCABULARY_FILE=None", SHORT]


@pytest.fixture
def source(tmp_path):
    """A made-up T5.1.1 in Hugging Face's layout, and where its run shall be."""
    weights = numpy_t5.made_up_weights()
    published.write_hugging_face(tmp_path / "t5", weights, **published.NEW)
    return tmp_path / "t5", tmp_path / "run"


def test_a_run_remembers_its_vocabulary_and_goes_back_as_it_came(source, capsys):
    folder, model_dir = source
    train_vocabulary(TEXTS, str(folder / "spiece.model"), model_type="word")
    arguments = [f"--from={folder}", f"--model_dir={model_dir}"]
    run_command("import_weights", [*arguments, SHORT])
    printed = capsys.readouterr().out
    assert "layer_*_feed_forward/norm/scale" in printed and "<-  shared.wei" in printed
    assert sorted(os.listdir(model_dir)) == [
        "checkpoints",
        "operative_config.gin",
        "vocabularies",
        "vocabularies.json",
    ]
    vocabulary = json.loads((model_dir / "vocabularies.json").read_text())["inputs"]
    assert vocabulary["extra_ids"] == 100
    run_command("export", [f"--model_dir={model_dir}", "--format=huggingface"])
    exported = model_dir / "huggingface" / "0"
    for name, value in load_file(folder / "model.safetensors").items():
        copy = load_file(exported / "model.safetensors")[name]
        np.testing.assert_array_equal(copy, value, err_msg=name)
    copy = (exported / "spiece.model").read_bytes()
    assert copy == (folder / "spiece.model").read_bytes()
    with pytest.raises(FileExistsError, match="is not empty"):
        run_command("import_weights", arguments)


def test_what_cannot_be_imported_leaves_nothing(source, monkeypatch):
    folder, model_dir = source
    arguments = [f"--from={folder}", f"--model_dir={model_dir}"]
    before = sorted(os.listdir(model_dir.parent))
    with pytest.raises(configuration.UserError, match="--vocabulary=FILE"):
        run_command("import_weights", arguments)
    with pytest.raises(ValueError, match="359 ids, 100 of them.* weights have 300"):
        run.check_vocabulary_fits({"inputs": {"size": 359, "extra_ids": 100}}, 300)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "remember_vocabularies", fail)
    with pytest.raises(OSError, match="Cannot write .*run: No space left") as error:
        run_command("import_weights", [*arguments, *BYTES])
    assert isinstance(error.value, configuration.UserError)
    assert sorted(os.listdir(model_dir.parent)) == before


@pytest.mark.slow
def test_the_run_answers_and_training_goes_on_from_it(source, tmp_path, capsys):
    folder, model_dir = source
    arguments = [f"--from={folder}", f"--model_dir={model_dir}", *BYTES]
    run_command("import_weights", arguments)
    (model_dir / "questions").write_text("A cat saw the dog .\n\n")
    run_command(
        "infer",
        [
            f"--model_dir={model_dir}",
            f"--input={model_dir / 'questions'}",
            f"--output={model_dir / 'answers'}",
        ],
    )
    assert (model_dir / "answers").read_bytes().count(b"\n") == 2
    (tmp_path / "train.tsv").write_text("inputs\ttargets\n" + "double 1\t2\n" * 8)
    arguments = [
        f"--model_dir={model_dir}",
        f"--gin_file={model_dir}/operative_config.gin",
        f"--gin.FILES={{'train': '{tmp_path}/train.tsv'}}",
        "--gin.BATCH_SIZE=2",
        "--gin.Schedule.log_period=1",
        "--gin.DROPOUT_RATE=0.0",  # not the source's: no random states
    ]
    (model_dir / "eval").mkdir()  # scored before it was trained
    steps = ["--gin.TRAIN_STEPS=1", "--gin.LEARNING_RATE=1e-12"]
    run_command("train", [*arguments, *steps])
    assert "continuing from step 0" in capsys.readouterr().out
    settings = configuration.read([f"{model_dir}/operative_config.gin"], [])
    from remixer_tf.checkpoints.reading import restore_model
    from remixer_tf.models.build import build_model

    model = build_model(value_of(settings, "Run.model"), "float32")
    assert restore_model(str(model_dir), model) == 1
    table = numpy_t5.made_up_weights()["shared.weight"]
    np.testing.assert_allclose(model.token_embedding.embeddings, table, rtol=1e-6)
    with pytest.raises(ValueError, match="another vocabulary"):
        other = [*arguments, "--gin.VOCABULARY/byte_vocabulary.extra_ids=3"]
        run_command("train", [*other, "--gin.TRAIN_STEPS=2"])
