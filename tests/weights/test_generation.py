"""generation_config.json into gin and back, by the rules of transformers 5."""

import json

import gin
import pytest

from remixer_tf import configuration, loading
from remixer_tf.commands import run_command
from remixer_tf.decoding import AnswerLimits, T5Rules
from remixer_tf.weights import formats
from remixer_tf.weights.generation import (
    Generation,
    describe_left_out,
    read_generation,
    write_generation,
)
from remixer_tf.weights.safetensors_files import SafetensorsFolder
from tests.settings import arguments_of
from tests.weights import numpy_t5, published

pytestmark = pytest.mark.usefixtures("clear_gin")
BYTES = [
    "--gin.VOCABULARY=@byte_vocabulary()",
    "--gin.VOCABULARY_FILE=None",
    "--gin.FEATURE_LENGTHS={'inputs': 12, 'targets': 8}",
]
# A summarizer's, as such models are published.
SUMMARIES = {
    "_from_model_config": True,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "num_beams": 3,
    "length_penalty": 2.0,
    "early_stopping": True,
    "no_repeat_ngram_size": 3,
    "repetition_penalty": 1.5,
    "max_length": 20,
    "min_length": 5,
    "num_beam_groups": 2,
    "transformers_version": "4.27.0.dev0",
}


@pytest.mark.parametrize(
    "settings, file, expected, left",
    [
        ({"eos_token_id": 1, "num_beams": 1, "top_k": 50}, None, {}, {}),
        (
            {"min_new_tokens": 3},
            "decoding/greedy.gin",
            {"AnswerLimits.min_length": 3},
            {},
        ),
        (
            SUMMARIES,
            "decoding/huggingface.gin",
            {
                "beam_search.beams": 3,
                "beam_search.n_best": 1,
                "HuggingFaceRules.length_penalty": 2.0,
                "HuggingFaceRules.early_stopping": True,
                # Its lengths count the start id.
                "AnswerLimits.min_length": 4,
                "AnswerLimits.no_repeat_ngram_size": 3,
                "AnswerLimits.repetition_penalty": 1.5,
                "text_to_text.max_length": 19,
                "DecodedEvaluation.max_length": 19,
            },
            {"num_beam_groups": 2},
        ),
        (  # what counts new tokens prevails; top_k is 50 where it is not set
            {
                "do_sample": True,
                "temperature": 0.5,
                "max_length": 9,
                "max_new_tokens": 4,
                "min_length": 9,
                "min_new_tokens": 2,
                "penalty_alpha": 0.6,
            },
            "decoding/sampling.gin",
            {
                "Sampling.temperature": 0.5,
                "Sampling.top_p": 1.0,
                "Sampling.top_k": 50,
                "sample.num_samples": 1,
                "AnswerLimits.min_length": 2,
                "text_to_text.max_length": 4,
                "DecodedEvaluation.max_length": 4,
            },
            {"penalty_alpha": 0.6},
        ),
        ({"min_length": 9, "min_new_tokens": 0}, None, {}, {}),
        (
            {"do_sample": True, "num_beams": 2, "early_stopping": "never"},
            "decoding/huggingface.gin",
            {
                "beam_search.beams": 2,
                "beam_search.n_best": 1,
                "HuggingFaceRules.length_penalty": 1.0,
                "HuggingFaceRules.early_stopping": "never",
            },
            {"do_sample": True},
        ),
    ],
)
def test_reading(settings, file, expected, left):
    generation = read_generation(settings)
    assert (generation.file, generation.bindings) == (file, expected)
    assert generation.left_out == left


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_beams": "4\nimport os"}, r"num_beams must be an integer from 1 to 1024"),
        ({"num_beams": 2, "early_stopping": 1}, "early_stopping must be true or false"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number from 0.001"),
    ],
)
def test_other_values_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        read_generation(settings)


@pytest.mark.parametrize(
    "ids",
    [{"eos_token_id": [1, 7]}, {"decoder_start_token_id": 5}, {"pad_token_id": 3}],
)
def test_ids_with_which_transformers_would_answer_otherwise(ids):
    with pytest.raises(
        ValueError, match=f"{[*ids][0]} in generation_config.json must be"
    ):
        read_generation(ids)
    assert read_generation({"eos_token_id": [1]}) == Generation()


