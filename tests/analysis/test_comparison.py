"""`python -m remixer_tf compare`, on folders that look like those of runs."""

import csv
import json

import pytest

from remixer_tf.analysis.comparison import last_and_best
from remixer_tf.commands import run_command

GIN = """\
# A comment.
LENGTHS = {'inputs': 8, 'targets': 4}
Run.seed = 1
a/Stack.sublayers = \\
    {'attention': @SelfAttention,
     'feed_forward': @wide/FeedForward()}
Stack.num_layers = %NUM_LAYERS
NUM_LAYERS = 2
"""
# The same in another order, a value given twice; two others.
OTHER = """\
NUM_LAYERS = 4
Stack.num_layers = %NUM_LAYERS
a/Stack.sublayers = {'attention': @SelfAttention, 'feed_forward': @wide/FeedForward()}
Run.seed = 2
Run.seed = 1
Stack.norm = @RMSNorm
LENGTHS = {
    'inputs': 8,  # tokens
    'targets': 4,
}
"""
SUMMARY = {
    "parameters": 1234567,
    "steps": 2000,
    "flops_per_step": 2500000000,
    "loss": 0.5,
    "flops_per_token": 1e7,
    "steps_per_second": 4.0,
    "seconds": 3661.4,
}


def write_result(folder, kind, step, metrics, **names):
    names = {"task": "cogs", "split": "test", **names}
    path = folder.joinpath("eval", *names.values(), str(step))
    path.mkdir(parents=True, exist_ok=True)
    result = {**names, "step": step, "metrics": metrics}
    (path / f"{kind}.json").write_text(json.dumps(result))


@pytest.fixture
def runs(tmp_path):
    """Paths of a finished run, one that is still training, and one never evaluated."""
    done, training, fresh = (tmp_path / name for name in ("done", "training", "fresh"))
    for folder in (done, training, fresh):
        folder.mkdir()
    (done / "operative_config.gin").write_text(GIN)
    (done / "train_summary.json").write_text(json.dumps(SUMMARY))
    best = {"metric": "cogs/test/loss", "step": 1000, "value": 0.25}
    (done / "best.json").write_text(json.dumps(best))
    write_result(done, "loss", 1000, {"loss": 0.25, "accuracy": 0.75})
    write_result(done, "loss", 2000, {"loss": 0.5, "accuracy": 0.875})
    write_result(done, "metrics", 2000, {"accuracy": 50.0, "text": "no number"})
    (training / "operative_config.gin").write_text(OTHER)
    write_result(training, "loss", 1000, {"loss": 0.125, "accuracy": float("nan")})
    summary = {"parameters": 10, "steps": 1, "not_counted": ["FFT2D", "Qr"]}
    (fresh / "train_summary.json").write_text(json.dumps(summary))
    return [str(folder) for folder in (done, training, fresh)]


MARKDOWN = """\
|  | done | training | fresh |
| --- | ---: | ---: | ---: |
| parameters | 1,234,567 |  | 10 |
| matrix-product FLOPs per step | 2.50e+09 |  |  |
| matrix-product FLOPs per token | 1.00e+07 |  |  |
| steps | 2,000 |  | 1 |
| training loss, last log line | 0.5 |  |  |
| time | 1:01:01 |  |  |
| steps per second | 4 |  |  |
| step of the best checkpoint | 1,000 |  |  |

Metrics

| metric | file |  | done | training | fresh |
| --- | --- | --- | ---: | ---: | ---: |
| cogs/test/accuracy | metrics.json | last | 50 at 2,000 |  |  |
| cogs/test/accuracy | metrics.json | best | 50 at 2,000 |  |  |
| cogs/test/loss | loss.json | last | 0.5 at 2,000 | 0.125 at 1,000 |  |
| cogs/test/loss | loss.json | best | 0.25 at 1,000 | 0.125 at 1,000 |  |
| cogs/test/token_accuracy | loss.json | last | 0.875 at 2,000 | nan at 1,000 |  |
| cogs/test/token_accuracy | loss.json | best | 0.875 at 2,000 | nan at 1,000 |  |

What differs in gin (empty: not set)

| binding | done | training | fresh |
| --- | --- | --- | --- |
| NUM_LAYERS | 2 | 4 |  |
| Stack.norm |  | @RMSNorm |  |

- training: no train_summary.json: it is still training, or was broken off
- training: no best.json: it has no Checkpointing.best, or no evaluation yet
- fresh: no operative_config.gin: its configuration cannot be compared
- fresh: no best.json: it has no Checkpointing.best, or no evaluation yet
- fresh: FLOPs of FFT2D, Qr: left out, but for Fourier transforms, which other \
FLOPs have
- fresh: no results in eval: it was never evaluated
"""


