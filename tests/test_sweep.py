"""`remixer_tf sweep`, with a stand-in for the process that trains; and for real."""

import csv
import io
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

import pytest
import seqio

from remixer_tf.analysis.comparison import Spread, average, read_run, write_comparison
from remixer_tf.checkpoints.whole_folder import describe
from remixer_tf.commands import run_command
from remixer_tf.errors import UserError
from tests.data.toy_tasks import toy_task
from tests.tiny_run import BYTES, TINY

# Writes what `train` writes. Its loss is RATE + seed, and RATE may be "bad" or "slow".
STAND_IN = """\
#!{python}
import json, os, signal, sys, time
options = dict(a.split("=", 1) for a in sys.argv[4:])
folder, rate = options["--model_dir"], options.get("--gin.RATE", "0").strip("'")
seed = int(options["--gin.Run.seed"])
with open(folder + "/calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if rate == "bad":
    print("trying")
    sys.exit("error: bad does not train.")
if rate == "slow" and not os.path.exists(folder + "/half"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    open(folder + "/half", "w").close()
    time.sleep(60)
loss = 9.0 if rate == "slow" else float(rate) + seed
result = dict(task="toy", split="dev", step=10, metrics=dict(loss=loss))
os.makedirs(folder + "/eval/toy/dev/10", exist_ok=True)
for name, value in (
    ("eval/toy/dev/10/loss.json", result),
    ("train_summary.json", dict(steps=10, parameters=7, seconds=60 + seed)),
):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)
with open(folder + "/operative_config.gin", "w") as file:
    file.write("RATE = %r\\nRun.seed = %d\\n" % (rate, seed))
"""


CONFIGURATION = """\
include 'models/t5_1_1_tiny.gin'
include 'runs/train.gin'
NUM_ENCODER_LAYERS = 1
NUM_DECODER_LAYERS = 1
VOCAB_SIZE = 259
TASK = 'toy'
FEATURE_LENGTHS = {'inputs': 4, 'targets': 4}
BATCH_SIZE = 2
TRAIN_STEPS = 1000
SIZE = 'all'
Watching.peak_flops = %RATE
Watching.loggers = %SIZE
"""
EVALUATIONS = "--gin.train.evaluations=[@LossEvaluation()]"


@pytest.fixture
def stand_in(tmp_path, monkeypatch, clear_gin):
    (tmp_path / "a.gin").write_text(CONFIGURATION)
    examples = {"train": [("a", "b")], "dev": [("a", "b")]}
    for name in ("toy", "other"):
        task = toy_task(examples, name, metric_fns=[])
        monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, name, task)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "python"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return tmp_path / "sweep"


def sweep(folder, *arguments):
    arguments = [f"--model_dir={folder}", "--gin_file=a.gin", *arguments]
    run_command("sweep", arguments)


def calls(folder):
    path = folder / "calls"
    return list(map(json.loads, path.read_text().splitlines()))


def test_means_and_deviations_over_seeds(stand_in, capsys):
    grid = "--grid=RATE=[1.0, 20.0]"
    more = "--gin.TRAIN_STEPS=1000", "--gin.TASK=toy"
    options = "--seeds=3", "--at_once=2", "--format=markdown"
    sweep(stand_in, *more, grid, *options)
    names = [f"RATE={rate},seed={s}" for rate in (1.0, 20.0) for s in range(3)]
    assert sorted(os.listdir(stand_in)) == names
    (call,) = calls(stand_in / names[1])
    assert call[:3] == ["-m", "remixer_tf", "train"]
    given = [more[0], "--gin.TASK='toy'", "--gin.RATE=1.0", "--gin.Run.seed=1"]
    first = [f"--model_dir={stand_in}/{names[1]}", "--gin_file=a.gin"]
    assert call[3:] == [*first, *given]
    shown = capsys.readouterr().out
    assert "|  | RATE=1.0 (3 seeds) | RATE=20.0 (3 seeds) |" in shown
    assert "| parameters | 7 | 7 |" in shown and "| time | 0:01:01 | 0:01:01 |" in shown
    # The losses are 1, 2, 3 and 20, 21, 22.
    cells = "| 2 ± 1 at 10 | 21 ± 1 at 10 |"
    assert f"| toy/dev/loss | loss.json | last {cells}" in shown
    assert "| RATE | '1.0' | '20.0' |" in shown and "Run.seed" not in shown

    sweep(stand_in, *more, grid, *options)
    assert "6 of 6 runs have ended before" in capsys.readouterr().out
    assert all(len(calls(stand_in / name)) == 1 for name in names)
    sweep(stand_in, *more, "--grid=RATE=[1.0]", "--seeds=2", "--gin.TRAIN_STEPS=2000")
    assert [len(calls(stand_in / name)) for name in names] == [2, 2, 1, 1, 1, 1]
    capsys.readouterr()
    sweep(stand_in, *more, grid, "--seeds=2", "--format=csv")
    lines = capsys.readouterr().out.split("section,name,run,value\n")[1]
    rows = list(csv.reader(io.StringIO(lines)))
    assert ["run", "seeds", "RATE=1.0 (2 seeds)", "2"] in rows
    losses = [row[2:] for row in rows if row[0] == "last"]
    assert losses == list(
        map(list, zip(names[:2] + names[3:5], "1.0 2.0 20.0 21.0".split(), strict=True))
    )


