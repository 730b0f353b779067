"""The settings by which the runs of studies differ."""

import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import pytest

from studies import runs


def test_verdict_is_in_deviations_of_one_run():
    # Both deviations are 0.1, and so is the pooled one.
    low, high = [1.0, 1.1, 1.2], [1.25, 1.35, 1.45]
    assert runs.verdict(low, high) == ("supported", pytest.approx(2.5))
    assert runs.verdict(high, low) == ("contradicted", pytest.approx(-2.5))
    near = [1.29, 1.39, 1.49]
    assert runs.verdict(high, near) == ("a tie", pytest.approx(0.4))
    # Deviations of 0.1 and 0.3: pooled sqrt(0.05), a gap of 0.4 is below two of it.
    wide = [1.2, 1.5, 1.8]
    expected = 0.4 / math.sqrt((statistics.variance(low) + 0.3**2) / 2)
    assert runs.verdict(low, wide) == ("a tie", pytest.approx(expected))


def test_verdict_without_deviations():
    assert runs.verdict([1.0, 1.0], [1.5, 1.5])[0] == "supported"
    assert runs.verdict([1.0, 1.0], [1.0, 1.0]) == ("a tie", 0)
    assert runs.verdict([1.0], [2.0, 2.1])[0] == "undecided"


def test_a_process_that_has_had_its_runs_gives_way_to_another():
    calls = [(number, os.getpid, ()) for number in range(5)]
    with runs.processes(1, False, runs_of_each=2) as executor:
        found = dict(runs.results_of(executor, 1, calls))
    assert [*found] == [*range(5)] and len({*found.values()}) == 3


def test_a_call_that_fails_stops_no_other(capsys):
    calls = [("a", int, ("x",)), ("b", int, ("2",)), ("c", int, ("3",))]
    found = []
    with runs.processes(1, False, runs_of_each=9) as executor:
        with pytest.raises(ValueError, match="1 runs failed, see above: a. Run the sa"):
            found.extend(runs.results_of(executor, 1, calls))
    assert found == [("b", 2), ("c", 3)]
    assert capsys.readouterr().err.startswith("error: invalid literal for int()")


def test_a_killed_process_is_one_message():
    calls = [("a", int, ("1",)), ("b", os._exit, (9,)), ("c", int, ("3",))]
    found = []
    with runs.processes(1, False, runs_of_each=9) as executor:
        with pytest.raises(ValueError, match="killed while these ran: b. .* to go on,"):
            found.extend(runs.results_of(executor, 1, calls))
    assert found == [("a", 1)]


def test_data_are_told_apart_by_names_and_contents(tmp_path):
    def digest():
        runs.data_of.cache_clear()
        return runs.data_of(str(tmp_path))

    (tmp_path / "a").write_text("x")
    first = digest()
    assert digest() == first
    (tmp_path / "a").write_text("y")
    second = digest()
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, digest()}) == 3


PARENT = """
import os, time
from studies import runs
if __name__ == "__main__":
    executor = runs.processes(1, False, runs_of_each=9)
    print(executor.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def test_a_process_that_waits_ends_with_a_killed_study(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    root = pathlib.Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    worker = int(process.stdout.readline())
    process.kill()
    process.wait()
    for _ in range(100):
        state = pathlib.Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().rsplit(")")[-1].split()[0] == "Z":
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    raise AssertionError("the worker was still there after 10 s")
