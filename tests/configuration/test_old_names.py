"""A run written before names changed is read; an error gives a user the new name."""

import pathlib
import re

import gin
import pytest

from remixer_tf import configuration
from remixer_tf.configuration import parts
from remixer_tf.configuration.configurables import configurables
from remixer_tf.configuration.old_names import NEW_NAMES
from remixer_tf.errors import UserError
from remixer_tf.models import EncoderDecoder
from remixer_tf.run import Run
from tests.settings import arguments_of, part_of, value_of

OLD_RUNS = pathlib.Path(__file__).parents[1] / "testdata" / "old_runs"

pytestmark = pytest.mark.usefixtures("clear_gin")


@pytest.mark.parametrize("name", ["t5_1_1_tiny", "remixer_tiny"])
def test_an_old_run_is_read(name, tmp_path):
    """Also what is written of it, where each is bound once."""
    text = (OLD_RUNS / name / "operative_config.gin").read_text()
    assert "train.model = @EncoderDecoder" in text
    assert text.count(".model = ") == 4 and "Run." not in text
    path = tmp_path / "operative_config.gin"
    for _ in range(2):
        path.write_text(text)
        gin.clear_config()
        settings = configuration.read([str(path)], [])
        run = part_of(settings, "Run")()
        assert run.model.__wrapped__ is EncoderDecoder and run.task == "mini_cogs"
        assert run.feature_lengths == {"inputs": 104, "targets": 192}
        assert run.dtype_policy == "float32" and run.engine.__name__ == "backend_engine"
        assert run.get_task().output_features["inputs"].vocabulary == run.vocabulary
        schedule = part_of(settings, "Schedule")()
        assert (schedule.train_steps, schedule.checkpoint_period) == (2, 1000)
        assert part_of(settings, "Checkpointing")().keep == 3
        assert part_of(settings, "Objective")().loss_fn._options["z_loss"] == 1e-4
        (evaluation,) = value_of(settings, "evaluate.evaluations")
        assert evaluation.task.name == "mini_cogs"
        text = settings.text()
        assert text.count(".model = ") == 1 and "Run.model = @EncoderDecoder" in text


def test_the_value_of_training_counts(tmp_path):
    path = tmp_path / "operative_config.gin"
    path.write_text("a/evaluate.dtype_policy = 'a'\nevaluate.dtype_policy = 'b'\n"
                    "remixer_tf.training.loop.train.dtype_policy = 'c'\n")  # fmt: skip
    settings = configuration.read([str(path)], [])
    assert value_of(settings, "Run.dtype_policy") == "c"
    assert settings.bound(Run, "a").arguments()["dtype_policy"] == "a"


def test_an_old_search_has_its_limits(tmp_path):
    path = tmp_path / "operative_config.gin"
    path.write_text("text_to_text.decode_fn = @a/sample\n"
                    "a/remixer_tf.decoding.sample.min_length = 3\n"
                    "a/sample.top_k = 5\n")  # fmt: skip
    settings = configuration.read([str(path)], [])
    found = arguments_of(settings, "text_to_text.decode_fn")
    assert found["limits"].min_length == 3 and found["sampling"].top_k == 5


def test_old_searches_keep_limits_of_their_own(tmp_path):
    path = tmp_path / "operative_config.gin"
    path.write_text("text_to_text.decode_fn = @beam_search\n"
                    "beam_search.rules = @T5Rules()\n"
                    "beam_search.no_repeat_ngram_size = 3\n"
                    "greedy_decode.no_repeat_ngram_size = 0\n"
                    "greedy_decode.min_length = 0\n")  # fmt: skip
    settings = configuration.read([str(path)], [])
    found = arguments_of(settings, "text_to_text.decode_fn")
    assert found["limits"].no_repeat_ngram_size == 3


def test_an_old_choice_that_is_no_longer_there_is_no_other_model(tmp_path):
    path = tmp_path / "operative_config.gin"
    path.write_text("RemixerBlock.renormalize = True\n")
    configuration.read([str(path)], [])
    path.write_text("RemixerBlock.renormalize = False\n")
    with pytest.raises(UserError, match="= False is no longer there: all models"):
        configuration.read([str(path)], [])


@pytest.mark.parametrize("old", sorted(NEW_NAMES))
def test_a_user_is_told_the_new_name(old, tmp_path):
    new = NEW_NAMES[old]
    what = "is no longer there. Leave it out"
    if new is not None:
        what = re.escape(f"is {new} now")
    with pytest.raises(UserError, match=f"^{old} {what}\\.$"):
        configuration.read([], [f"{old} = None"])
    path = tmp_path / "mine.gin"
    path.write_text(f"\n{old} = None\n")
    place = rf" \(in {path}, line 2\)\."
    with pytest.raises(UserError, match=f"^{old} {what}{place}$"):
        configuration.read([str(path)], [])


