"""`remixer_tf.load`: a run answers from Python as it does from the shell."""

import copy
import functools
import pickle
import shutil
import warnings

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.loaded.fitting import check_continues, table_bindings
from remixer_tf.weights.run import began_with, write_run
from tests.tiny_run import TEXTS
from tests.weights import numpy_t5, published

pytestmark = pytest.mark.usefixtures("clear_gin")
QUESTIONS = ["", "A cat", "the teacher slept", "café", "Emma liked a cake " * 3]
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a stream is TensorFlow's"
)


@pytest.fixture
def run(tiny_run):
    return rt.load(tiny_run)


@pytest.fixture(scope="module")
def bytes_asked(bytes_run):
    """A run that tests ask and do not change, on bytes.

    A run on words is loaded for each test: each sets TensorFlow's seed, which frees the
    tokenizers of graphs that were traced before.
    """
    return rt.load(bytes_run)


def infer(tiny_run, tmp_path, *arguments):
    """The lines that the command writes."""
    (tmp_path / "questions.txt").write_text("\n".join(QUESTIONS) + "\n")
    files = [f"--input={tmp_path}/questions.txt", f"--output={tmp_path}/answers.txt"]
    run_command("infer", [f"--model_dir={tiny_run}", *files, *arguments])
    text = (tmp_path / "answers.txt").read_text(errors="replace")
    lines = text.split("\n")[:-1]
    return [line.replace(r"\n", "\n").replace(r"\r", "\r") for line in lines]


