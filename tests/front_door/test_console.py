"""`--quiet` and `--log=json` of every command, and mistakes in the shell."""

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import warnings

import pytest
from absl import logging

from remixer_tf import console
from remixer_tf.__main__ import main
from remixer_tf.commands import COMMANDS, load_command
from remixer_tf.configuration import parse_command_line
from tests.tiny_run import train_run

pytestmark = pytest.mark.usefixtures("clear_gin")


@pytest.fixture(autouse=True)
def as_before():
    yield
    console.configure()


def shell(monkeypatch, capsys, *arguments):
    """The exit code of a command, and the lines of both outputs."""
    monkeypatch.setattr(sys, "argv", ["remixer_tf", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr()
    return code, shown.out.splitlines(), shown.err.splitlines()


def test_lines_of_json(capsys):
    console.configure(log="json")
    values = {"step": 1, "loss": float("nan"), "speed": 2.5, "unit": "tokens"}
    console.say("step 1", fields=values)
    logging.warning("%s is damaged", "a.txt")
    warnings.warn("a text is long", stacklevel=1)
    console.say("no such file", "error")
    shown = capsys.readouterr()
    (line,) = map(json.loads, shown.out.splitlines())
    time = datetime.datetime.fromisoformat(line.pop("time"))
    assert abs(datetime.datetime.now(datetime.UTC) - time).total_seconds() < 60
    expected = {"level": "info", "message": "step 1", **values, "loss": None}
    assert line == expected
    damaged, long, error = map(json.loads, shown.err.splitlines())
    assert (damaged["level"], damaged["message"]) == ("warning", "a.txt is damaged")
    assert "a text is long" in long["message"] and long["level"] == "warning"
    assert (error["level"], error["message"]) == ("error", "no such file")


def test_quiet_shows_errors_and_results_alone(capsys):
    console.configure(quiet=True)
    console.say("step 1", fields={"step": 1})
    console.say("long lines", "warning")
    logging.warning("damaged")
    warnings.warn("a text is long", stacklevel=1)
    assert capsys.readouterr() == ("", "")
    console.say("no such file", "error")
    assert capsys.readouterr() == ("", "error: no such file\n")
    console.configure()
    console.say("step 1", fields={"step": 1})
    console.say("long lines", "warning")
    assert capsys.readouterr().out == "step 1\nwarning: long lines\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_both(name, capsys):
    def add_arguments(parser):
        load_command(name).add_arguments(parser)
        console.add_arguments(parser)

    with pytest.raises(SystemExit):
        parse_command_line(["--help"], "", add_arguments)
    shown = capsys.readouterr().out
    assert "--quiet" in shown and "--log {text,json}" in shown


@pytest.mark.slower
def test_training_in_json(tmp_path, capsys):
    train_run(tmp_path, "bytes", "--log=json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    (step,) = (line for line in lines if "loss" in line and line["level"] == "info")
    (logged,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (step["step"], step["train_steps"]) == (1, 1)
    for name in ("loss", "token_accuracy", "learning_rate", "gradient_norm"):
        assert step[name] == pytest.approx(logged[name])


@pytest.mark.slower
def test_training_and_answering_quietly(tmp_path, monkeypatch, capsys):
    train_run(tmp_path, "bytes", "--quiet")
    assert capsys.readouterr() == ("", "")
    (tmp_path / "questions").write_text("a cat " * 9 + "\n")
    files = [f"--input={tmp_path}/questions", f"--output={tmp_path}/answers"]
    arguments = ["infer", f"--model_dir={tmp_path}", *files]
    assert shell(monkeypatch, capsys, *arguments, "--quiet") == (0, [], [])
    code, out, err = shell(monkeypatch, capsys, *arguments, "--log=json")
    assert (code, out) == (0, [])
    ours = [line for line in map(json.loads, err) if "retracing" not in line["message"]]
    (warned,) = ours  # TensorFlow warns of the sixth model that a process calls
    assert warned["level"] == "warning"
    assert "1 of 1 lines are longer" in warned["message"]
    code, out, err = shell(monkeypatch, capsys, *arguments, "--on_long=raise")
    assert code == 2
    assert err[-1] == "error: line 1 is longer than 24 tokens (--on_long=raise)."
    (tmp_path / "pairs").write_text("a\tb\n" + "a cat " * 9 + "\tb\n")
    score = ["score", f"--model_dir={tmp_path}", f"--input={tmp_path}/pairs"]
    code, _, err = shell(monkeypatch, capsys, *score, "--on_long=raise")
    assert code == 2
    assert err[-1].startswith("error: line 2 is longer than the model reads")
    code, out, err = shell(monkeypatch, capsys, *arguments, "--step=7", "--log=json")
    assert (code, out) == (2, [])
    error = json.loads(err[-1])
    assert error["level"] == "error" and "step 7" in error["message"]
    code, out, err = shell(monkeypatch, capsys, "infer", "--log=json", "--foo")
    assert (code, out, json.loads(err[-1])["level"]) == (2, [], "error")


def test_json_lines_of_exceptions_have_their_traceback(capsys):
    console.configure(log="json")
    try:
        raise ValueError("odd")
    except ValueError:
        logging.exception("it failed")
    finally:
        console.configure()
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "error"
    assert line["message"].startswith("it failed\nTraceback")
    assert line["message"].endswith("ValueError: odd")


@pytest.mark.slow
def test_mistakes_in_the_shell_are_one_line(
    tmp_path, monkeypatch, capsys, classifier_run, lm_run
):
    """The same as from Python, see test_loaded_run.py and test_encoders.py."""
    run = f"--model_dir={classifier_run}"
    (tmp_path / "lines").write_text("a\n")
    lines = f"--input={tmp_path}/lines"
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text("{}")
    mistakes = [
        (["presets", "remixr_smal"], "Nearest: remixer_small"),
        (["tasks", "minicogs"], "Nearest: mini_cogs"),
        (["trian"], "Nearest: train"),
        (["infer", f"--model_dir={tmp_path}"], "operative_config.gin"),
        (["infer", f"--model_dir={tmp_path}/nothing"], "there is no .*/nothing. Set"),
        (["infer", f"--model_dir={tmp_path}/t5"], "import_weights --from=.*/t5 "),
        (["infer", run, lines], "need a model that writes text"),
        (["score", run, lines], "need a model that writes text"),
        (["infer", run, "--input=nothing"], "cannot read nothing"),
        (["infer", run, "--batch_size=many"], "--batch_size"),
        (["infer", run, "--log=xml"], "--log"),
        (["export", run, "--format=onx"], "onx"),
        (["export", run, "--format=litert"], "litert|writes text"),
        (["score", f"--model_dir={lm_run}", lines], "line 1 has no tab"),
        (["train", f"--model_dir={tmp_path}", "--gin_file=t5_tny.gin"], "t5_tny"),
        *(
            (
                ["train", f"--model_dir={tmp_path}", f"--profile={steps}"],
                "START:STOP, two steps",
            )
            for steps in ("5", "a:b")
        ),
    ]
    for arguments, message in mistakes:
        code, out, err = shell(monkeypatch, capsys, *arguments)
        assert code == 2, arguments
        assert err[-1].startswith("error: "), arguments
        assert re.search(message, err[-1]), (arguments, err[-1])
        assert not any("Traceback" in line for line in err), arguments


STREAMS = """
import os, sys
from remixer_tf import console
console.open_streams()
print(os.fsdecode(b"\\xff"))
print("an error", file=sys.stderr)
assert sys.stdin.read() == ""
with open(sys.argv[1], "w") as file:
    os.write(2, b"a library's line")
    assert file.fileno() > 2 and all(map(os.get_inheritable, range(3)))
assert not os.path.getsize(sys.argv[1])
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_opened_before_files_take_their_numbers(tmp_path, closed):
    """Also where the package locks a folder for compiled programs at its import."""
    arguments = shlex.join([sys.executable, "-c", STREAMS, f"{tmp_path}/file"])
    done = subprocess.run(
        ["bash", "-c", f"{arguments} {closed}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=os.environ | {"REMIXER_TF_CACHE": str(tmp_path / "programs")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (b"" if " >&-" in f" {closed}" else b"\xff\n")


@pytest.mark.slow
def test_a_mistake_has_its_exit_code_without_any_stream():
    command = f"{shlex.quote(sys.executable)} -m remixer_tf zzz <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 2


def test_a_reader_that_goes_away_does_not_end_the_work(tmp_path):
    code = """
import sys
from remixer_tf import console
from remixer_tf.training.progress import rich_console
sys.stdin.readline()
rich_console().print("a table")  # rich itself would end the program
for step in range(3):
    console.say(f"step {step}")
open(sys.argv[1], "w").close()
"""
    command = [sys.executable, "-c", code, f"{tmp_path}/done"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True) as process:
        process.stdout.close()
        process.stdin.write("go\n")
        process.stdin.close()
        (line,) = process.stderr.read().splitlines()
    assert line.startswith("warning: standard output cannot be written")
    assert line.endswith("Broken pipe") and process.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_program_may_have_no_streams(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    console.say("a line")
    console.say("a mistake", "error")
    assert not console.draws()


def test_paths_that_are_not_utf_8_are_one_line(monkeypatch, capsys):
    path = os.fsdecode(b"/tmp/\xff")
    for arguments in (
        ["train", f"--model_dir={path}"],
        ["report", "--model_dir", path],
    ):
        code, _, err = shell(monkeypatch, capsys, *arguments)
        assert code == 2 and "UTF-8" in err[-1] and "'/tmp/\\udcff" in err[-1]