def test_markdown_and_text_tell_the_same(runs, capsys, tmp_path):
    path = tmp_path / "table.md"
    run_command("compare", [*runs, "--format=markdown", f"--output={path}"])
    assert path.read_text() == MARKDOWN
    run_command("compare", runs)
    shown = capsys.readouterr().out
    words = shown.translate(str.maketrans("│┃", "  ")).split()
    for line in MARKDOWN.splitlines():
        if line.startswith("| ") and "---" not in line and "at" not in line.split():
            cells = line.replace("|", " ").split()
            starts = range(len(words) - len(cells) + 1)
            assert any(words[i : i + len(cells)] == cells for i in starts), line
        if line.startswith("- "):
            assert f"\n{line[2:]}\n" in shown


def test_csv(runs, capsys):
    run_command("compare", [*runs, "--format=csv"])
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(table[0]) == ["section", "name", "run", "value"]
    values = {(row["section"], row["name"], row["run"]): row["value"] for row in table}
    assert len(values) == len(table)
    assert values["run", "flops_per_step", "done"] == "2500000000"
    assert float(values["run", "flops_per_token", "done"]) == 1e7
    assert values["run", "best_step", "done"] == "1000"
    assert values["best", "cogs/test/loss (loss.json)", "done"] == "0.25"
    assert values["best_step", "cogs/test/loss (loss.json)", "done"] == "1000"
    assert values["last", "cogs/test/loss (loss.json)", "done"] == "0.5"
    assert ("run", "parameters", "training") not in values
    gin = {key[1:]: value for key, value in values.items() if key[0] == "gin"}
    assert gin == {
        ("NUM_LAYERS", "done"): "2",
        ("NUM_LAYERS", "training"): "4",
        ("Stack.norm", "training"): "@RMSNorm",
    }
    why = values["missing", "no train_summary.json", "training"]
    assert why == "it is still training, or was broken off"


