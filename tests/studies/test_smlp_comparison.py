"""The comparison of sMLP: what it reads off runs, its FLOPs, and two models trained."""

import math

import pytest

from remixer_tf import configuration
from remixer_tf.analysis.costs import count
from studies import runs, smlp
from studies.smlp_models import MODELS
from studies.smlp_report import Comparison
from tests.settings import value_of
from tests.tiny_run import write_text

TINY = [
    "NUM_LAYERS = 2",
    "D_MODEL = 16",
    "D_FF = 32",
    "EXPERT_D_FF = 16",
    "NUM_EXPERTS = 2",
    "BATCH_SIZE = 2",
    "MAX_LENGTH = 20",
    "TRAIN_STEPS = 4",
    "WARMUP_STEPS = 1",
    "LossEvaluation.period = 2",
    "LossEvaluation.max_examples = 4",
    "Schedule.steps_per_call = 2",
    "Schedule.log_period = 2",
    "Schedule.checkpoint_period = 4",
]

pytestmark = pytest.mark.usefixtures("clear_gin")


def made_up(last, path=None):
    """A run whose loss falls by 1 from step 100 to step 200."""
    statistics = {f"{path}/router/unused": [[100, 3.0], [200, 1.0]]} if path else {}
    if path:
        statistics[f"{path}/load_largest_over_mean"] = [[100, 4.0], [200, 2.0]]
    return {
        "steps": 200,
        "evaluations": [
            {"step": 100, "loss": last + 1.0},
            {"step": 200, "loss": last},
        ],
        "statistics": statistics,
        "parameters": 1234,
        "seconds": 60.0,
        "cpu_seconds": 30.0,
    }


@pytest.fixture
def comparison():
    path = "statistics/lm/layer_1/moe"
    return Comparison(
        # sMLP is better by 0.3 after as many steps, but takes twice the time.
        {
            "switch": [made_up(x, path) for x in (1.0, 1.1, 1.2)],
            "smlp": [made_up(x) for x in (0.7, 0.8, 0.9)],
        },
        {
            "switch": {"flops_per_token": 1.5e6, "seconds": [0.2, 0.1, 0.1]},
            "smlp": {"flops_per_token": 1.5e6, "seconds": [0.4, 0.2, 0.2]},
        },
    )


def test_equal_time_is_that_of_the_quickest_model(comparison):
    assert comparison.seconds == pytest.approx(200 * 0.1)
    assert comparison.by_steps["smlp"] == pytest.approx([0.7, 0.8, 0.9])
    # 100 steps of 0.2 seconds.
    assert comparison.by_time["smlp"] == pytest.approx([1.7, 1.8, 1.9])
    assert comparison.by_time["switch"] == comparison.by_steps["switch"]
    answers = comparison.answers()
    assert answers.count("smlp better than") == 1  # of the models that are there
    assert (
        "| smlp better than switch | supported (gap +0.3000, +3.0 deviations) "
        "| contradicted (gap -0.7000, -7.0 deviations) |"
    ) in answers


def test_tables(comparison):
    mean = sum(math.exp(x) for x in (1.0, 1.1, 1.2)) / 3
    _, _, switch, _ = comparison.table().splitlines()
    assert switch.startswith(f"| switch | 15.31 | {mean:.3f} ± 0.301 |")
    assert switch.endswith("| 185k | 100.0 | 0.50 | 1.500 | 1,234 | 30 | 60 |")
    assert comparison.loads().splitlines()[2:] == ["| switch | layer_1/moe | 1 | 2 |"]


def test_picture(comparison, tmp_path):
    comparison.draw(tmp_path / "smlp.png")
    assert (tmp_path / "smlp.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slower
def test_models_have_equal_flops():
    """Forward; the backward pass has two products for each.

    HASH drops nothing: its blocks of rows are computed whole, and some are half empty.
    """
    flops = {}
    for name, model in MODELS.items():
        settings = configuration.read([model.file, smlp.RUN_FILE], model.bindings)
        found = count(
            value_of(settings, "Run.model"),
            value_of(settings, "train.optimizer"),
            batch_size=value_of(settings, "Batching.batch_size"),
            feature_lengths=value_of(settings, "Run.feature_lengths"),
        )
        flops[name] = found.total.matmul_flops
    assert 1.1 < flops.pop("hash") / min(flops.values()) < 1.13
    assert max(flops.values()) / min(flops.values()) < 1.02


@pytest.mark.slower
def test_command(tmp_path, capfd):
    text = write_text(tmp_path / "text")
    arguments = [f"--text={text}", f"--output={tmp_path}", "--seeds=1", "--rounds=2"]
    arguments += ["--variants=^(smlp|switch)$", *(f"--gin={value}" for value in TINY)]
    smlp.main([*arguments, "--time"])
    # In this process, which has TensorFlow already; tests/test_ablation.py has workers.
    data = runs.text_files(text)
    for name in ("smlp", "switch"):
        model = MODELS[name]
        bindings = [*model.bindings, *TINY, "SEED = 0"]
        files = [model.file, smlp.RUN_FILE]
        run = (f"{name}-0", files, bindings, data, str(tmp_path))
        runs.train(runs.Run(*run))
    smlp.main(arguments)
    printed = capfd.readouterr().out
    assert "| smlp better than switch | undecided (gap " in printed
    for name in ("smlp", "switch"):
        assert f"\n| {name} | 1" in printed  # the paper's perplexity
    assert "token_experts | " in printed
    assert (tmp_path / "smlp.png").exists()
