"""The ablation command: two variants for four steps, and its tables."""

import math

import pytest

from remixer_tf import configuration
from remixer_tf.models.build import declare
from studies import ablation, runs
from studies.ablation_variants import GROUPS, VARIANTS
from tests.settings import value_of
from tests.tiny_run import write_text

TINY = [
    "TRAIN_STEPS = 4",
    "WARMUP_STEPS = 1",
    "BATCH_SIZE = 2",
    "D_MODEL = 16",
    "Schedule.steps_per_call = 2",
    "Schedule.log_period = 4",
    "Schedule.checkpoint_period = 4",
]


pytestmark = pytest.mark.usefixtures("clear_gin")


def test_neighbours_follow_the_paper():
    gmlp, remixer = GROUPS
    assert ablation.neighbours(gmlp) == [
        ("transformer_relative", "gmlp_split"),
        ("gmlp_split", "gmlp_multiplicative"),
        ("gmlp_multiplicative", "gmlp_additive"),
        ("gmlp_additive", "gmlp_linear"),
        ("gmlp_linear", "mlp_mixer"),
        ("mlp_mixer", "transformer_minus_attention"),
    ]
    # Table 5's "gating" has two readings; the last two variants have no number.
    assert ablation.neighbours(remixer) == [
        ("remixer_full", "remixer_alpha_gated"),
        ("remixer_full", "remixer_gate"),
        ("remixer_alpha_gated", "remixer_none"),
        ("remixer_gate", "remixer_none"),
    ]


def test_report_of_made_up_runs():
    def made_up(*losses):
        return [{"loss": x, "parameters": 1234, "seconds": 9.6} for x in losses]

    results = {
        "gmlp_split": made_up(2.0, 2.1, 2.2),
        "gmlp_multiplicative": made_up(1.0, 1.1, 1.2),
        "gmlp_additive": made_up(1.1, 1.2, 1.3),
    }
    text = ablation.report(GROUPS[0], results)
    assert "| gmlp_split | 1 | 4.35 | 3 | 2.1000 ± 0.1000 | 3 | 1,234 | 10 |" in text
    assert "| gmlp_additive | 3 | 4.97 | 2 | 1.2000 ± 0.1000 | 3 |" in text
    assert text.splitlines()[-2:] == [
        "- gmlp_split better than gmlp_multiplicative: contradicted (gap -1.0000, "
        "-10.0 deviations).",
        "- gmlp_multiplicative better than gmlp_additive: a tie (gap +0.1000, "
        "+1.0 deviations).",
    ]


def built(model):
    model.build()
    return model


def test_gmlp_variants_have_equal_parameters():
    counts = []
    for variant in GROUPS[0].variants.values():
        settings = configuration.read(
            [variant.file, "runs/ablation.gin"], [*variant.bindings, "SEED = 0"]
        )
        factory = value_of(settings, "Run.model")
        variables = declare(lambda make=factory: built(make())).trainable_variables
        counts.append(sum(math.prod(v.shape) for v in variables))
    assert max(counts) / min(counts) < 1.03


@pytest.mark.slower
def test_command(tmp_path, capfd):
    text = write_text(tmp_path / "text")
    output = tmp_path / "output"
    output.mkdir()
    names = ["gmlp_split", "remixer_none"]
    made = [
        runs.Run(
            f"{name}-0",
            [VARIANTS[name].file, "runs/ablation.gin"],
            [*VARIANTS[name].bindings, *TINY, "SEED = 0"],
            runs.text_files(text),
            str(output),
        )
        for name in names
    ]
    # In this process: it has TensorFlow already.
    results = {name: runs.train(run) for name, run in zip(names, made, strict=True)}
    assert all(r["steps"] == 4 and 3 < r["loss"] < 7 for r in results.values())
    assert results["gmlp_split"]["loss"] != results["remixer_none"]["loss"]

    # Workers find the runs done.
    arguments = [f"--text={text}", f"--output={output}", "--workers=2", "--seeds=1"]
    arguments += ["--variants=split|none", *(f"--gin={binding}" for binding in TINY)]
    capfd.readouterr()
    ablation.main(arguments)
    printed = capfd.readouterr().out
    for name in names:
        assert f"| {name} |" in printed
        assert f"| {results[name]['loss']:.4f} | 1 |" in printed
    assert "frequencies alone has a loss of 2." in printed

    # Results of other settings or data, and damaged ones, are refused.
    refused = pytest.raises(ValueError, match="other settings or data .* Set another")
    faster = [*made[0].bindings, "LEARNING_RATE = 1.0"]
    with refused:
        runs.finished([made[0]._replace(bindings=faster)])
    (text / "more.txt").write_text("More text.")
    runs.data_of.cache_clear()
    with refused:
        runs.finished(made)
    (output / "gmlp_split-0.json").unlink()  # as in a run that was stopped
    with refused:
        runs.finished(made)
    (text / "more.txt").unlink()
    runs.data_of.cache_clear()
    assert [*runs.finished(made)] == ["remixer_none-0"]
    (output / "gmlp_split-0.json").write_text('{"identity":')
    with pytest.raises(
        ValueError, match="gmlp_split-0.json is damaged. Remove it: its"
    ):
        runs.finished(made)