def test_equal_configurations(runs, tmp_path, capsys):
    twin = tmp_path / "elsewhere" / "done"
    twin.mkdir(parents=True)
    (twin / "operative_config.gin").write_text(GIN.replace("Run.seed", "\nRun.seed"))
    run_command("compare", [runs[0], str(twin), "--format=markdown"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"|  | {runs[0]} | {twin} |\n")  # one name, two folders
    assert "\nNothing differs in gin.\n" in shown and "What differs" not in shown


def seeded(folder, seed, loss, gin="A = 1", units=None, ended=True):
    """A run's folder: its seed, which SEED may stand for, and its last loss."""
    folder.mkdir(parents=True)
    seed = f"Run.seed = %SEED\nSEED = {seed}\n"
    where = f"relative_paths.folders = ['.', '../{folder.name}']\n"
    (folder / "operative_config.gin").write_text(f"{where}{seed}{gin}\n")
    if ended:
        summary = {"parameters": 10, "steps": 5, "seconds": 60}
        (folder / "train_summary.json").write_text(json.dumps(summary))
    result = {"task": "cogs", "split": "test", "step": 5, "metrics": {"em": loss}}
    result |= {"units": {"em": "%"}} if units else {}
    path = folder / "eval" / "cogs" / "test" / "5"
    path.mkdir(parents=True)
    (path / "metrics.json").write_text(json.dumps(result))
    return str(folder)


def test_runs_that_differ_in_their_seed_are_one_column(tmp_path, capsys):
    """1, 2 and 6 have the mean 3 and the standard deviation sqrt((4 + 1 + 9) / 2)."""
    runs = [
        seeded(tmp_path / f"a{seed}", seed, value, units=True)
        for seed, value in ((0, 1.0), (1, 2.0), (7, 6.0))
    ]
    other = "A = 2\nScope/Run.seed = 5"
    runs.insert(1, seeded(tmp_path / "b", 0, 9.0, other, units=True))
    run_command("compare", [*runs, "--format=markdown"])
    shown = capsys.readouterr().out
    assert shown.startswith("|  | a0, a1, a7 (3 seeds) | b |\n")
    assert "| parameters | 10 | 10 |" in shown and "| time | 0:01:00 |" in shown
    row = "| cogs/test/em (%) | metrics.json | last | 3 ± 2.6 at 5 | 9 at 5 |"
    assert row in shown
    assert "| A | 1 | 2 |" in shown and "| SEED | 0, 1, 7 | 0 |" in shown
    assert "relative_paths" not in shown

    run_command("compare", [*runs, "--format=csv"])
    rows = [*csv.reader(capsys.readouterr().out.splitlines())]
    name, group = "cogs/test/em (metrics.json)", "a0, a1, a7 (3 seeds)"
    values = {row[2]: float(row[3]) for row in rows if row[:2] == ["last", name]}
    assert values == {"a0": 1, "b": 9, "a1": 2, "a7": 6}
    numbers = {tuple(row[:2]): row[3] for row in rows if row[2] == group}
    assert numbers["run", "seeds"] == "3" and numbers["last_mean", name] == "3.0"
    assert float(numbers["last_deviation", name]) == pytest.approx(7**0.5)
    assert numbers["run_deviation", "parameters"] == "0.0"


def test_what_only_some_seeds_have(tmp_path, capsys):
    """A metric is named, and a macro of the seed is not missing elsewhere."""
    runs = [seeded(tmp_path / name, 0, 1.0) for name in "ab"]
    (tmp_path / "b" / "operative_config.gin").write_text("Run.seed = 4\nA = 1\n")
    write_result(tmp_path / "b", "metrics", 5, {"em": 3.0, "f1": 2.0})
    run_command("compare", [*runs, "--format=markdown"])
    shown = capsys.readouterr().out
    assert "| cogs/test/em | metrics.json | last | 2 ± 1.4 at 5 |" in shown
    name = "- a, b (2 seeds): cogs/test/f1 (metrics.json)"
    assert f"{name}: some seeds do not have it\n" in shown and "SEED" not in shown


def test_each_value_has_its_own_unit(tmp_path, capsys):
    """Runs in a column have one unit, or no value."""
    runs = [seeded(tmp_path / x, 0, 2.0, f"A = '{x}'", units=x == "a") for x in "ab"]
    run_command("compare", [*runs, "--format=markdown"])
    row = "| cogs/test/em | metrics.json | last | 2 (%) at 5 | 2 at 5 |"
    assert row in capsys.readouterr().out
    runs = [seeded(tmp_path / f"s{i}", i, 2.0, units=i) for i in range(2)]
    run_command("compare", [*runs, "--format=markdown"])
    missing = "- s0, s1 (2 seeds): cogs/test/em (metrics.json): its unit is another for"
    assert missing in (shown := capsys.readouterr().out) and "| last |" not in shown
    run_command("compare", [*runs, "--format=csv"])
    shown = capsys.readouterr().out
    assert "run_mean,parameters" in shown and "last_mean" not in shown


def measured(folder, rate, decoded=()):
    """Adds what training and evaluation measure, with a line that a kill cut off."""
    path = folder / "train_summary.json"
    summary = {"rest_flops_per_step": 2e3, "steps_per_second": rate}
    path.write_text(json.dumps(json.loads(path.read_text()) | summary))
    lines = [
        {"step": 1, "host_memory_gigabytes": 2.5, "gpu_0_memory_gigabytes": 7.0},
        {"step": 2, "host_memory_gigabytes": 1.5, "gpu_1_memory_gigabytes": 8.0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"step": 3, "host_mem')
    for split, step, tokens, seconds in decoded:
        write_result(folder, "metrics", step, {"em": 1.0}, split=split)
        path = folder / "eval" / "cogs" / split / str(step) / "metrics.json"
        facts = {"decoded_tokens": tokens, "decoding_seconds": seconds}
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_speed_and_memory(tmp_path, capsys):
    """The last step decoded 30 tokens in 2 s and 50 in 3 s."""
    run = seeded(tmp_path / "a", 0, 1.0)
    decoded = [("test", 6, 30, 2.0), ("dev", 6, 50, 3.0), ("dev", 5, 9, 1.0)]
    measured(tmp_path / "a", 4.0, decoded)
    run_command("compare", [run, "--format=markdown"])
    shown = capsys.readouterr().out
    for row in (
        "| other FLOPs per step | 2.00e+03 |",
        "| steps per second | 4 |",
        "| decoded tokens per second | 16 |",
        "| peak GB of the process | 2.5 |",
        "| peak GB of a device | 8 |",
    ):
        assert f"{row}\n" in shown
    run_command("compare", [run, "--format=csv"])
    rows = capsys.readouterr().out.splitlines()
    assert "run,decoded_tokens_per_second,a,16.0" in rows
    assert "run,device_memory_gigabytes,a,8.0" in rows


@pytest.mark.parametrize(
    "second",
    [
        {"seed": 0},  # a repetition
        {"seed": 1, "gin": "A = 2"},
        {"seed": 1, "gin": "A = 1\nB = 1"},
        {"seed": 1, "ended": False},
    ],
)
def test_runs_that_differ_otherwise_are_apart(tmp_path, capsys, second):
    runs = [seeded(tmp_path / "a", 0, 1.0), seeded(tmp_path / "b", loss=3.0, **second)]
    run_command("compare", [*runs, "--format=markdown"])
    assert capsys.readouterr().out.startswith("|  | a | b |\n")


def test_best_is_the_first_of_equals():
    assert last_and_best("a/loss", {1: 3.0, 2: 2.0, 3: 2.0}) == ((3, 2.0), (2, 2.0))
    assert last_and_best("a/loss/f1", {1: 3.0, 2: 2.0}) == ((2, 2.0), (1, 3.0))


def test_a_folder_that_is_missing_is_told_before_anything_is_read(tmp_path):
    with pytest.raises(OSError, match="missing/table.md cannot be written: There is"):
        run_command("compare", ["no run", f"--output={tmp_path}/missing/table.md"])


@pytest.mark.parametrize("text", ["", '{"metric": "cogs/test/loss", "st', "[]"])
def test_a_damaged_best_json(runs, tmp_path, capsys, text):
    (tmp_path / "done" / "best.json").write_text(text)
    run_command("compare", runs)
    shown = capsys.readouterr().out
    assert "done: best.json is damaged: it does not count" in shown
    assert "step of the best checkpoint" not in shown


DAMAGED = [
    "[" * 100_000,
    "[1]",
    '{"task": "cogs", "split": "test", "metrics": {"loss": 1}}',
    '{"task": "cogs", "split": "test", "step": "2000", "metrics": {"loss": 1}}',
    '{"task": "cogs", "split": "test", "step": 2000, "metrics": {"loss": [1]}}',
    '{"task": "cogs", "split": "test", "step": 2000, "metrics": [1]}',
    '{"task": "cogs", "split": "dev", "step": 2000, "metrics": {"loss": 1}}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_result_does_not_count(runs, tmp_path, capsys, text):
    folder = tmp_path / "done" / "eval" / "cogs" / "test" / "2000"
    (folder / "loss.json").write_text(text)
    run_command("compare", [runs[0]])
    shown = capsys.readouterr()
    assert "0.25 at 1,000" in shown.out
    line = f"warning: {folder}/loss.json is damaged and does not count.\n"
    assert line in shown.err


def test_what_is_no_number_in_a_summary(runs, tmp_path, capsys):
    summary = SUMMARY | {"steps": "many", "seconds": float("inf"), "parameters": None}
    (tmp_path / "done" / "train_summary.json").write_text(json.dumps(summary))
    run_command("compare", [runs[0]])
    shown = capsys.readouterr().out
    assert "steps per second" in shown and "1,234,567" not in shown


def test_what_is_no_run(runs, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=f"'{folder}' is not the folder of a run"):
            run_command("compare", [runs[0], str(folder)])
    with pytest.raises(ValueError, match="--format: invalid choice.*text.*csv"):
        run_command("compare", [*runs, "--format=html"])