def test_a_folder_that_began_with_other_settings(stand_in, tmp_path, capsys):
    """Arguments decide whether a run has ended, and what gin files say."""
    grid, seeds = "--grid=RATE=[1.0]", "--seeds=2"
    file, runs = tmp_path / "a.gin", [stand_in / f"RATE=1.0,seed={s}" for s in (0, 1)]
    sweep(stand_in, grid, seeds)
    capsys.readouterr()
    file.write_text("# The same.\n" + CONFIGURATION)
    sweep(stand_in, grid, seeds)
    assert [len(calls(run)) for run in runs] == [1, 1]
    assert not capsys.readouterr().err
    file.write_text(CONFIGURATION.replace("BATCH_SIZE = 2", "BATCH_SIZE = 4"))
    for run in runs:  # A run that failed before it trained began with nothing.
        (run / "operative_config.gin").unlink()
        (run / "sweep_ended.json").unlink()
    sweep(stand_in, grid, seeds)
    sweep(stand_in, grid, seeds)
    assert [len(calls(run)) for run in runs] == [2, 2]
    assert not capsys.readouterr().err
    file.write_text(CONFIGURATION.replace("BATCH_SIZE = 2", "BATCH_SIZE = 8"))
    for _ in range(2):  # The warning stays.
        sweep(stand_in, grid, seeds)
        assert [len(calls(run)) for run in runs] == [3, 3]
        (line,) = capsys.readouterr().err.splitlines()
        assert line == (
            f"warning: {runs[0]} began with other settings: BATCH_SIZE: 4, now 8. To "
            "train it anew, set another --model_dir."
        )


def test_contestants(stand_in, capsys):
    """The losses are 1 and 2, next to 20 and 21 of the same seeds."""
    options = "--grid=RATE=[1.0, 20.0]", "--seeds=2", "--format=csv"
    metric = "--metric=toy/dev/loss"
    with pytest.raises(UserError, match="there is none. Add --gin.train.evaluatio"):
        sweep(stand_in, *options, metric)
    assert not stand_in.exists()
    sweep(stand_in, *options, metric, EVALUATIONS)
    lines = capsys.readouterr().out.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("contestant,"))
    _, second = csv.DictReader(lines[start:])
    assert second["contestant"] == "RATE=20.0" and second["mean"] == "20.5"
    assert [second["difference"], second["difference_interval_low"]] == ["19.0"] * 2


def test_contestants_of_other_tasks(stand_in):
    """They are told before the first run; a task of the evaluation is one for all."""
    metric = "--metric=toy/dev/loss", EVALUATIONS, "--gin.RATE=1.0"
    for options in (
        ["--grid=TASK=['toy', 'other']"],
        ["--setting=TASK=toy", "--setting=TASK=other"],
    ):
        gives = "^TASK=other: No evaluation gives --metric='toy/dev/loss'.*other/dev/l"
        with pytest.raises(UserError, match=gives):
            sweep(stand_in, *options, *metric)
        assert not stand_in.exists()
    own = "--gin.LossEvaluation.task=toy", "--grid=TASK=['toy', 'other']"
    sweep(stand_in, *own, *metric)
    assert len(os.listdir(stand_in)) == 2


@pytest.mark.parametrize("metric", ["toy/dev/los", "toy/dve/loss", "loss"])
def test_a_misspelt_metric_starts_no_run(stand_in, metric):
    with pytest.raises(UserError, match="Nearest: toy/dev/loss"):
        sweep(stand_in, f"--metric={metric}", EVALUATIONS, "--gin.RATE=1.0")
    assert not stand_in.exists()


