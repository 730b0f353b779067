"""The bindings by which results of evaluations differ."""

import pytest

from remixer_tf import configuration
from remixer_tf.configuration.result_bindings import evaluation_bindings
from tests.evaluation.test_evaluate import SMALL
from tests.settings import value_of

FILES = ["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin"]
RULES = "beam_search.rules = @T5Rules()"
BEAMS = ["DecodedEvaluation.decode_fn = @beam_search", RULES]
SCOPED = ["DecodedEvaluation.decode_fn = @a/beam_search", RULES]

pytestmark = pytest.mark.usefixtures("clear_gin")


def bindings(*more, files=FILES):
    return evaluation_bindings(configuration.read(files, [*SMALL, *more]))


def test_training_alone_does_not_count():
    one = bindings()
    for more in (
        ["TRAIN_STEPS = 7"],
        ["LEARNING_RATE = 3.0", "SEED = 9"],
        ["Run.engine = @a/backend_engine"],
        [
            "train.evaluations = [@LossEvaluation()]",
            "LossEvaluation.period = 3",
            "Checkpointing.best = @Best()",
            "Best.metric = 'a'",
            "BATCH_SIZE = 5",
        ],
        ["DecodedEvaluation.splits = ['test']", "DecodedEvaluation.batch_size = 3"],
        ["EncoderDecoder.tied_logits = False"],  # as it is by default
        ["VOCABULARY_FILE = 'a copy'"],
        ["CACHE_DIR = 'moved'"],
    ):
        assert bindings(*more) == one, more


def test_what_can_change_a_result_counts():
    found = [
        bindings(*more)
        for more in (
            [],
            ["D_FF = 9"],
            ["DecodedEvaluation.max_length = 3"],
            ["LossEvaluation.max_examples = 3"],
            BEAMS,
            [*BEAMS, "beam_search.beams = 3"],
            [*BEAMS, "beam_search.beams = %BEAMS", "BEAMS = 2"],
            SCOPED,
            [*SCOPED, "a/beam_search.beams = 3"],
            ["Run.model = @a/EncoderDecoder"],
            ["Run.task = 'cogs'"],
            ["a/LossEvaluation.task = 'cogs'"],
        )
    ]
    assert len(set(map(str, found))) == len(found)
    one, other = (
        bindings(*BEAMS, "beam_search.beams = %BEAMS", f"BEAMS = {n}") for n in (3, 4)
    )
    assert one != other and one == found[5]


def test_what_training_wrote_says_the_same(tmp_path):
    more = "train.evaluations = [@a/LossEvaluation()]"
    settings, one = configuration.read(FILES, [*SMALL, more]), bindings(more)
    value_of(settings, "train.evaluations")
    value_of(settings, "Run.model")().build()
    path = tmp_path / "operative_config.gin"
    text = settings.text()
    assert "EncoderDecoder.tied_logits = False" in text  # Defaults are spelled.
    path.write_text(text)
    assert evaluation_bindings(configuration.read([str(path)], [])) == one


def test_results_of_earlier_versions_keep_their_keys():
    """What runs of 2026-11-26 bound besides."""
    found = bindings("Run.without = ['a']")
    data, of = "/remixer_tf.data.pipeline", "/remixer_tf.evaluation"
    expected = {
        f"{data}.allowed_answers.task": "'mini_cogs'",
        f"{data}.get_task.name": "'mini_cogs'",
        f"{data}.get_task.without": "['a']",
    }
    for part in ("decoded.Decoded", "loss.Loss", "scored.Scored"):
        expected[f"{of}.{part}Evaluation.run"] = "@Run()"
        expected[f"{of}.{part}Evaluation.task"] = "@get_task()"
    assert expected.items() <= found.items()
    names = {name for name in found if name.startswith((data, of))} - expected.keys()
    assert not {name for name in names if name.endswith((".task", ".run", ".name"))}
    assert "/remixer_tf.run.Run.without" not in found
