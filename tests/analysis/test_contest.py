"""`compare --metric`: contestants over seeds, against SciPy's bootstrap and by hand."""

import csv
import json
import shutil

import numpy as np
import pytest
from scipy.stats import bootstrap

from remixer_tf.analysis.contest import Contestant, cost_axis, interval
from remixer_tf.commands import run_command
from tests.analysis.test_comparison import measured, seeded, write_result

METRIC = "cogs/test/em"


@pytest.fixture
def runs(tmp_path):
    """a of the seeds 0, 1 and 2, b of 0, 2 and 5; seed 2 is easy."""
    found = []
    for name, values in (("a", {0: 1.0, 1: 2.0, 2: 6.0}), ("b", {0: 2.0, 2: 9, 5: 4})):
        for seed, value in values.items():
            folder = tmp_path / f"{name}{seed}"
            gin = f"A = {name == 'a'}"
            found.append(seeded(folder, seed, float(value), gin))
            path = folder / "train_summary.json"
            flops = {"flops_per_token": 1e6 if name == "a" else 3e7}
            path.write_text(json.dumps(json.loads(path.read_text()) | flops))
    return found


def compare(capsys, *arguments):
    run_command("compare", [*map(str, arguments), f"--metric={METRIC}"])
    return capsys.readouterr().out


def test_means_and_paired_differences(runs, capsys):
    """b less a: 1 of seed 0 and 3 of seed 2, so 2 of two pairs."""
    rows = [*csv.DictReader(compare(capsys, *runs, "--format=csv").splitlines())]
    a, b = rows
    assert a["contestant"].startswith("a0, a1, a2") and a["difference"] == ""
    assert [a["seeds"], b["seeds"], b["paired_seeds"]] == ["3", "3", "2"]
    assert float(a["mean"]) == 3 and float(b["mean"]) == 5
    assert float(a["deviation"]) == pytest.approx(7**0.5)
    assert float(b["difference"]) == 2
    # Of two pairs a quarter of all draws has the lower value twice.
    low, high = (float(b[f"difference_interval_{x}"]) for x in ("low", "high"))
    assert (low, high) == (1, 3)
    assert a["parameters"] == "10" and float(b["flops_per_token"]) == 3e7
    shown = compare(capsys, *runs, "--format=markdown")
    assert f"{METRIC}: differences are from a0, a1, a2\n" in shown
    assert "| +2 | 1 to 3 | 2 | 10 | 3e+07 |" in shown


def test_the_interval_is_scipy_s():
    values = [*np.random.default_rng(1).normal(size=12)]
    expected = bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    np.testing.assert_allclose(interval(values), expected, atol=0.03)
    assert interval([1.0]) is None and interval([1.0, float("nan")]) is None


def test_folders_of_a_sweep_have_one_name(tmp_path, capsys):
    runs = [seeded(tmp_path / f"a,B=1,seed={i}", i, 1.0 + i) for i in range(2)]
    rows = [*csv.DictReader(compare(capsys, *runs, "--format=csv").splitlines())]
    assert [row["contestant"] for row in rows] == ["a,B=1"]


def test_contestants_of_two_sweeps_have_two_names(tmp_path, capsys):
    runs = []
    for sweep in ("one", "two"):
        (tmp_path / sweep).mkdir()
        gin = f"STEPS = {len(runs)}"
        runs += [
            seeded(tmp_path / sweep / f"a,seed={i}", i, 1.0, gin) for i in range(2)
        ]
    rows = [*csv.DictReader(compare(capsys, *runs, "--format=csv").splitlines())]
    titles = [", ".join(map(str, x)) for x in (runs[:2], runs[2:])]
    assert [row["contestant"] for row in rows] == titles


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_seed_that_diverged_has_no_interval(value, tmp_path, capsys):
    runs = [seeded(tmp_path / f"a{i}", i, x) for i, x in enumerate((1.0, value))]
    runs.append(seeded(tmp_path / "b0", 0, 2.0, "A = 2"))
    plot = f"--plot={tmp_path / 'plot.png'}"
    run_command("compare", [*runs, f"--metric={METRIC}", "--format=csv", plot])
    shown = capsys.readouterr()
    rows = [*csv.DictReader(shown.out.splitlines())]
    assert rows[0]["mean"] == str(value) and rows[0]["interval_low"] == ""
    assert rows[1]["difference"] == "1.0"
    assert f"plot.png lacks a0, a1: {METRIC} is not finite." in shown.err
    run_command("compare", [*runs[:2], f"--metric={METRIC}", plot])
    assert f"plot.png is not drawn: {METRIC} is not finite." in capsys.readouterr().err


