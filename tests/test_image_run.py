"""`python -m remixer_tf train` and `eval` on a folder of coloured images."""

import json

import gin
import numpy as np
import pytest

from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.evaluation.results import read_results
from tests.continuing import assert_continues_exactly
from tests.data.toy_images import make_folder

pytestmark = pytest.mark.usefixtures("clear_gin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("colors")
    return make_folder(directory, {"train": 8, "validation": 3}, size=(12, 12))


def arguments(model_dir, folder, steps, *more):
    return [
        f"--model_dir={model_dir}",
        "--gin_file=models/gmlp_vision_tiny.gin",
        "--gin_file=runs/imagenet.gin",
        "--gin.SOURCE=@ImageFolder()",
        f"--gin.ImageFolder.directory='{folder}'",
        "--gin.IMAGE_SIZE=8",
        "--gin.NUM_CLASSES=3",
        "--gin.D_MODEL=16",
        "--gin.D_FF=32",
        "--gin.NUM_LAYERS=2",
        "--gin.SURVIVAL_PROBABILITY=0.9",
        "--gin.BATCH_SIZE=12",
        "--gin.LEARNING_RATE=1e-2",
        "--gin.WARMUP_STEPS=3",
        "--gin.EXAMPLES_PER_EPOCH=24",
        "--gin.WarmupCosineDecay.total_steps=40",
        f"--gin.TRAIN_STEPS={steps}",
        "--gin.ImageEvaluation.batch_size=4",
        "--gin.Schedule.steps_per_call=2",
        "--gin.Schedule.log_period=10",
        "--gin.Schedule.checkpoint_period=1000",
        *more,
    ]


@pytest.mark.slow
def test_learns_colours_and_is_scored(tmp_path, folder, capsys):
    plain = [  # colours are what augmentation changes most
        "--gin.image_dataset.transforms=[@random_resized_crop, @random_flip, "
        "@normalize]",
        "--gin.CrossEntropy.label_smoothing=0.0",
    ]
    run_command("train", arguments(tmp_path, folder, 30, *plain))
    shown = capsys.readouterr().out
    assert "images 8x8x3 (first batch), 12 images per step" in shown
    assert " images/s " in shown and "tokens" not in shown
    (result,) = read_results(str(tmp_path), "loss")
    assert (result["split"], result["step"], result["images"]) == ("validation", 30, 9)
    assert result["metrics"]["image_accuracy"] == 1
    assert result["metrics"]["loss"] < 0.7
    summary = json.loads((tmp_path / "train_summary.json").read_text())
    assert summary["steps"] == 30 and np.isfinite(summary["loss"])
    assert summary["images_per_second"] > 0

    (path,) = tmp_path.glob("eval/*/validation/30/loss.json")
    path.unlink()
    gin.clear_config()
    run_command("eval", [f"--model_dir={tmp_path}"])
    assert read_results(str(tmp_path), "loss") == [result]
    accuracy, loss = (result["metrics"][name] for name in ("image_accuracy", "loss"))
    table = capsys.readouterr().out.replace("│", " ").split()
    assert table[table.index("loss") + 1] == f"{loss:.4f}"
    assert table[table.index("image_accuracy") + 1] == f"{accuracy:.4f}"

    run_command("pictures", [f"--model_dir={tmp_path}"])
    drawn = {path.name for path in (tmp_path / "pictures" / "30").iterdir()}
    assert drawn == {"index.html", "stack_matrices.png"}
    with pytest.raises(configuration.UserError, match="--text is for models of text"):
        run_command("pictures", [f"--model_dir={tmp_path}", "--text=a"])


@pytest.mark.slower
def test_the_whole_recipe_continues_exactly(tmp_path, folder):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    recipe = ["--gin.Objective.micro_batches=2", "--gin.Schedule.checkpoint_period=4"]
    run_command("train", arguments(whole, folder, 8, *recipe))
    names = assert_continues_exactly(
        whole, parts, lambda: run_command("train", arguments(parts, folder, 8, *recipe))
    )
    assert any("stochastic_depth" in name for name in names)


@pytest.mark.slower
def test_a_class_that_the_model_lacks(tmp_path, folder):
    more = ["--gin.NUM_CLASSES=2", "--gin.image_dataset.mixing=[]"]
    with pytest.raises(ValueError, match="the class 2, but the model's num_classes is"):
        run_command("train", arguments(tmp_path, folder, 2, *more))
    with pytest.raises(ValueError, match="Expected targets"):
        run_command("train", arguments(tmp_path, folder, 2, more[0]))