@pytest.mark.parametrize(
    "line", ["GatedMLP.toeplitz = True", "A.sublayers = {'a': @SparseGatedMLP}"]
)
def test_a_run_with_gates_that_were_no_layers_is_refused(line, tmp_path):
    path = tmp_path / "operative_config.gin"
    path.write_text(f"{line}\n")
    with pytest.raises(UserError, match="written before 2026-11-25.*is not read"):
        configuration.read([str(path)], [])


def test_new_names_are_there_and_old_ones_are_not():
    known = {name: value for _, name, value in configurables()}
    parameters = parts.parameters
    for old, new in NEW_NAMES.items():
        owner, parameter = old.split(".")
        if owner in known:
            assert parameter not in parameters(known[owner])
        if new is not None:
            owner, parameter = new.partition(" ")[0].split(".")
            assert parameter in parameters(known[owner])


BEFORE = """
LossEvaluation.run = @Run()
LossEvaluation.task = @get_task()
VOCAB_SIZE/get_task.name = %TASK
VOCAB_SIZE/vocabulary_size.task = @get_task()
get_task.cache_dir = {cache!r}
get_task.name = %TASK
get_task.vocabulary = %VOCABULARY
get_task.without = ['bb']
Run.task = %TASK
Run.vocabulary = %VOCABULARY
Run.feature_lengths = {{'inputs': 8, 'targets': 8}}
TASK = 'mini_cogs'
VOCABULARY = @byte_vocabulary()
train_dataset.feature_lengths = {{'inputs': 8, 'targets': 8}}
train_dataset.task = @get_task()
b/get_task.name = 'cogs'
evaluate.evaluations = [@LossEvaluation(), @b/LossEvaluation()]
"""


def test_what_read_data_before_it_had_the_run(tmp_path):
    path = tmp_path / "operative_config.gin"
    path.write_text(BEFORE.format(cache=str(tmp_path)))
    settings = configuration.read([str(path)], [], complete=False)
    run = settings.call(Run, model=None)
    assert (run.cache_dir, run.without) == (str(tmp_path), ["bb"])
    for owner in ("train_dataset", "LossEvaluation", "vocabulary_size"):
        assert value_of(settings, f"{owner}.task") is None
    text = settings.text()
    assert "get_task" not in text and "@Run()" not in text
    assert "b/LossEvaluation.task = 'cogs'" in text
    # The command line has the last word, as it had.
    for binding in ("TASK = 'cogs'", "Run.task = 'cogs'"):
        settings = configuration.read([str(path)], [binding], complete=False)
        assert settings.call(Run, model=None).task == "cogs"
        assert value_of(settings, "train_dataset.task") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "b/get_task.without = ['c']",
            "b/get_task.without is no longer there.*line 19",
        ),
        ("b/get_task.without = ['bb']", None),
        ("b/get_task.vocabulary = None", "b/get_task.vocabulary is no longer.*version"),
        ("b/LossEvaluation.task = 'mini_cogs'", None),
    ],
)
def test_what_was_set_in_a_scope_is_obeyed_or_refused(line, message, tmp_path):
    """A binding of the parameter prevails over one of what its default calls."""
    path = tmp_path / "operative_config.gin"
    path.write_text(f"{BEFORE.format(cache=None)}{line}\n")
    if message:
        with pytest.raises(UserError, match=message):
            configuration.read([str(path)], [], complete=False)
        return
    text = configuration.read([str(path)], [], complete=False).text()
    task = "'mini_cogs'" if "task =" in line else "'cogs'"
    assert f"b/LossEvaluation.task = {task}\n" in text


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("get_task.without = ['a']", "get_task.without is Run.without now"),
        ("get_task.cache_dir = 'a'", "get_task.cache_dir is Run.cache_dir now"),
        ("a/get_task.name = 'a'", "get_task.name is Run.task now"),
        ("LossEvaluation.task = @get_task()", "LossEvaluation.task = 'NAME'"),
    ],
)
def test_a_user_is_told_that_the_run_has_the_task(tmp_path, binding, words):
    with pytest.raises(UserError, match=re.escape(words)):
        configuration.read([], [binding], complete=False)
    (tmp_path / "own.gin").write_text(f"{binding}\n")
    with pytest.raises(UserError, match=f"{re.escape(words)}.*own.gin|own.gin.*"):
        configuration.read([str(tmp_path / "own.gin")], [], complete=False)


def test_a_parameter_that_get_task_never_had_is_one_line(tmp_path):
    """As in a run's file that was edited by hand."""
    path = tmp_path / "operative_config.gin"
    path.write_text("get_task.no_such = 1\n")
    with pytest.raises(UserError, match="Run has no parameter 'no_such'.*gin"):
        configuration.read([str(path)], [], complete=False)