def test_units_and_steps_are_shown(tmp_path, capsys):
    """1% is no 1.0, and a run that still trains is compared at an earlier step."""
    runs = [seeded(tmp_path / f"a{i}", i, 1.0, units=True) for i in range(2)]
    path = tmp_path / "a1" / "eval" / "cogs" / "test"
    result = json.loads((path / "5" / "metrics.json").read_text())
    (path / "30").mkdir()
    (path / "30" / "metrics.json").write_text(json.dumps(result | {"step": 30}))
    shown = compare(capsys, *runs, "--format=markdown")
    assert f"{METRIC} (%): differences are from" in shown
    assert "| 2 | 5 to 30 | 1 |" in shown
    runs.append(seeded(tmp_path / "b", 0, 1.0, "A = 2", units=True))
    run_command("compare", [*runs, f"--metric={METRIC}", "--format=csv"])
    csv_text, warning = capsys.readouterr()
    rows = [*csv.DictReader(csv_text.splitlines())]
    assert [row["step"] for row in rows] == ["5 to 30", "5"]
    note = "the last results are of unequal steps: a0, a1 at 5 to 30, b at 5"
    assert f"warning: {note}\n" in warning
    assert f"\n- {note}\n" in compare(capsys, *runs, "--format=markdown")
    assert "unequal" not in compare(capsys, runs[0], runs[2])


def test_values_of_several_units_are_not_compared(tmp_path, capsys):
    runs = [seeded(tmp_path / f"a{i}", i, 1.0, units=i) for i in range(2)]
    with pytest.raises(ValueError, match=r"em has no unit in .*a0, and % in .*a1: th"):
        compare(capsys, *runs)


def test_one_seed_has_a_mean_alone(runs, capsys):
    rows = [*csv.DictReader(compare(capsys, runs[0], "--format=csv").splitlines())]
    shown = [x for x in rows[0].values() if x]
    assert shown == ["a0", "1", "5", "1.0", "10", "1000000.0"]


def test_costs_and_speed(runs, capsys, tmp_path):
    """Means of the runs that measured it; the others' cells are empty."""
    measured(tmp_path / "a0", 4.0)
    measured(tmp_path / "a2", 2.0, [("dev", 5, 30, 2.0)])
    rows = [*csv.DictReader(compare(capsys, *runs, "--format=csv").splitlines())]
    names = "steps_per_second", "decoded_tokens_per_second", "host_memory_gigabytes"
    assert [rows[0][name] for name in names] == ["3.0", "15.0", "2.5"]
    assert [rows[1][name] for name in names] == [""] * 3
    shown = compare(capsys, *runs, "--format=markdown")
    names = ["steps per second", "decoded tokens per second", "peak GB of the process"]
    assert f"| {' | '.join([*names, 'peak GB of a device'])} |" in shown
    assert "| 1e+06 | 3 | 15 | 2.5 | 8 |" in shown


def test_flops_are_means_too(runs, capsys, tmp_path):
    """Seeds have other batches, and so other FLOPs for each token of them."""
    for seed, number in enumerate((1e6, 2e6, 6e6)):
        summary(tmp_path / f"a{seed}", flops_per_token=number)
    rows = [*csv.DictReader(compare(capsys, *runs, "--format=csv").splitlines())]
    assert float(rows[0]["flops_per_token"]) == 3e6


@pytest.mark.parametrize("format", ["markdown", "csv"])
def test_what_numbers_leave_out_is_told(format, runs, capsys, tmp_path):
    summary(tmp_path / "b2", not_counted=["Cholesky"])
    (tmp_path / "a1" / "train_summary.json").write_text("{")
    run_command("compare", [*runs, f"--metric={METRIC}", f"--format={format}"])
    shown = capsys.readouterr()
    shown = shown.err if format == "csv" else shown.out
    assert "b0, b2, b5: FLOPs of Cholesky: left out, but for Fourier" in shown
    assert "a0, a1, a2: train_summary.json is damaged: it does not count" in shown


