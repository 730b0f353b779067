"""Messages of the log about experts, and the process that writes them."""

import types

import numpy as np
import pytest

from remixer_tf.engines.engine import Host
from remixer_tf.training import logs, progress
from tests.training import toy

GOOD = {
    "loss": 0.0,
    "load": np.zeros(2),
    "statistics/stack/one/moe/load": np.array([0.9, 0.1]),
    "statistics/stack/one/moe/dropped": 0.1,
    "statistics/stack/two/moe/load": np.full(3, np.nan),  # No step counted.
    "statistics/stack/two/moe/dropped": np.nan,
}


def test_nothing_is_said_where_all_is_well():
    assert logs.expert_warning(GOOD) is None


def test_unused_experts_and_dropped_choices_are_named():
    bad = {
        "statistics/stack/one/moe/dropped": 0.126,
        "statistics/stack/three/moe/load": np.array([0.0, 0.5, 0.0, 0.5]),
        "statistics/stack/three/moe/dropped": 0.5,
        "statistics/stack/four/moe/load": np.eye(1, 20)[0],
    }
    assert logs.expert_warning(GOOD | bad) == (
        "warning: since the last log line, "
        "stack/one/moe: 13% of the choices dropped; "
        "stack/three/moe: 2 of 4 experts unused (0, 2), 50% of the choices dropped; "
        "stack/four/moe: 19 of 20 experts unused (1, 2, 3, 4, 5, 6, 7, 8, ...)"
    )


def test_largest_over_mean_load():
    values = GOOD | {"statistics/moe/load": np.zeros(2)}
    found = logs.expert_imbalances(values)
    assert found.pop("statistics/stack/one/moe/load_largest_over_mean") == (
        pytest.approx(1.8)
    )
    assert found.keys() == {
        "statistics/stack/two/moe/load_largest_over_mean",
        "statistics/moe/load_largest_over_mean",
    }
    assert all(map(np.isnan, found.values()))


class Clock:
    """A clock in place of `time.perf_counter`."""

    now = 100.0

    def __call__(self):
        return self.now


def test_seconds_in_steps_leave_out_pauses_and_waiting(monkeypatch):
    """Of 10 s: 2 compiling, 1 saving and 0.5 waiting for data leave 6.5 s."""
    clock = Clock()
    monkeypatch.setattr(progress.time, "perf_counter", clock)
    speed = progress.Speed()
    clock.now += 9
    speed.skip(2)
    with speed.paused():
        clock.now += 1
    speed.count(steps=4, waited=0.5)
    assert speed.lap("tokens")["steps_per_second"] == pytest.approx(4 / 7)
    assert speed.seconds_in_steps == pytest.approx(6.5)


def test_the_log_line_shows_utilization_and_goodput(capsys):
    values = {"loss": 1.0, "learning_rate": 0.1, "goodput": 0.875}
    shown = progress.Progress(0, 10)
    shown.report(5, values)
    assert "goodput 87.5%" in (line := capsys.readouterr().out) and "MFU" not in line
    shown.report(6, values | {"model_flops_utilization": 0.4125})
    assert "MFU 41.2%  goodput 87.5%" in capsys.readouterr().out


@pytest.mark.parametrize("index", [0, 1])
def test_one_of_several_processes_writes_curves(tmp_path, index):
    session = types.SimpleNamespace(
        model_dir=str(tmp_path),
        batches=types.SimpleNamespace(first=toy.make_batches(1)[0]),
        engine=types.SimpleNamespace(host=Host(index, 2)),
    )
    with logs.Logging(session, None, None):
        pass
    assert bool(list(tmp_path.iterdir())) == (index == 0)