def test_a_metric_of_a_file(stand_in, capsys):
    metric = "--metric=toy/dev/loss (loss.json)"
    sweep(stand_in, metric, EVALUATIONS, "--gin.RATE=1.0")
    assert "differences are from all" in capsys.readouterr().out


def test_a_comparison_that_fails_says_how_to_compare(stand_in):
    """The stand-in writes no accuracy of tokens."""
    compare = "All runs are kept. Compare them: remixer_tf compare --metric=NAME .*/\\*"
    with pytest.raises(UserError, match=compare):
        metric = "--metric=toy/dev/token_accuracy"
        sweep(stand_in, metric, EVALUATIONS, "--gin.RATE=1.0")


def test_contestants_are_files_of_their_own(stand_in, tmp_path):
    """Read before --gin_file, whose RATE counts; each with each setting."""
    for name in "bc":
        (tmp_path / f"{name}.gin").write_text("TRAIN_STEPS = 10\n")
    files = "--contestant=b.gin", "--contestant=c.gin"
    sweep(stand_in, *files, "--grid=RATE=[1.0, 2.0]")
    assert sorted(os.listdir(stand_in)) == [
        f"{name},RATE={rate},seed=0" for name in "bc" for rate in (1.0, 2.0)
    ]
    (call,) = calls(stand_in / "c,RATE=2.0,seed=0")
    assert call[4:6] == ["--gin_file=c.gin", "--gin_file=a.gin"]
    with pytest.raises(UserError, match="two contestants are called b"):
        sweep(stand_in, "--contestant=b.gin", "--contestant=other/b.gin")


def test_settings_and_grids_combine(stand_in):
    settings = "--setting=RATE=1 SIZE=['a b', 4]", "--setting=RATE=2 SIZE=c"
    sweep(stand_in, *settings, "--grid=train.optimizer=[@Adafactor, @AdamW]")
    names = sorted(os.listdir(stand_in))
    assert len(names) == 4 and all(name.endswith(",seed=0") for name in names)
    assert names[3].startswith("RATE=2,SIZE=c,train.optimizer=_AdamW-")
    found = {tuple(calls(stand_in / name)[0][5:-1]) for name in names}
    own = "--gin.RATE=1", "--gin.SIZE=['a b', 4]", "--gin.train.optimizer=@AdamW"
    assert own in found


def test_a_run_that_fails_is_named_and_others_go_on(stand_in, capsys):
    with pytest.raises(SystemExit) as end:
        sweep(stand_in, "--grid=RATE=['bad', 3]", "--seeds=2", "--log=json")
    assert end.value.code == 1
    shown = capsys.readouterr()
    lines = [json.loads(x) for x in shown.out.splitlines() if x.startswith("{")]
    failed, _ = (line["message"] for line in lines if line["level"] == "warning")
    assert failed.startswith("RATE=bad,seed=0")
    assert "failed with exit code 1: error: bad does not train. (" in failed
    assert "3.5 ± 0.71 at 10" in shown.out
    error = json.loads(shown.err.splitlines()[-1])
    assert error["message"].startswith("2 of 4 runs failed: RATE=bad,seed=0")


@pytest.mark.parametrize(
    "metric, format, row",
    [
        ((), "csv", "missing,run,{name},{why}"),
        ((), "markdown", "- {name}: {why}"),
        (("--metric=toy/dev/loss",), "csv", "{name},0,,,,,,,,,"),
        (("--metric=toy/dev/loss",), "text", "{name}: {why}"),
    ],
)
def test_the_written_table_names_runs_that_failed(stand_in, metric, format, row):
    options = f"--format={format}", "--output=table", "--seeds=2", *metric
    with pytest.raises(SystemExit):
        sweep(stand_in, "--grid=RATE=['bad', 3]", EVALUATIONS, *options)
    shown = (stand_in.parent / "table").read_text()
    for seed in range(2):
        name = f"RATE=bad,seed={seed}"
        why = f"failed with exit code 1: error: bad does not train. ({stand_in}/{name}/"
        if format == "csv":
            name = f'"{name}"'
            why = f'"{why}' if "," in why else why
        assert row.format(name=name, why=why) in shown