def summary(folder, **values):
    path = folder / "train_summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_one_run_twice(runs, capsys, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a0")
    for twice in (runs[0], f"{runs[0]}/", tmp_path / "link"):
        with pytest.raises(ValueError, match="a0 and .* are one run. Name each run on"):
            compare(capsys, *runs, twice)


def test_runs_without_a_number(runs, capsys, tmp_path):
    (tmp_path / "a1" / "train_summary.json").unlink()
    with pytest.raises(ValueError, match=r"of a1 have no whole train_summary.json"):
        compare(capsys, *runs, f"--plot={tmp_path / 'plot.png'}")
    shutil.rmtree(tmp_path / "b0" / "eval")
    with pytest.raises(ValueError, match=r"b0 has no results .*eval --model_dir=.*b0"):
        compare(capsys, *runs)
    with pytest.raises(ValueError, match="--metric is empty. Name a metric"):
        run_command("compare", [*runs, "--metric="])


@pytest.mark.parametrize("command", ["compare", "sweep", "costs"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none/table", "There is no folder '.*none'. Make it first."),
        ("folder", "It is a folder. Name a file in it."),
        ("/proc/table", "No such file or directory. Name a file in another folder."),
    ],
)
def test_a_file_that_cannot_be_written(command, path, message, tmp_path):
    """It is told before any work: there is no run and no model."""
    (tmp_path / "folder").mkdir()
    own = {"compare": ["none"], "sweep": [f"--model_dir={tmp_path}"], "costs": []}
    with pytest.raises(ValueError, match=f"^--output=.* be written: {message}$"):
        run_command(command, [*own[command], f"--output={tmp_path / path}"])


def test_a_plot_is_over_all_flops_that_runs_have():
    """A convolution may be sums of shifted rows, which are no matrix products."""
    cost = "flops_per_token"
    with_rest = [Contestant(x, {}, 7, 3e6, (), {f"rest_{cost}": 2e6}) for x in "ab"]
    assert cost_axis(with_rest, cost) == ("FLOPs per token", [5e6, 5e6])
    without = [*with_rest, Contestant("c", {}, 8, 4e6)]
    expected = "FLOPs of matrix products per token", [3e6, 3e6, 4e6]
    assert cost_axis(without, cost) == expected
    assert cost_axis(without, "") == ("parameters", [7, 7, 8])


def test_a_plot(runs, capsys, tmp_path):
    compare(capsys, *runs, f"--plot={tmp_path / 'plot.png'}")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    for command in ("compare", "sweep"):  # A sweep says so before it trains.
        for path, message in (
            ("plot.abc", r"plot.abc: the name ends in none of .*png"),
            ("plot", "plot: the name ends in none of"),
            ("none/plot.png", "There is no folder '.*none'. Make it first"),
        ):
            arguments = runs if command == "compare" else [f"--model_dir={tmp_path}"]
            options = f"--metric={METRIC}", f"--plot={tmp_path / path}"
            with pytest.raises(ValueError, match=message) as error:
                run_command(command, [*arguments, *options])
            assert "\n" not in str(error.value)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match="folder.png cannot be written"):
        compare(capsys, *runs, f"--plot={tmp_path / 'folder.png'}")
    twice = f"--output={tmp_path}/q.svg", f"--plot={tmp_path}/./q.svg"
    for command, own in (("compare", runs), ("sweep", [f"--model_dir={tmp_path}"])):
        with pytest.raises(ValueError, match="q.svg and --plot=.* are one file"):
            run_command(command, [*own, f"--metric={METRIC}", *twice])
    with pytest.raises(ValueError, match="Name it with --metric"):
        run_command("compare", [runs[0], "--plot=plot.png"])


def test_contestants_of_other_tasks(runs, capsys, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "train_summary.json").write_text("{}")
    write_result(other, "metrics", 5, {"em": 1.0}, task="mnli")
    with pytest.raises(ValueError, match=r"other has no cogs/test/em.*mnli/test/em"):
        compare(capsys, *runs, other)
    write_result(tmp_path / "a0", "loss", 5, {"em": 3.0})
    with pytest.raises(ValueError, match=r"--metric='cogs/test/em \(loss.json\)'"):
        compare(capsys, *runs)
    with pytest.raises(ValueError, match="no run has the metric 'em'"):
        run_command("compare", [*runs, "--metric=em"])