def answers(run, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some are trimmed.
        return run.generate(*args, **kwargs)


def test_answers_are_those_of_infer(run, tiny_run, tmp_path):
    assert answers(run, QUESTIONS) == infer(tiny_run, tmp_path)
    assert answers(run, QUESTIONS, batch_size=2) == answers(run, QUESTIONS)
    assert answers(run, "A cat") == answers(run, ["A cat"])[0]
    assert run.generate([]) == []


@pytest.mark.slower
def test_beams_are_those_of_infer(run, tiny_run, tmp_path):
    search = [
        "--gin.text_to_text.decode_fn=@beam_search",
        "--gin.beam_search.rules=@T5Rules()",
        "--gin.beam_search.beams=3",
        "--gin.beam_search.n_best=2",
    ]
    found = answers(run, QUESTIONS, beams=3, n_best=2, scores=True)
    lines = infer(tiny_run, tmp_path, "--scores", *search)
    shown = [f"{text}\t{score:.4f}" for row in found for text, score in row]
    assert shown == lines


@pytest.mark.slow
def test_samples_are_drawn_by_their_seed(run):
    kwargs = {"temperature": 2.0, "num_samples": 3}
    first, again, other = (
        answers(run, "A cat", seed=seed, **kwargs) for seed in (1, 1, 2)
    )
    assert len(first) == 3 and first == again != other


def traces(run, monkeypatch):
    """A list that grows by one whenever a graph of a search is traced."""
    start, traced = run.model.start_decoding, []

    def record(*args):
        traced.append(args)
        return start(*args)

    monkeypatch.setattr(run.model, "start_decoding", record)
    return traced


@pytest.mark.slow
def test_a_new_seed_traces_nothing_anew(bytes_run, tmp_path, monkeypatch):
    run = rt.load(bytes_run)
    traced = traces(run, monkeypatch)
    found, calls = {}, []
    for seed in (7, 2**40 + 7):
        found[seed] = answers(run, QUESTIONS, temperature=2.0, seed=seed)
        calls.append(len(traced))
    assert calls[0] and len({*calls}) == 1
    search = [
        "--gin.text_to_text.decode_fn=@sample",
        "--gin.sample.sampling=@Sampling()",
        "--gin.Sampling.temperature=2.0",
        f"--gin.sample.seed={seed}",
    ]
    assert found[seed] == infer(bytes_run, tmp_path, *search)


@pytest.mark.slower
def test_new_numbers_trace_few_graphs(bytes_run, monkeypatch):
    """Answers of fewer tokens are beginnings of longer ones."""
    run = rt.load(bytes_run)
    traced = traces(run, monkeypatch)
    cold = functools.partial(answers, run, "A cat", temperature=0)
    whole, cut = cold(max_length=48), [cold(max_length=n) for n in range(1, 41, 2)]
    assert all(whole.startswith(text) for text in cut) and len({*cut}) > 10
    assert [*map(len, cut)] == sorted(map(len, cut))
    assert len(traced) <= 4  # room for 16, 32 and 64 tokens
    traced.clear()
    drawn = {
        answers(
            run,
            "A cat",
            temperature=i / 10,
            top_k=i + 20,
            top_p=1 - i / 100,
            min_length=1 + i % 5,
            repetition_penalty=1 + i / 30,
            seed=3,
        )
        for i in range(1, 31)
    }
    assert len(drawn) > 15 and len(traced) <= 2
    traced.clear()
    for i in range(30):
        allowed = [chr(97 + i % 26), "b" * (i % 4), "c"]
        assert answers(run, "A cat", allowed=allowed) in allowed
    assert len(traced) == 1
    for beams in range(2, 14):
        run.answerer(beams=beams)
    assert len(run._kept) == 8


def test_xla_compiles_no_more_searches_than_are_kept(bytes_run, monkeypatch):
    """Their programs stay in memory until the process ends."""
    run, asked = rt.load(bytes_run), []
    engine, _ = run.run.weights()
    compile = engine.compile

    def listen(function, **options):
        asked.append(options["xla"])
        return compile(function, **options)

    monkeypatch.setattr(engine, "compile", listen)
    for size in range(2, 14):
        run.answerer(no_repeat_ngram_size=size)
    assert asked == ["answers"] * 8 + [False] * 4
    asked.clear()
    run = rt.load(bytes_run, bindings=["text_to_text.jit_compile = True"])
    monkeypatch.setattr(run.run.weights()[0], "compile", listen)
    for size in range(2, 12):
        run.answerer(no_repeat_ngram_size=size)
    assert asked == [True] * 10  # as the configuration says


def test_draws_without_a_seed_have_one_each(bytes_asked):
    found = set()
    for _ in range(2):
        _, inputs = bytes_asked.answerer(temperature=3.0)
        words = inputs["seeds"].tolist()
        assert words == [bytes_asked.drawn_seed % 2**32, bytes_asked.drawn_seed >> 32]
        found.add(tuple(words))
    assert len(found) == 2
    assert "seeds" not in bytes_asked.answerer(beams=2)[1]


@pytest.mark.slower
def test_draws_without_a_seed_differ(bytes_run):
    run, texts = rt.load(bytes_run), ["A cat"] * 8
    assert run.drawn_seed is None
    one, other = (answers(run, texts, temperature=3.0) for _ in range(2))
    assert one != other
    assert answers(run, texts, temperature=3.0, seed=run.drawn_seed) == other
    bound = ["text_to_text.decode_fn = @sample", "sample.seed = 0"]
    run = rt.load(bytes_run, bindings=bound)
    one, other = (answers(run, texts) for _ in range(2))
    assert one == other and run.drawn_seed is None


@pytest.mark.slower
@on_tensorflow
def test_a_stream_draws_by_its_seed(bytes_asked):
    run = bytes_asked
    for seed in (1, 2):
        search = {"temperature": 2.0, "seed": seed, "max_length": 10 + seed}
        assert "".join(run.stream("A cat", **search)) == answers(run, "A cat", **search)


@on_tensorflow
def test_a_stream_is_the_answer_in_pieces(run):
    for question in QUESTIONS[:4]:
        pieces = [*run.stream(question)]
        assert "".join(pieces) == answers(run, question)
    assert len(pieces) > 1
    with pytest.raises(UserError, match="writes one answer"):
        [*run.stream("A cat", beams=2)]


@pytest.mark.slow
@on_tensorflow
def test_a_language_model_streams_without_its_prompt(lm_run):
    lm = rt.load(lm_run)
    for prompt in ("to be or not", "the question"):
        assert "".join(lm.stream(prompt)) == answers(lm, prompt)


@pytest.mark.slow
@on_tensorflow
def test_a_stream_reads_its_prompt_in_a_compiled_call(lm_run, monkeypatch):
    lm, eager = rt.load(lm_run), []
    prefill = lm.model.prefill

    def record(*args):
        eager.append(tf.executing_eagerly())
        return prefill(*args)

    monkeypatch.setattr(lm.model, "prefill", record)
    streamed = "".join(lm.stream("the question"))
    assert eager and not any(eager)
    assert streamed == answers(lm, "the question")


@pytest.mark.slow
@on_tensorflow
def test_a_stream_may_be_left(bytes_asked):
    stream = bytes_asked.stream("A cat")
    first = next(stream)
    stream.close()
    assert answers(bytes_asked, "A cat").startswith(first)


@pytest.mark.slow
def test_scores_are_those_of_score(run, tiny_run, tmp_path):
    pairs = [("A cat", "the dog"), ("", "Emma slept"), ("the teacher", "A")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    files = [f"--input={tmp_path}/pairs.tsv", f"--output={tmp_path}/scores.txt"]
    run_command("score", [f"--model_dir={tiny_run}", *files])
    lines = (tmp_path / "scores.txt").read_text().splitlines()
    scores = run.score(*zip(*pairs, strict=True))
    assert [f"{x:.4f}" for x in scores] == [line.split("\t")[0] for line in lines]
    assert run.score(*pairs[0]) == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.slow
def test_a_changed_model_answers_anew(bytes_run):
    """Graphs that were traced before would leave the new weights out."""
    run = rt.load(bytes_run)
    pair = "A cat", "the dog"
    before, again = run.score(*pair), run.score(*pair)
    written = [*answers(run, QUESTIONS)]
    assert before == again
    query = run.model.encoder.blocks[0].sublayer.query
    query.enable_lora(2, b_initializer="ones")
    assert run.score(*pair) != before
    run.model.decoder.blocks[0].sublayer.value.enable_lora(2, b_initializer="ones")
    assert answers(run, QUESTIONS) != written


@pytest.mark.slower
def test_two_runs_keep_their_settings(bytes_run):
    short = rt.load(bytes_run, bindings=["text_to_text.max_length = 2"])
    whole = rt.load(bytes_run)
    for _ in range(2):
        assert len(answers(short, "A cat")) < len(answers(whole, "A cat"))
    assert "step  1" in repr(whole) and "inputs" in repr(whole)
    shown = whole._repr_html_()
    assert "<th>step</th><td>1</td>" in shown and "<th>lengths</th>" in shown


def test_long_texts_are_counted_or_refused(bytes_asked):
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than"):
        bytes_asked.generate(["A", "the cat " * 9])
    with pytest.raises(UserError, match="longer than .* 'the cat "):
        bytes_asked.generate("the cat " * 9, on_long="raise")
    with pytest.raises(UserError, match="on_long must be one of"):
        bytes_asked.generate("A", on_long="cut")


def test_mistakes_are_one_sentence(bytes_asked):
    for wrong in (3, None, b"A", ["A", 3]):
        with pytest.raises(TypeError, match="Expected: a.* str"):
            bytes_asked.generate(wrong)
    with pytest.raises(TypeError, match="no argument 'beam'. Nearest: beams"):
        bytes_asked.generate("A", beam=2)
    with pytest.raises(UserError, match="beams is of beam search and top_k"):
        bytes_asked.generate("A", beams=2, top_k=3)
    with pytest.raises(UserError, match="lists of as many str.* of 2 and a list of 1"):
        bytes_asked.score(["A", "B"], ["C"])
    with pytest.raises(UserError, match="is for language models, which read one"):
        bytes_asked.perplexity("A cat")
    with pytest.raises(UserError, match="EncoderOnly"):
        bytes_asked.classify("A cat")


def test_what_cannot_be_loaded(tmp_path, bytes_run):
    with pytest.raises(MissingFileError, match="It is a preset: create"):
        rt.load("remixer_small")
    with pytest.raises(MissingFileError, match="Expected: the folder of a run"):
        rt.load(tmp_path / "nothing")
    found = "no weights of a known format.* of a run has operative_config.gin"
    with pytest.raises(FileNotFoundError, match=found):
        rt.load(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("A cat")
    with pytest.raises(UserError, match="text.txt is not a .* Load a folder"):
        rt.load(text)
    with pytest.raises(UserError, match=f"Call load..{bytes_run}., step=STEP"):
        rt.load(f"{bytes_run}/checkpoints")
    with pytest.raises(FileNotFoundError, match="step 7"):
        rt.load(bytes_run, step=7).generate("A")


@pytest.mark.slow
def test_published_weights_are_imported_on_the_way(tmp_path):
    folder = tmp_path / "t5"
    weights = numpy_t5.made_up_weights()
    published.write_hugging_face(folder, weights, **published.NEW)
    with pytest.raises(UserError, match="no vocabulary came with these weights"):
        rt.load(folder)
    train_vocabulary(TEXTS, str(folder / "spiece.model"), model_type="word")
    lengths = ["FEATURE_LENGTHS = {'inputs': 12, 'targets': 8}"]
    run = rt.load(folder, bindings=lengths, modules=["json"])
    assert run.modules == ["json"]  # `fit` loads its run with them.
    imported = tmp_path / "run"
    run_command(
        "import_weights",
        [f"--from={folder}", f"--model_dir={imported}", f"--gin.{lengths[0]}"],
    )
    assert answers(run, QUESTIONS) == answers(rt.load(imported), QUESTIONS)
    assert "Hugging Face" in repr(run)


@pytest.mark.slower
def test_trains_on_and_evaluates_a_table(bytes_run, tmp_path):
    run = rt.load(bytes_run)  # Nothing is asked: its settings are not in force yet.
    rows = [f"the cat {word}\t{word}" for word in "slept ate ran saw liked".split()]
    table, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    table.write_text("\n".join(["question\tanswer", *rows]) + "\n")
    dev.write_text("question\tanswer\nthe dog slept\tslept\n")
    columns = {"inputs": "{question}", "targets": "{answer}"}
    options = {"table": columns, "batch_size": 4, "bindings": SHORT}
    folder = str(tmp_path / "new")
    new = run.fit(table, folder, validation=dev, steps=2, **options)
    assert "step  2" in repr(new) and "table" in repr(new)
    assert len(answers(new, QUESTIONS)) == len(QUESTIONS)
    before = rt.load(bytes_run).model.weights
    for old, kept in zip(before, run.model.weights, strict=True):
        np.testing.assert_array_equal(old, kept)  # The run itself stays.
    assert "step  4" in repr(run.fit(table, folder, steps=4, **options))
    found = new.evaluate(dev, table=columns)
    assert {*found} == {"table/validation/accuracy"}
    answer = new.generate("the dog slept")
    for target, score in ((f"not {answer}", 0.0), (answer, 100.0)):
        dev.write_text(f"question\tanswer\nthe dog slept\t{target}\n")  # corrected
        assert [*new.evaluate(dev, table=columns).values()] == [score], target
    assert "metrics  table/validation/accuracy" in repr(new)
    with pytest.raises(MissingFileError, match="nothing.tsv"):
        run.fit(tmp_path / "nothing.tsv", str(tmp_path / "other"))
    moved = shutil.copytree(folder, tmp_path / "moved")  # It began with bytes_run.
    with pytest.raises(UserError, match="began with other weights than those of"):
        rt.load(folder).fit(table, moved, steps=6, **options)
    assert rt.load(folder).fit(table, folder, steps=5, **options).step == 5
    for mine in (folder, run.model_dir):
        with pytest.raises(UserError, match="has another run already, of .*new folder"):
            run.fit(dev, mine, steps=6)
    with pytest.raises(UserError, match="table with inputs='{question}'. Received"):
        other = {**options, "table": {**columns, "inputs": "{answer}"}}
        run.fit(table, folder, steps=4, **other)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ValueError, match="table must be the path of a file"):
        run.evaluate(3)


def test_a_fit_resumes_on_its_own_table(tmp_path):
    def fitted(*bindings, files="{'train': 'a.tsv'}", more=()):
        own = ["inputs = '{a}'", "targets = '{b}'", f"files = {files}", *bindings]
        own = [f"fit/table_task.{binding}" for binding in own]
        return configuration.read([], [*own, *more], complete=False)

    def rows(*bindings):
        own = [f"fit/TableRows.{binding}" for binding in bindings]
        return fitted("rows = @fit/TableRows()", more=own)

    def begin(run):
        (tmp_path / "operative_config.gin").write_text(run.text())

    begin(fitted())
    both = "{'train': 'a.tsv', 'validation': 'b.tsv'}"
    macro = fitted("inputs = %T", more=["T = '{a}'"])
    for same in (
        fitted(),
        fitted("metrics = ['bleu']"),
        fitted(files=both),
        macro,
        rows("header = True"),
    ):
        check_continues(tmp_path, same)
    for other, message in (
        (fitted("inputs = '{c}'"), "inputs='{a}'. Received: inputs='{c}'. Name a new"),
        (fitted(files="{'train': 'b.tsv'}"), "another run already, of a.tsv. Name"),
        (rows("header = False"), "table with header=True. Received: header=False"),
        (rows("columns = ['b', 'a']"), "columns=None. Received: columns=.'b', 'a'"),
    ):
        with pytest.raises(UserError, match=message):
            check_continues(tmp_path, other)
    begin(macro)
    check_continues(tmp_path, macro)
    with pytest.raises(UserError, match="inputs='{a}'. Received: inputs='{c}'"):
        check_continues(tmp_path, fitted("inputs = %T", more=["T = '{c}'"]))
    begin(rows("columns = ['a', 'b']"))
    check_continues(tmp_path, rows("columns = ['a', 'b']"))
    with pytest.raises(UserError, match="columns=.'a', 'b'.. Received: columns=.'b'"):
        check_continues(tmp_path, rows("columns = ['b', 'a']"))


def test_numpys_values_are_taken_as_pythons(bytes_run):
    run = rt.load(bytes_run, step=np.int64(1))
    assert type(run.step) is int
    draws = {"num_samples": 2, "top_k": 2, "temperature": 0.5, "top_p": 0.5, "seed": 1}
    limits = {"min_length": 1, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5}
    given = {"max_length": 4, "skip_special_tokens": False}
    beams = {"beams": 2, "n_best": 2, "allowed": [[5, 6], [7, 8]]}
    for options in (draws | limits | given, beams | given):
        ours = {name: np.asarray(value)[()] for name, value in options.items()}
        answerer, inputs = run.answerer(**options)
        again, same = run.answerer(**ours)
        assert again is answerer  # Its graph serves both.
        np.testing.assert_equal(same, inputs)
    table = {"inputs": "{a}", "shuffle_buffer_size": 50, "eos_after_trim": False}
    ours = {name: np.asarray(value)[()] for name, value in table.items()}
    expected = table_bindings(run, {"train": "a.tsv"}, table)
    assert table_bindings(run, {"train": "a.tsv"}, ours) == expected


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_is_loaded_in_each_process(bytes_run, way):
    with pytest.raises(UserError, match="neither pickled nor copied. Call remixer_tf."):
        way(rt.load(bytes_run))


SHORT = ["Schedule.steps_per_call = 1", "Schedule.log_period = 1"]


ONLY_FIVE = [
    "text_to_text.decode_fn = @greedy_decode",
    "greedy_decode.limits = @AnswerLimits()",
    "AnswerLimits.allowed = [[5]]",
]


@pytest.mark.slower
def test_runs_keep_their_limits_when_traced_again(bytes_run):
    bound, free = rt.load(bytes_run, bindings=ONLY_FIVE), rt.load(bytes_run)
    (one,) = {*answers(bound, ["A cat"])}
    answers(free, "A cat")
    # More rows at a time are traced anew on JAX.
    assert answers(bound, ["A cat"] * 3) == [one] * 3
    assert answers(free, "A cat") != one
    assert answers(bound, "A cat", beams=2) == one


@pytest.mark.slower
def test_other_limits_are_added_to_those_of_the_run(bytes_run):
    bound = rt.load(bytes_run, bindings=ONLY_FIVE)
    one = answers(bound, "A cat")
    assert answers(bound, "A cat", repetition_penalty=1.2) == one
    assert answers(bound, "A cat", no_repeat_ngram_size=2) == one


@pytest.mark.slow
def test_gin_of_ones_own_stays(bytes_run):
    run = rt.load(bytes_run)
    gin.parse_config("mine/Dropout.rate = 0.25")
    answers(run, "A cat")
    rt.create("t5_1_1_tiny", vocab_size=16)
    assert gin.query_parameter("mine/Dropout.rate") == 0.25
    gin.parse_config("mine/Dropout.rate = 0.5")  # And is not locked.


@pytest.mark.slow
def test_allowed_answers_are_texts(run):
    found = answers(run, ["A cat", "the"], allowed=["the dog", "A cat"])
    assert {*found} <= {"the dog", "A cat"}
    with pytest.raises(ValueError, match="batch_size"):
        run.generate("A", batch_size=0)


def test_rows_have_no_large_tables_of_allowed_answers(run):
    """Each row would have its own: 64 rows of 50,000 answers took 1 GB more."""
    numbers = [[3 + int(digit) for digit in f"{i:05}"] for i in range(30_000)]
    _, inputs = run.answerer(allowed=numbers[:100])
    assert inputs["allowed"].nbytes < 2**16
    assert run.answerer(allowed=numbers)[1] == {}


def test_a_saved_keras_model_is_no_run(tmp_path):
    (tmp_path / "m.keras").write_bytes(b"PK")
    with pytest.raises(UserError, match="keras.saving.load_model"):
        rt.load(str(tmp_path / "m.keras"))


@pytest.mark.slower
def test_tables_of_a_run_that_divides_its_own(bytes_run, tmp_path):
    rows = "inputs\ttargets\n" + "".join(f"a {x}\t{x}\n" for x in "bcdefghijk")
    (tmp_path / "new.tsv").write_text(rows)
    fractions = "TableRows.fractions = {'train': 0.5, 'validation': 0.5}"
    run = rt.load(bytes_run, bindings=[fractions, "Schedule.steps_per_call = 10"])
    found = run.evaluate(str(tmp_path / "new.tsv"))
    assert found
    new = run.fit(
        str(tmp_path / "new.tsv"), str(tmp_path / "new"), steps=3, batch_size=2
    )
    assert new.step == 3


def test_a_run_knows_which_weights_it_began_with(tmp_path):
    model = rt.create("t5_1_1_tiny", vocab_size=32)
    folder = str(tmp_path / "run")
    write_run(folder, model, configuration.read([], []), {}, fits=True)
    assert began_with(folder, model) is True
    assert began_with(str(tmp_path), model) is None  # An earlier version wrote it.
    weight = model.trainable_variables[-1]
    weight.assign(weight + 1e-3)
    assert began_with(folder, model) is False