def test_settings_of_config_json(tmp_path):
    """transformers reads them there where generation_config.json is missing."""
    old = {"num_beams": 3, "max_length": 9, "length_penalty": 2.0, "num_beam_groups": 3}
    weights = numpy_t5.made_up_weights()
    published.write_hugging_face(tmp_path, weights, **published.NEW, **old)
    found = formats.read_source(str(tmp_path)).generation
    assert found == read_generation(old)
    assert found.bindings["beam_search.beams"] == 3
    assert found.bindings["text_to_text.max_length"] == 8
    assert found.left_out == {"num_beam_groups": 3}
    (tmp_path / "generation_config.json").write_text('{"num_beams": 2}')
    assert formats.read_source(str(tmp_path)).generation == read_generation(
        {"num_beams": 2}
    )


def test_load_warns_once_of_what_it_cannot_follow(tmp_path):
    weights = numpy_t5.made_up_weights()
    config = {**published.NEW, "tokenizer_class": "ByT5Tokenizer"}
    published.write_hugging_face(tmp_path, weights, **config)
    settings = {"num_beam_groups": 2, "suppress_tokens": [5]}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="not carried over") as found:
        loading.load(tmp_path)
    (text,) = [str(w.message) for w in found if "not carried" in str(w.message)]
    assert "num_beam_groups = 2" in text and "suppress_tokens = [5]" in text
    assert "\n" not in text


def test_a_model_is_asked_as_it_was_published(tmp_path, capsys):
    folder, run = tmp_path / "t5", tmp_path / "run"
    weights = numpy_t5.made_up_weights()
    published.write_hugging_face(folder, weights, **published.NEW)
    (folder / "generation_config.json").write_text(json.dumps(SUMMARIES))
    run_command("import_weights", [f"--from={folder}", f"--model_dir={run}", *BYTES])
    assert "not carried over: num_beam_groups = 2" in capsys.readouterr().out
    gin.clear_config()
    run_command("export", [f"--model_dir={run}", "--format=huggingface"])
    written = json.loads((run / "huggingface/0/generation_config.json").read_text())
    assert read_generation(written) == read_generation(SUMMARIES)._replace(left_out={})


def test_what_transformers_lacks_is_named():

    settings, left = write_generation("beam_search", {"rules": T5Rules()}, 5)
    assert settings["num_beams"] == 4 and "T5Rules" in left[0]
    limits = AnswerLimits(allowed=[[3]], min_length=1)
    settings, left = write_generation("greedy_decode", {"limits": limits}, 5)
    assert settings["min_new_tokens"] == 1
    assert settings["num_beams"] == 1 and "allowed" in left[0]


def test_arguments_of_a_scoped_search():
    lines = ["text_to_text.decode_fn = %SEARCH", "SEARCH = @a/beam_search"]
    lines.append("VOCABULARY_FILE = 'a'")
    files = ["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin", "decoding/t5.gin"]
    settings = configuration.read(files, [*lines, "a/beam_search.beams = 7"])
    found = arguments_of(settings, "text_to_text.decode_fn")
    assert found["beams"] == 7 and found["rules"].alpha == 0.6
    assert arguments_of(settings, "text_encoder.decode_fn") == {}


def test_a_strangers_name_does_not_write_to_the_terminal():
    (line,) = describe_left_out({"a\n\x1b[31m": 1})
    assert line.isprintable()


@pytest.mark.parametrize("names", [None, [], {"a": 1}, {"a": {}}])
def test_an_index_that_names_no_files(tmp_path, names):
    index = json.dumps({"weight_map": names})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match="has no weight_map from arrays to files"):
        SafetensorsFolder(str(tmp_path), "")


@pytest.mark.parametrize("decoder", [True, False])
def test_a_tokenizers_spaces(tmp_path, decoder):
    """transformers 5.24 decodes "yes ." as "yes." with this setting."""
    weights = numpy_t5.made_up_weights(layers=(2, 1) if decoder else (2, 0))
    config = {"tokenizer_class": "ByT5Tokenizer"}
    published.write_hugging_face(tmp_path, weights, **config)
    setting = {**config, "clean_up_tokenization_spaces": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(setting))
    source = formats.read_source(str(tmp_path))
    name = "text_to_text.clean_up_tokenization_spaces"
    assert source.generation.bindings == ({name: True} if decoder else {})
    assert not source.remarks()
