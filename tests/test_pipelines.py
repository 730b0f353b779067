"""Options and errors of Apache Beam's pipelines."""

import os
import signal
import sys

import pytest
import tensorflow as tf

from remixer_tf.command_line import parse_command_line
from remixer_tf.commands import add_beam
from remixer_tf.errors import MissingLibraryError, UserError
from remixer_tf.pipelines import _reason, beam_options, pipeline


def parse(*arguments):
    def add_arguments(parser):
        parser.add_argument("--output")
        add_beam(parser, "write")

    return parse_command_line(arguments, "Writes.", add_arguments)


def test_beams_own_options_follow():
    options = parse("--runner=DirectRunner", "--output=a", "--beam", "--streaming")
    assert options.output == "a"
    assert options.beam_arguments == ["--runner=DirectRunner", "--streaming"]


def test_options_of_beam_need_it():
    with pytest.raises(UserError, match="'--runner=x'.*Beam need --beam"):
        parse("--runner=x")


def test_without_beam_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.setitem(sys.modules, "apache_beam.options.pipeline_options", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'remixer_tf\[beam\]'"):
        beam_options([])


def test_several_workers_of_this_machine_are_processes():
    apache_beam = pytest.importorskip("apache_beam")
    direct = apache_beam.options.pipeline_options.DirectOptions
    several = beam_options(["--direct_num_workers=2"]).view_as(direct)
    assert several.direct_running_mode == "multi_processing"
    assert beam_options([]).view_as(direct).direct_running_mode == "in_memory"
    named = ["--direct_num_workers=2", "--direct_running_mode=multi_threading"]
    assert beam_options(named).view_as(direct).direct_running_mode == named[1][-15:]


def test_an_option_that_is_nobodys():
    pytest.importorskip("apache_beam")
    with pytest.raises(UserError, match="'--runer=x' is.*Nearest: --runner"):
        beam_options(["--runer=x"])


def _fails(number):
    raise UserError(f"the row {number} is bad.")


def _fails_in_tensorflow(number):
    """Its message has more lines, which name the nodes of a graph."""
    texts = tf.data.Dataset.from_tensors(f"{number}x")
    return [*texts.map(tf.strings.to_number)]


@pytest.mark.parametrize(
    "step, message",
    [
        (_fails, r"^the row 3 is bad\.$"),
        (len, "^counting failed: TypeError: .*int"),
        (_fails_in_tensorflow, r"^counting failed: .* convert string: 3x\.$"),
    ],
)
def test_an_error_of_a_step_is_one_line(step, message):
    beam = pytest.importorskip("apache_beam")
    with (
        pytest.raises(UserError, match=message) as caught,
        pipeline([], "counting") as p,
    ):
        p | beam.Create([3]) | beam.Map(step)
    assert "while running" not in str(caught.value)


def _ends(number):
    os._exit(number)


@pytest.fixture
def without_interrupts():
    """As a shell starts the commands of a script that end in &."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.slower
@pytest.mark.parametrize(
    "step, message",
    [(_fails, r"^the row 3 is bad\.$"), (_ends, "^counting failed: .* return code 3")],
)
def test_workers_of_this_machine_write_no_traceback(
    step, message, capfd, without_interrupts
):
    beam = pytest.importorskip("apache_beam")
    with (
        pytest.raises(UserError, match=message),
        pipeline(["--direct_num_workers=2"], "counting") as p,
    ):
        p | beam.Create([3, 3]) | beam.Reshuffle() | beam.Map(step)
    assert capfd.readouterr().err == ""


def test_an_error_of_another_process_is_its_last_line():
    """As the DirectRunner hands it on, tried with two workers."""
    text = """ERROR: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1512, in process
remixer_tf.errors.MissingFileError: There is no checkpoint in run.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "apache_beam/runners/worker/sdk_worker.py", line 310, in _execute
remixer_tf.errors.MissingFileError: There is no checkpoint in run. [while running 'a/b']
"""
    assert _reason(RuntimeError(text), "work") == "There is no checkpoint in run."
    other = text.replace("remixer_tf.errors.MissingFileError", "KeyError")
    expected = "work failed: KeyError: There is no checkpoint in run."
    assert _reason(RuntimeError(other), "work") == expected
    nodes = "run.\n\t [[{{node Read}}]] [Op:IteratorGetNext] name: "
    assert _reason(RuntimeError(other.replace("run.", nodes)), "work") == expected
