"""`python -m remixer_tf train`, with small models on mini_cogs."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.checkpoints.reading import available_steps, restore_model
from remixer_tf.commands import run_command
from tests.continuing import assert_continues_exactly
from tests.settings import value_of
from tests.tiny_run import SIZES

OPTIONS = [
    *SIZES,
    "--gin.VOCABULARY=@byte_vocabulary()",
    "--gin.VOCABULARY_FILE=None",
    "--gin.VOCAB_SIZE=259",
    "--gin.DROPOUT_RATE=0.1",
    "--gin.BATCH_SIZE=4",
    "--gin.FEATURE_LENGTHS={'inputs': 24, 'targets': 24}",
    "--gin.LENGTH_BUCKETS=None",
    "--gin.WARMUP_STEPS=2",
    "--gin.LongExamples.count_limit=0",
    "--gin.Schedule.steps_per_call=2",
    "--gin.Schedule.log_period=4",
    "--gin.Schedule.checkpoint_period=4",
    "--gin.WarmupCosineDecay.total_steps=8",
]


pytestmark = pytest.mark.usefixtures("clear_gin")


def arguments(model_dir, steps, model="t5_1_1"):
    return [
        f"--model_dir={model_dir}",
        f"--gin_file=models/{model}_tiny.gin",
        "--gin_file=runs/mini_cogs.gin",
        *OPTIONS,
        f"--gin.TRAIN_STEPS={steps}",
    ]


@pytest.mark.slower
def test_continues_exactly(tmp_path, capsys):
    run_command("train", arguments(tmp_path / "whole", 8, "remixer"))
    parts = tmp_path / "parts"
    given = arguments(parts, 8, "remixer")
    names = assert_continues_exactly(
        tmp_path / "whole", parts, lambda: run_command("train", given)
    )
    assert "continuing from step 4" in capsys.readouterr().out
    assert any("seed_generator" in name for name in names)


@pytest.mark.slower
def test_the_written_configuration_makes_the_trained_model(tmp_path, capsys):
    run_command("train", arguments(tmp_path, 4))
    assert "encoder_decoder, " in capsys.readouterr().out
    assert available_steps(tmp_path / "checkpoints") == [4]
    summary = json.loads((tmp_path / "train_summary.json").read_text())
    assert summary["steps"] == 4 and np.isfinite(summary["loss"])

    batch = {
        "encoder_input_tokens": tf.constant([[5, 6, 7, 1]]),
        "decoder_input_tokens": tf.constant([[0, 8, 9]]),
    }
    given = [text.removeprefix("--gin.").replace("=", " = ", 1) for text in OPTIONS]
    logits = []
    for files, bindings in (
        (
            ["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin"],
            [*given, "TRAIN_STEPS = 4"],
        ),
        ([str(tmp_path / "operative_config.gin")], []),
    ):
        settings = configuration.read(files, bindings)
        model = value_of(settings, "Run.model")()
        model.build()
        assert restore_model(tmp_path, model) == 4
        logits.append(model(batch).numpy())
    np.testing.assert_array_equal(*logits)


@pytest.mark.slower
def test_a_wrong_name_is_one_line_and_exit_code_2(tmp_path):
    command = [sys.executable, "-m", "remixer_tf", "train", *arguments(tmp_path, 8)]
    done = subprocess.run(
        [*command, "--gin.TASK=mini_cog"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 2, done.stderr
    assert "error: No task or mixture" in done.stderr and "mini_cogs" in done.stderr
    assert "Traceback" not in done.stderr
    assert not os.listdir(tmp_path)


@pytest.mark.slower
def test_a_dry_run_tells_what_is_trimmed(tmp_path, capsys):
    count = "--gin.LongExamples.count_limit=50"
    run_command("train", [*arguments(tmp_path, 8), count, "--dry_run"])
    output = capsys.readouterr().out
    assert re.search(
        r"trimmed  mini_cogs train: \d+ of the first 50 examples are longer than "
        r"inputs 24 / targets 24 \(longest: inputs \d+ / targets \d+; first: .+\)",
        output,
    )
    assert "dry run" in output and not os.listdir(tmp_path)