def test_ctrl_c_saves_the_runs_and_the_next_sweep_resumes(stand_in):
    def interrupt():
        deadline = time.monotonic() + 30
        while len(list(stand_in.glob("*/half"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    arguments = ["--grid=RATE=['slow']", "--seeds=3", "--at_once=2"]
    with pytest.raises(KeyboardInterrupt, match="Run the same command to resume"):
        sweep(stand_in, *arguments)
    thread.join()
    assert len(list(stand_in.glob("*/calls"))) == 2
    arguments[1] = "--seeds=2"
    sweep(stand_in, *arguments)
    assert len(list(stand_in.glob("*/train_summary.json"))) == 2


@pytest.mark.slow
def test_runs_end_with_a_sweep_that_is_killed(tmp_path):
    """SIGKILL leaves a sweep no time to end them."""
    run = tmp_path / "python"
    run.write_text(
        f"#!{sys.executable}\nimport os, time\n"
        "from remixer_tf.__main__ import prepare\n"
        "prepare()\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    run.chmod(0o755)
    code = f"""
import sys, time
from remixer_tf.commands import sweep
sys.executable = {str(run)!r}
sweep._start(sweep._Run("a", {str(tmp_path)!r}, ()), "")
time.sleep(60)
"""
    log, deadline = tmp_path / "sweep.log", time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not (log.exists() and log.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    while describe(int(log.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_average():
    runs = [
        {("run", "steps"): 10, ("last", ("loss", "a")): x, ("best_step", "a"): step}
        | {("gin", "Run.seed"): str(step), ("missing", "no best.json"): "why"}
        for x, step in ((0.25, 100), (0.75, 200), (1.25, 400))
    ]
    runs[0]["last", ("rare", "a")] = 1.0
    found = average(runs)
    deviation = statistics.stdev([0.25, 0.75, 1.25])
    assert found["last", ("loss", "a")] == Spread(0.75, deviation)
    assert f"{found['last', ('loss', 'a')]:.4g}" == "0.75 ± 0.5"
    assert f"{found['best_step', 'a']:,}" == "233 ± 153"
    assert found["run", "steps"] == 10 and found["gin", "Run.seed"] == "100, 200, 400"
    assert found["missing", "no best.json"] == "why"
    assert found["missing", "rare (a)"] == "some seeds do not have it"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_seed_that_diverged_leaves_the_others_their_table(tmp_path, value):
    runs = {}
    for seed, last in enumerate((2.0, value, 3.0)):
        path = tmp_path / str(seed) / "eval" / "toy" / "dev" / "10"
        path.mkdir(parents=True)
        result = {"task": "toy", "split": "dev", "step": 10}
        metrics = {"perplexity": last, "loss": float(seed)}
        (path / "loss.json").write_text(json.dumps({**result, "metrics": metrics}))
        folder = str(tmp_path / str(seed))
        runs[folder] = read_run(folder, None)
    file = io.StringIO()
    write_comparison(runs, {"all": list(runs)}, "markdown", file)
    assert "| toy/dev/loss | loss.json | last | 1 ± 1 at 10 |" in file.getvalue()
    row = f"| toy/dev/perplexity | loss.json | last | {value} ± nan at 10 |"
    assert row in file.getvalue()


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--grid=RATE", r"--grid is NAME=\[A,B\]. Received: --grid=RATE"),
        ("--grid=RATE=3", r"--grid is NAME=\[A,B\]"),
        ("--grid=RATE=[]", r"--grid is NAME=\[A,B\]"),
        ("--grid=RATE=[a b]", r"cannot read --grid=RATE=\[a b\]"),
        ("--grid=Run.seed=[1,2]", "--seeds=N sets the seeds"),
        ("--setting=RATE", "--setting is 'NAME=A NAME=B'"),
        ("--setting=RATE=1 RATE=2", "A setting has RATE twice"),
        ("--setting=RATE=1 run.Run.seed=2", "Leave run.Run.seed out"),
        ("--setting= ", "--setting is 'NAME=A NAME=B'"),
        ("--gin.Run.seed=3", "--seeds=N sets the seeds of a sweep. Leave Run.seed"),
        ("--gin.SEED=3", "Leave SEED out"),
        ("--gin.remixer_tf.run.Run.seed=3", "run.Run.seed out"),
        ("--at_once=0", "at least 1"),
    ],
)
def test_mistakes(tmp_path, argument, message):
    with pytest.raises(UserError, match=message):
        sweep(tmp_path, argument)
    with pytest.raises(UserError, match="local folder"):
        sweep("gs://bucket/sweep")


@pytest.mark.parametrize("name", ["RTAE", "Adafactor.beta_8"])
def test_a_misspelt_name_starts_no_run(stand_in, name):
    with pytest.raises(UserError, match=name.rpartition(".")[2]):
        sweep(stand_in, "--grid=RATE=[1, 2]", f"--setting={name}=0.5")
    assert not stand_in.exists()


def write_mixers(folder, architecture):
    for mixer in ("attention", "fnet"):
        parts = f"architectures/{architecture}", f"mixers/{mixer}"
        text = "".join(f"include '{part}.gin'\n" for part in parts)
        text += "include 'models/sizes/mixers_tiny.gin'\n"
        (folder / f"{mixer}.gin").write_text(text)


def test_a_model_that_cannot_be_starts_no_run(stand_in):
    """The first contestant could train: the second one is tried before it does."""
    write_mixers(stand_in.parent, "mixing_lm")
    (stand_in.parent / "a.gin").write_text("include 'runs/bench_lm.gin'\n")
    folder = f"--gin.text_files.directory='{stand_in.parent}'"
    both = "--contestant=attention.gin", "--contestant=fnet.gin", folder
    with pytest.raises(UserError, match="^fnet: .*FNet has no form that hides later"):
        sweep(stand_in, *both)
    for macro, good, bad, message in (
        ("WARMUP_STEPS", 2, 9999, "total_steps"),
        ("MAX_LENGTH", 64, 32, ".*64.*max_length.*32"),
    ):
        with pytest.raises(UserError, match=f"^attention,{macro}={bad}: {message}"):
            sweep(stand_in, both[0], folder, f"--grid={macro}=[{good},{bad}]")
    assert not stand_in.exists()


def test_a_mixer_that_cannot_be_packed_starts_no_run(stand_in):
    write_mixers(stand_in.parent, "mixing_mlm")
    run = "include 'runs/bench_mlm.gin'\nBatching.pack = True\n"
    (stand_in.parent / "a.gin").write_text(run)
    folder = f"--gin.text_files.directory='{stand_in.parent}'"
    with pytest.raises(UserError, match="^fnet: .*pack"):
        sweep(stand_in, "--contestant=attention.gin", "--contestant=fnet.gin", folder)
    assert not stand_in.exists()


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--gin.Run.model=None", "^Run needs a value for 'model'"),
        ("--gin.Schedule.steps_per_call=3", "^train_steps=1000 is not a multiple"),
        ("--gin.LossEvaluation.period=0", "^period of evaluation 0"),
        ("--gin.Objective.auxiliary_loss_weights={'x': 1}", "^auxiliary_loss_weights"),
        ("--gin.Batching.length_buckets=[{'inputs': 2, 'targets': 2}]", "^Packing"),
        ("--gin.FEATURE_LENGTHS={'inputs': 4}", "^feature_lengths must have"),
        ("--gin.TASK=toi", "^No task or mixture"),
        ("--gin.VOCAB_SIZE=100", "^The vocabulary of inputs has 259 ids.* is 100"),
    ],
)
def test_a_run_that_cannot_begin_starts_no_run(stand_in, argument, message):
    """Without a setting's name, where there is one setting."""
    pack = "--gin.Batching.pack=True", "--gin.RATE=1.0", EVALUATIONS
    with pytest.raises(UserError, match=message):
        sweep(stand_in, *pack, argument)
    assert not stand_in.exists()


def test_a_file_in_place_of_the_folder(stand_in):
    stand_in.write_text("")
    with pytest.raises(
        UserError, match="model_dir .*sweep/x: .*sweep is not a directory"
    ):
        sweep(stand_in / "x", "--grid=RATE=[1, 2]")


@pytest.mark.slower
@pytest.mark.usefixtures("clear_gin")
def test_a_real_sweep(tmp_path, capsys):
    evaluate = [
        "--gin.train.evaluations=[@LossEvaluation()]",
        "--gin.LossEvaluation.period=1",
        "--gin.LossEvaluation.splits=['dev']",
    ]
    grid = ["--grid=LEARNING_RATE=[1e-2]", "--seeds=2", "--at_once=2"]
    folder = f"--model_dir={tmp_path / 's'}", "--format=markdown"
    run_command("sweep", [*folder, *BYTES, *TINY, *evaluate, *grid])
    shown = capsys.readouterr().out
    assert "LEARNING_RATE=0.01 (2 seeds)" in shown
    (row,) = (
        x
        for x in shown.splitlines()
        if x.startswith("| mini_cogs/dev/loss | loss.json | last")
    )
    assert row.count("±") == 1
