"""Runs on tables and modules of one's own, as gin and the command line name them."""

import json

import gin
import pytest
import seqio

from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.data.pipeline import get_task
from tests.settings import part_of
from tests.tasks.test_tables import examples_of, write
from tests.tiny_run import SIZES

OWN = """
include 'models/t5_1_1_tiny.gin'
include 'runs/own_task.gin'
table_task.name = 'words'
TableRows.fractions = {'validation': 0.2, 'train': 0.8}  # train keeps what both have
table_task.inputs = 'say {t}'
table_task.targets = '{l}'
table_task.metrics = ['accuracy', 'per_class']
VOCABULARY = @trained_vocabulary()
trained_vocabulary.model_type = 'word'
trained_vocabulary.vocab_size = 15
FEATURE_LENGTHS = {'inputs': 4, 'targets': 3}
BATCH_SIZE = 4
TRAIN_STEPS = 2
WARMUP_STEPS = 1
"""


@pytest.fixture
def own_run(tmp_path):
    """A gin file of one's own, with its arguments."""
    rows = "".join(f"{a}{b},{b}\n" for a in "abc" for b in ("x", "y", "z"))
    rows += "ax,x\n" * 2 + "b,\n"
    csv = write(tmp_path / "all.csv", "t,l\n" + rows)
    file = write(tmp_path / "own.gin", OWN)
    bindings = {
        "FILES": repr(csv),
        "TableRows.on_bad_rows": "'skip'",
        "trained_vocabulary.path": repr(str(tmp_path / "own.model")),
    }
    return file, [f"{name} = {value}" for name, value in bindings.items()]


@pytest.mark.usefixtures("clear_gin")
def test_gin_makes_the_same_task_again(tmp_path, own_run):
    file, bindings = own_run
    settings = configuration.read([file], bindings)
    task = part_of(settings, "Run")(model=None).get_task()
    vocabulary = task.output_features["inputs"].vocabulary
    assert isinstance(vocabulary, seqio.SentencePieceVocabulary)
    assert vocabulary.decode(vocabulary.encode("say ax")) == "say ax"
    before = [e["inputs"].tolist() for e in examples_of(task)]
    trained = (tmp_path / "own.model").read_bytes()
    written = write(tmp_path / "operative_config.gin", settings.text())
    gin.clear_config()
    settings = configuration.read([written], [])
    again = part_of(settings, "Run")(model=None).get_task()
    assert [e["inputs"].tolist() for e in examples_of(again)] == before
    assert again.name == "words" and len(before) in (8, 9)
    assert (tmp_path / "own.model").read_bytes() == trained


@pytest.mark.slower
@pytest.mark.usefixtures("clear_gin")
def test_a_run_of_ones_own_table(tmp_path, own_run, monkeypatch):
    file, bindings = own_run
    arguments = [f"--gin.{binding.replace(' = ', '=')}" for binding in bindings]
    arguments = [argument.replace(f"{tmp_path}/", "") for argument in arguments]
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    files = [f"--model_dir={run}", f"--gin_file={file}"]
    run_command("train", [*files, *arguments, *SIZES])
    gin.clear_config()
    assert str(tmp_path) not in (run / "operative_config.gin").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run_command("eval", [f"--model_dir={run}"])
    path = run / "eval" / "words" / "validation" / "2" / "metrics.json"
    result = json.loads(path.read_text())
    assert result["examples"] == 1 and "macro_f1" in result["metrics"]
    # Answers need the run's folder alone.
    (tmp_path / "all.csv").unlink()
    (tmp_path / "own.model").unlink()
    run = run.rename(tmp_path / "elsewhere" / "moved")
    (tmp_path / "questions").write_text("say ax\tx\nsay by\ty\n")
    files = {"input": tmp_path / "questions", "output": tmp_path / "answers"}
    for command in ("infer", "score"):
        gin.clear_config()
        own = [f"--{k}={v}" for k, v in files.items()]
        run_command(command, [f"--model_dir={run}", *own])
        assert len((tmp_path / "answers").read_text().split("\n")) == 3
    gin.clear_config()
    run_command("export", [f"--model_dir={run}"])
    (assets,) = run.glob("export/2/assets")
    assert not [f for f in run.glob("export/2/**/*.model") if f.parent != assets]
    gin.clear_config()
    run_command("pictures", [f"--model_dir={run}", "--text=say ax"])
    (run / "vocabularies").rename(run / "lost")
    gin.clear_config()
    with pytest.raises(FileNotFoundError, match="own.model.*run .*moved"):
        run_command("infer", [f"--model_dir={run}", *own])


@pytest.mark.usefixtures("clear_gin")
def test_a_module_of_the_command_line_is_remembered(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path / "named_module.py", (
        "from remixer_tf.tasks.tables import table_task\nimport seqio\n"
        "task = table_task({'train': 'a.csv'}, '{0}', '{1}', name='of_module')\n"
        "seqio.TaskRegistry.add_provider('of_module', task)\n"
    ))  # fmt: skip
    files = ["--gin_file=models/t5_1_1_tiny.gin", "--gin_file=runs/train.gin"]
    options = configuration.parse_command_line(
        ["--model_dir=r", *files, "--module_import=named_module",
         "--module_import=json", "--gin.TASK=of_module"],
        "", configuration.add_common,
    )  # fmt: skip
    required = ["FEATURE_LENGTHS = {'inputs': 4}", "BATCH_SIZE = 1", "TRAIN_STEPS = 1"]
    settings = configuration.read(
        options.gin_file,
        [*options.gin_bindings, *required],
        modules=options.module_import,
    )
    assert get_task("of_module").name == "of_module"
    assert part_of(settings, "Run")(model=None).get_task().name == "of_module"
    seqio.TaskRegistry.remove("of_module")
    text = settings.text()
    assert "import named_module\n" in text and "import json\n" in text
    with pytest.raises(configuration.UserError, match="no module 'no_such'.*current"):
        settings = configuration.read([], [], modules=["no_such"])
