"""A stranger's run is data: its configuration runs no code unless the user says so."""

import pytest

from remixer_tf import configuration, infer, inspect, lm_eval, pictures, score
from remixer_tf.harness.model import HarnessModel

pytestmark = pytest.mark.usefixtures("clear_gin")

DYNAMIC = "from __gin__ import dynamic_registration\nimport subprocess\n"
CALL = "train.model = @subprocess.run()\nsubprocess.run.args = ['touch', '{}']\n"
REFUSED = {
    "a module": ("import evil_parts", "imports evil_parts, .*--module_import=evil"),
    "a part of one": ("from os import path as keras", "imports os.path"),
    "a like name": ("import kerasy.layers", "--module_import=kerasy.layers"),
    "dynamic registration": (DYNAMIC + CALL, "dynamic registration"),
    "a file beside it": ("include '{}'", "includes '.*more.gin'"),
    "a file of ours": ("include 'models/t5_1_1_tiny.gin'", "includes 'models/"),
    "in a block": ("train:\n  seed = 1\nimport evil_parts", "imports evil_parts"),
    "training": ("text_to_text.task = @a/train()", "the program @a/train"),
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
        configuration.parse_run([run], "")
    assert "--trust" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "main", [infer.main, score.main, pictures.main, inspect.main, lm_eval.main]
)
def test_every_binary_that_reads_a_run(tmp_path, marker, main):
    run = write_run(tmp_path, "import evil_parts")
    tasks = ["--tasks=a"] if main is lm_eval.main else []
    with pytest.raises(configuration.UserError, match="--module_import=evil_parts"):
        main([run, *tasks])
    with pytest.raises(configuration.UserError, match="--module_import=evil_parts"):
        HarnessModel.create_from_arg_string(f"model_dir={tmp_path}")


def test_what_the_user_trusts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kind_parts.py").write_text("import gin\ngin.constant('kind', 3)\n")
    run = write_run(tmp_path, "import kind_parts\nimport seqio\ntrain.seed = %kind")
    configuration.parse_run([run, "--module_import=kind_parts"], "")
    assert configuration.get_value("train.seed") == 3
    write_run(tmp_path, "include 'models/t5_1_1_tiny.gin'\nimport kind_parts")
    configuration.parse_run([run, "--trust"], "")
    assert configuration.get_value("train.model") is not None


def test_inspect_trains_no_vocabulary_where_a_run_says(tmp_path):
    place = tmp_path / "elsewhere" / "words.model"
    (tmp_path / "operative_config.gin").write_text(
        "train.dataset = @train_dataset\ntrain_dataset.task = @get_task()\n"
        "get_task.name = 'mini_cogs'\nget_task.vocabulary = @trained_vocabulary()\n"
        f"trained_vocabulary.task = 'mini_cogs'\ntrained_vocabulary.path = '{place}'\n"
        "trained_vocabulary.model_type = 'word'\n"
    )
    with pytest.raises(FileNotFoundError, match="There is no .*words.model"):
        inspect.main([f"--model_dir={tmp_path}"])
    assert not place.parent.exists()


HUGE = f"a = 0x{'9' * 5_000}"


@pytest.mark.parametrize(
    "text",
    ["a = [", "a = {[1]: 2}", "a = " + "[" * 3_000, "\xff = 1", "=", "a" * 2**21, HUGE],
)
def test_a_damaged_configuration_is_one_line(tmp_path, text):
    (tmp_path / "operative_config.gin").write_bytes(text.encode("latin-1"))
    with pytest.raises(configuration.UserError) as error:
        configuration.parse_run([f"--model_dir={tmp_path}"], "")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    with pytest.raises(configuration.UserError):
        configuration.read_bindings(tmp_path / "operative_config.gin")
