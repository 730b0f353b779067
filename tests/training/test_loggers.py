"""W&B and MLflow get what metrics.jsonl has; recorded by stand-ins for the services."""

import json
import sys
import types

import gin
import pytest

from remixer_tf import configuration
from remixer_tf.run import Run
from remixer_tf.training import sending
from remixer_tf.training.loggers import MlflowLogger, WandbLogger, mlflow_names
from remixer_tf.training.run_files import append_metrics
from remixer_tf.training.settings import Watching
from tests.settings import part_of
from tests.training import toy


class Evaluation:
    period = 4
    check = staticmethod(lambda *_: None)

    @staticmethod
    def run(model_dir, engine, step, force, **_):
        values = {"toy/dev/loss": 0.5, "none": float("nan")}
        if force:  # Otherwise the result is there.
            append_metrics(model_dir, step, values)


def run(folder, train_steps, *loggers, **options):
    return toy.train_toy(
        Run(toy.ReportingModel),
        folder,
        train_steps,
        watching=Watching(loggers=loggers),
        log_period=2,
        checkpoint_period=4,
        evaluations=[Evaluation()],
        configuration=lambda: ("", {"rate": 0.01, "name": "toy"}),
        **options,
    )


def lines(folder):
    """The lines of metrics.jsonl, without arrays and null: (step, numbers)."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [
        (
            line.pop("step"),
            {k: x for k, x in line.items() if isinstance(x, (int, float))},
        )
        for line in found
    ]


@pytest.fixture
def wandb(monkeypatch):
    """A module `wandb` with the calls that wandb 0.31 has; `calls` records them."""
    module = types.ModuleType("wandb")
    module.calls = []

    class Run:
        def __init__(self, id):
            self.id = id

        def __getattr__(self, name):
            return lambda *a, **k: module.calls.append((name, *a, *k.items()))

    def init(**options):
        module.calls.append(("init", options))
        return Run(options["id"])

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    """A module `mlflow` with the calls that mlflow 3.17 has."""
    module = types.ModuleType("mlflow")
    module.calls = []

    def start_run(run_id=None, run_name=None):
        module.calls.append(("start_run", run_id, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    for name in ("set_experiment", "log_params", "log_metrics", "end_run"):

        def record(*a, name=name, **k):
            module.calls.append((name, *a, *k.items()))

        setattr(module, name, record)
    module.start_run = start_run
    module.is_tracking_uri_set = lambda: True
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


@pytest.mark.slow
def test_wandb_gets_every_line_and_a_resumed_run_its_own(tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a-secret")
    folder = tmp_path / "my_run"
    run(folder, 4, WandbLogger(project="toys"))
    _, first = wandb.calls[0]
    assert first["project"] == "toys" and first["name"] == "my_run"
    assert first["dir"] == str(folder) and first["resume"] == "allow"
    assert first["config"] == {"rate": 0.01, "name": "toy"}
    sent = [call[1] for call in wandb.calls if call[0] == "log"]
    assert sent == [{"step": step, **values} for step, values in lines(folder)]
    assert sent[-1] == {"step": 4, "toy/dev/loss": 0.5} and len(sent) == 3
    assert wandb.calls[-1] == ("finish", ("exit_code", 0))
    wandb.calls.clear()
    run(folder, 8, WandbLogger(project="toys"))
    assert wandb.calls[0][1]["id"] == first["id"]
    assert [call[1]["step"] for call in wandb.calls if call[0] == "log"] == [6, 8, 8]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5 and not any(b"a-secret" in x.read_bytes() for x in files)


@pytest.mark.slow
def test_mlflow_gets_every_line(tmp_path, mlflow):
    folder = tmp_path / "my_run"
    run(folder, 4, MlflowLogger(experiment="toys"))
    run(folder, 8, MlflowLogger(experiment="toys"))
    assert mlflow.calls[:3] == [
        ("set_experiment", "toys"),
        ("start_run", None, "my_run"),
        ("log_params", {"rate": 0.01, "name": "toy"}),
    ]
    sent = [(c[2][1], c[1]) for c in mlflow.calls if c[0] == "log_metrics"]
    assert sent == lines(folder) and len(sent) == 6
    names = [call[0] for call in mlflow.calls]
    assert names.count("log_params") == 1  # They cannot change.
    assert ("start_run", "abc", "my_run") in mlflow.calls
    assert mlflow.calls[-1] == ("end_run", "FINISHED")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["toy/dev/C++", "loss 2: a-b_c.d"],
            ["toy/dev/C_x002B__x002B_", "loss 2: a-b_c.d"],
        ),
        (["a/50%", "a/don't know"], ["a/50_x0025_", "a/don_x0027_t know"]),
        (["f1", "f1/yes", "f1/no/x"], ["f1", "f1.yes", "f1.no/x"]),
        (["a/f1/yes/x", "a/f1", "b"], ["a/f1.yes/x", "a/f1", "b"]),
        (
            ["f1/", "f1/..", "f1/a//b"],
            ["f1/_x0000_", "f1/_x002E__x002E_", "f1/a/_x0000_/b"],
        ),
        (["a" * 250, "a" * 251], ["a" * 250, "a" * 241 + "-772f911d"]),
        # Two metrics have two names, and none is a folder of another's.
        (["f1", "f1/yes", "f1.yes"], ["f1", "f1.yes-66fab8a8", "f1.yes"]),
        (["f1", "f1.yes/a", "f1/yes"], ["f1", "f1.yes/a", "f1.yes-66fab8a8"]),
        (["f1", "f1/yes/a", "f1.yes"], ["f1", "f1.yes.a-5ff6e5fb", "f1.yes"]),
        (["+", "_x002B_"], ["_x002B_-a318c242", "_x002B_"]),
    ],
)
def test_names_that_mlflow_takes(names, expected):
    assert list(mlflow_names(names).values()) == expected


def test_mlflow_gets_a_thousand_metrics_a_call(mlflow):
    logger = MlflowLogger()
    logger.log(3, {f"f1/{i}": float(i) for i in range(2500)})
    sizes = [len(call[1]) for call in mlflow.calls]
    assert sizes == [1000, 1000, 500]


class Recorder:
    """A logger of one's own. It takes no line while `offline` is positive.

    It refuses lines of an evaluation if it `refuses` them.
    """

    def __init__(self, offline=0, fails_at_start=False, refuses=False):
        self.offline = offline
        self.refuses = refuses
        self.fails_at_start = fails_at_start
        self.sent = []

    def start(self, model_dir, run_id, hyperparameters):
        if self.fails_at_start:
            raise RuntimeError("no key.")
        return "an id"

    def log(self, step, values):
        if self.offline > 0:
            self.offline -= 1
            raise ConnectionError("no route")
        if self.refuses and "toy/dev/loss" in values:
            raise ValueError("a slash")
        self.sent.append((step, values))

    def finish(self, status):
        self.status = status


@pytest.mark.slow
def test_lines_that_a_service_does_not_take_come_later(tmp_path, capsys):
    logger = Recorder(offline=2)
    run(tmp_path, 8, logger)
    assert sorted(logger.sent, key=lambda line: line[0]) == lines(tmp_path)
    shown = capsys.readouterr().out
    assert shown.count("warning: Recorder takes no lines, and gets them later") == 1
    assert "lacks" not in shown
    run(tmp_path, 12, logger := Recorder(offline=99))
    assert (
        "Recorder lacks 3 lines of metrics.jsonl: no route" in capsys.readouterr().out
    )
    run(tmp_path, 16, logger := Recorder())
    assert logger.sent == lines(tmp_path)[6:] and logger.status == "finished"


@pytest.mark.slow
def test_a_line_that_is_refused_stops_no_other(tmp_path, capsys):
    run(tmp_path, 8, logger := Recorder(refuses=True))
    whole = lines(tmp_path)
    kept = [line for line in whole if "toy/dev/loss" not in line[1]]
    assert logger.sent == kept and len(kept) == len(whole) - 2
    shown = capsys.readouterr().out
    assert shown.count("Recorder does not take some lines") == 1
    assert "Recorder lacks 2 lines of metrics.jsonl: a slash (step 8)" in shown
    run(tmp_path, 12, logger := Recorder(refuses=True))  # A resumed run goes on too.
    assert [step for step, _ in logger.sent] == [10, 12]
    assert "Recorder lacks 3 lines" in capsys.readouterr().out
    run(tmp_path, 16, logger := Recorder())
    assert [step for step, _ in logger.sent] == [4, 8, 12, 14, 16, 16]


def test_a_service_that_is_away_costs_three_attempts():
    """Thousands of lines wait, and the oldest are left out, with their count."""
    logger, said = Recorder(offline=3), []
    service = sending._Service(logger, said.append)
    service.start("", {}, {})
    service.add([b'{"step": %d, "loss": 1.5}' % step for step in range(12_000)])
    service.send()
    assert logger.offline == 0 and not logger.sent
    assert [text.partition(":")[0] for text in said] == [
        "Recorder takes no lines, and gets them later",
        "Recorder has not taken more than 10,000 lines",
    ]
    service.add([b'{"step": 1', b"[]"])  # damaged: of no step
    service.send(last=True)
    assert [step for step, _ in logger.sent] == [*range(2_000, 12_000)]
    assert service.state()["missing"] == [12_000, 12_001]
    service.finish("finished")
    assert said[-1].startswith("Recorder lacks 2,002 lines of metrics.jsonl: ")
    assert said[-1].endswith(" (line 12002)")


@pytest.mark.parametrize("refuses", [False, True])
def test_a_logger_that_comes_late_gets_more_lines_than_wait(monkeypatch, refuses):
    """It was not offered them yet. Of refused lines, the newest wait."""
    monkeypatch.setattr(sending, "_MOST_WAITING", 2)
    service = sending._Service(logger := Recorder(refuses=refuses), lambda text: None)
    service.start("", {}, {})
    service.add([b'{"step": 1, "toy/dev/loss": 1}'] * 4 + [b'{"step": 2}'])
    service.send()
    assert len(logger.sent) == (1 if refuses else 5)
    assert service.state()["missing"] == ([2, 3] if refuses else [])
    assert service.state()["left_out"] == (2 if refuses else 0)


def test_a_run_that_goes_back_sends_its_new_lines():
    """The file has two lines where it had four, of which one was missing."""
    service = sending._Service(logger := Recorder(), lambda text: None)
    service.start("", {"run_id": "a", "lines": 4, "missing": [1]}, {})
    for steps in ([1, 2], [3]):
        service.add([b'{"step": %d}' % step for step in steps])
        service.send()
    assert [step for step, _ in logger.sent] == [2, 3]
    assert service.state()["lines"] == 3


def test_lines_are_sent_for_ten_seconds_at_a_time(monkeypatch):
    """A service that takes or refuses each line slowly does not hold training up."""
    now = [0.0]
    monkeypatch.setattr(sending.time, "monotonic", lambda: now[0])

    class Slow(Recorder):
        def log(self, step, values):
            now[0] += 4.0
            super().log(step, values)

    for logger in (Slow(), Slow(refuses=True)):
        service = sending._Service(logger, lambda text: None)
        service.start("", {}, {})
        service.add([b'{"step": 1, "toy/dev/loss": 1}'] * 8 + [b'{"step": 2}'] * 2)
        for _ in range(3):
            start = now[0]
            service.send()
            assert 0 <= now[0] - start <= 20


@pytest.mark.slow
def test_a_logger_that_comes_later_gets_all(tmp_path):
    run(tmp_path, 4)
    run(tmp_path, 8, logger := Recorder())
    assert logger.sent == lines(tmp_path) and len(logger.sent) == 6


def test_a_damaged_note_of_what_was_sent_sends_all(tmp_path):
    run(tmp_path, 4)
    (tmp_path / "loggers.json").write_text("{")
    run(tmp_path, 8, logger := Recorder())
    assert logger.sent == lines(tmp_path)


@pytest.mark.parametrize(
    "note",
    [5, {"lines": None}, {"lines": 1, "missing": [None]}, {"lines": 1, "left_out": ""}],
)
def test_a_damaged_note_of_one_logger_sends_it_all(note):
    warnings = []
    service = sending._Service(logger := Recorder(), warnings.append)
    service.start("folder", note, {})
    service.add([b'{"step": 1, "loss": 2.5}', b'{"step": 2, "loss": 1.5}'])
    service.send()
    assert logger.sent == [(1, {"loss": 2.5}), (2, {"loss": 1.5})]
    assert warnings == [
        "loggers.json is damaged: Recorder gets all lines of metrics.jsonl again"
    ]


def test_the_status_of_a_run_that_fails(tmp_path):
    def dataset(**options):
        return toy.toy_dataset(**options).take(3)

    with pytest.raises(StopIteration):
        run(tmp_path, 8, logger := Recorder(), dataset=dataset)
    assert logger.status == "failed" and [step for step, _ in logger.sent] == [2]


def test_mistakes(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Recorder cannot start: no key. Correct its"):
        run(tmp_path, 4, Recorder(fails_at_start=True))
    for wrong in (Recorder, [Recorder], [Recorder(), Recorder()], ["W&B"]):
        with pytest.raises(ValueError, match="one logger of a kind"):
            Watching(loggers=wrong)
    for logger, name in ((WandbLogger, "wandb"), (MlflowLogger, "mlflow")):
        monkeypatch.setitem(sys.modules, name, None)
        install = rf"Install it: python -m pip install 'remixer_tf\[{name}\]'"
        with pytest.raises(ImportError, match=install):
            logger()


def test_one_line_of_gin(wandb, clear_gin):
    line = "Watching.loggers = [@WandbLogger()]"
    settings = configuration.read([], [line], complete=False)
    (logger,) = part_of(settings, "Watching")().loggers
    assert isinstance(logger, WandbLogger)
    gin.clear_config()


@pytest.mark.slow
def test_the_real_libraries_without_a_network(tmp_path, monkeypatch):
    """Offline W&B, and MLflow's folder of files, where both are installed."""
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    folder = tmp_path / "my_run"
    for steps in (4, 8):
        run(folder, steps, WandbLogger(), MlflowLogger())
    (losses,) = (tmp_path / "mlruns").glob("0/*/metrics/loss")
    found = [line.split() for line in losses.read_text().splitlines()]
    expected = [(s, v["loss"]) for s, v in lines(folder) if "loss" in v]
    assert [(int(s), float(x)) for _, x, s in found] == expected
    assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 2
