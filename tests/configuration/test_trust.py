"""A stranger's run is data: its configuration runs no code unless the user says so."""

import pytest

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from tests.settings import value_of

pytestmark = pytest.mark.usefixtures("clear_gin")

DYNAMIC = "from __gin__ import dynamic_registration\nimport subprocess\n"
CALL = "Run.model = @subprocess.run()\nsubprocess.run.args = ['touch', '{}']\n"
REFUSED = {
    "a module": ("import evil_parts", "imports evil_parts, .*--module_import=evil"),
    "a part of one": ("from os import path as keras", "imports os.path"),
    "t5's programs": ("import t5.scripts.dump_task", "imports t5.scripts.dump_task"),
    "a like name": ("import kerasy.layers", "--module_import=kerasy.layers"),
    "a file beside it": ("include '{}'", "includes '.*more.gin'"),
    "a file of ours": ("include 'models/t5_1_1_tiny.gin'", "includes 'models/"),
    "in a block": ("train:\n  seed = 1\nimport evil_parts", "imports evil_parts"),
    "training": ("Run.task = @a/train()", "the program @a/train"),
    "evaluation": ("X = [{'a': @remixer_tf.evaluation.evaluate.evaluate}]", "program"),
}


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that is there once a stranger's code ran."""
    marker = tmp_path / "code ran"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_parts.py").write_text(f"open({str(marker)!r}, 'w')")
    yield marker
    assert not marker.exists()


def read(*arguments):
    options = configuration.parse_command_line(arguments, "", configuration.add_run)
    return configuration.read_run(options)


def write_run(folder, text):
    more = folder / "more.gin"
    more.write_text(DYNAMIC + CALL.format(folder / "code ran"))
    (folder / "operative_config.gin").write_text(text.replace("{}", str(more)))
    return f"--model_dir={folder}"


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_strangers_configuration_may_not_do(tmp_path, marker, what):
    text, message = REFUSED[what]
    run = write_run(tmp_path, text)
    with pytest.raises(configuration.UserError, match=message) as error:
        read(run)
    assert "--trust" in str(error.value) and "\n" not in str(error.value)


def test_dynamic_registration_is_refused_everywhere(tmp_path, marker):
    run = write_run(tmp_path, DYNAMIC + CALL)
    file = f"--gin_file={tmp_path}/operative_config.gin"
    for arguments in ([run], [run, "--trust"], [run, file]):
        with pytest.raises(configuration.UserError, match="dynamic registration"):
            read(*arguments)


READERS = [
    *("cache", "costs", "data_report", "eval", "export", "infer", "lm_eval"),
    *("pictures", "score", "train", "train_vocabulary"),
]
ALSO = {
    "cache": ["--output_dir=out"],
    "lm_eval": ["--tasks=a"],
    "train_vocabulary": ["--task=mini_cogs", "--output=out"],
}


@pytest.mark.parametrize("command", READERS)
def test_every_command_that_reads_a_run(tmp_path, marker, command):
    run = write_run(tmp_path, "import evil_parts")
    with pytest.raises(configuration.UserError, match="--module_import=evil_parts"):
        run_command(command, [run, *ALSO.get(command, [])])


def test_python_reads_a_run_so_too(tmp_path, marker):
    write_run(tmp_path, "import evil_parts")
    with pytest.raises(configuration.UserError, match="--module_import=evil_parts"):
        rt.load(tmp_path)


def test_what_the_user_trusts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kind_parts.py").write_text("import gin\ngin.constant('kind', 3)\n")
    run = write_run(tmp_path, "import kind_parts\nimport seqio\ntrain.seed = %kind")
    settings = read(run, "--module_import=kind_parts")
    assert value_of(settings, "Run.seed") == 3
    write_run(tmp_path, "include 'models/t5_1_1_tiny.gin'\nimport kind_parts")
    assert value_of(read(run, "--trust"), "Run.model") is not None


def test_data_report_trains_no_vocabulary_where_a_run_says(tmp_path):
    place = tmp_path / "elsewhere" / "words.model"
    (tmp_path / "operative_config.gin").write_text(
        "train.dataset = @train_dataset\ntrain_dataset.task = @get_task()\n"
        "get_task.name = 'mini_cogs'\nget_task.vocabulary = @trained_vocabulary()\n"
        f"trained_vocabulary.task = 'mini_cogs'\ntrained_vocabulary.path = '{place}'\n"
        "trained_vocabulary.model_type = 'word'\n"
    )
    with pytest.raises(FileNotFoundError, match="There is no .*words.model"):
        run_command("data_report", [f"--model_dir={tmp_path}"])
    assert not place.parent.exists()


HUGE = f"a = 0x{'9' * 5_000}"


@pytest.mark.parametrize(
    "text",
    ["a = [", "a = {[1]: 2}", "a = " + "[" * 3_000, "\xff = 1", "=", "a" * 2**21, HUGE],
)
def test_a_damaged_configuration_is_one_line(tmp_path, text):
    (tmp_path / "operative_config.gin").write_bytes(text.encode("latin-1"))
    with pytest.raises(configuration.UserError) as error:
        read(f"--model_dir={tmp_path}")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    with pytest.raises(configuration.UserError):
        configuration.read_bindings(tmp_path / "operative_config.gin")
