"""Runs over HTTP: each call answers as the run does, whatever comes with it."""

import asyncio
import base64
import concurrent.futures
import functools
import json
import logging
import threading
import time
import warnings

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import remixer_tf as rt
from remixer_tf.loaded import searches
from remixer_tf.server.batching import Thread
from remixer_tf.server.limits import Limits, Refusal
from remixer_tf.server.models import Source
from remixer_tf.server.observed import MOST_TOKENS
from remixer_tf.server.of_run import ServedRun
from tests.server.conftest import LIMITS, of_run, serving
from tests.server.test_watch import wait_for

pytestmark = pytest.mark.slow
AXES = ("rows", "columns")
QUESTIONS = ["", "A cat", "the teacher slept", "café", "Emma liked a cake " * 3]


@pytest.fixture(scope="module")
def run(bytes_run):
    return rt.load(bytes_run)


def ask(run, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some are trimmed.
        return run.generate(*args, **kwargs)


def post(client, call, **fields):
    response = client.post(f"/{call}", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_answers_are_those_of_the_run(tiny, run):
    found = post(tiny, "generate", inputs=QUESTIONS)
    expected = ask(run, QUESTIONS, scores=True)
    assert [*zip(found["outputs"], found["scores"], strict=True)] == [
        (text, pytest.approx(score, rel=1e-5)) for text, score in expected
    ]
    assert found["trimmed"] == [False, False, False, False, True]
    assert found["model"] == "tiny" and found["version"] == "1"
    assert post(tiny, "generate", inputs="A cat")["outputs"] == found["outputs"][1]


def test_each_text_has_the_options_of_its_request(tiny, run):
    """Requests that come together, of several searches."""
    options = [
        {},
        {"max_length": 3},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 2.0, "top_p": 0.5, "seed": 2},
        {"temperature": 1.0, "seed": 3, "max_length": 5},
        {"temperature": 0, "seed": 4},
    ] * 4
    texts = [QUESTIONS[i % 5] + "x" * i for i in range(len(options))]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        found = [
            *pool.map(
                lambda pair: post(tiny, "generate", inputs=pair[0], **pair[1]),
                zip(texts, options, strict=True),
            )
        ]
    expected = [ask(run, t, **o) for t, o in zip(texts, options, strict=True)]
    assert [x["outputs"] for x in found] == expected
    sizes = tiny.get("/metrics").text
    assert 'remixer_tf_batch_rows_bucket{le="1.0",model="tiny"}' in sizes


def test_traffic_compiles_nothing(tiny, monkeypatch):
    served = tiny.app.models.get("tiny")
    end = time.monotonic() + 240
    while served.is_compiling:  # Its thread traces, and no traffic.
        assert time.monotonic() < end
        time.sleep(0.05)
    before = len(served._compiled)

    def traced(*args):
        raise AssertionError("A search was traced.")

    monkeypatch.setattr(served.run.model, "start_decoding", traced)
    for text in ("", "a" * 20, "b" * 400):
        post(tiny, "generate", inputs=[text, text + "c"], seed=3, temperature=0.5)
        post(tiny, "generate", inputs=text)
        post(tiny, "score", inputs=[text] * 3, targets=["a", "b", text])
    assert served.compilations == 0 and len(served._compiled) == before
    line = 'remixer_tf_compilations_after_warm_up_total{model="tiny"} 0.0'
    assert line in tiny.get("/metrics").text


def test_scores_are_those_of_the_run(tiny, run):
    targets = ["sleep", "", "a b c", "né", "long " * 9]
    found = post(tiny, "score", inputs=QUESTIONS, targets=targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run.score(QUESTIONS, targets)
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-5)
    for score, tokens, text in zip(
        found["scores"], found["tokens"], targets, strict=True
    ):
        total = sum(token["log_probability"] for token in tokens)
        assert total == pytest.approx(score, rel=1e-4)
        assert text.startswith("".join(token["text"] for token in tokens))


def test_tensors_are_answered_as_texts(tiny, run):
    """TensorFlow Serving's protocol, by the signatures that an export has."""
    url = "/v1/models/tiny:predict"
    found = tiny.post(url, json={"inputs": QUESTIONS[:3]}).json()["outputs"]
    assert found["outputs"] == ask(run, QUESTIONS[:3])
    drawn = {"inputs": ["A cat"] * 2, "temperature": 1.0, "seed": [3, 2**40]}
    body = {"signature_name": "generate", "inputs": drawn | {"max_length": 5}}
    found = tiny.post(url, json=body).json()["outputs"]["outputs"]
    assert found == [
        ask(run, "A cat", temperature=1.0, seed=seed, max_length=5)
        for seed in drawn["seed"]
    ]
    about = tiny.get("/v1/models/tiny/metadata").json()["metadata"]["signature_def"]
    assert set(about["signature_def"]) == {"serving_default", "generate", "score"}


def test_what_a_model_cannot_do_is_one_line(tiny):
    for call, what in (("classify", "has no classes"), ("embed", "gives no vectors")):
        response = tiny.post(f"/{call}", json={"inputs": "A cat"})
        assert response.status_code == 422
        assert what in response.json()["error"]


@pytest.mark.slower
def test_other_searches_are_compiled_and_counted(bytes_run, run):
    limits = LIMITS.__class__(max_searches=1, max_answers=4)
    with serving([of_run("tiny", bytes_run, limits, (1,))], limits) as client:
        served = client.app.models.get("tiny")
        found = post(client, "generate", inputs="A cat", beams=2, n_best=2)
        assert found["outputs"] == ask(run, "A cat", beams=2, n_best=2)
        assert served.compilations == 1
        post(client, "generate", inputs="A cat", beams=2, n_best=2, alpha=0.3)
        post(client, "generate", inputs="A cat", min_length=3)
        assert len(served._others) == 1
        refused = client.post("/generate", json={"inputs": "a", "beams": 5})
        assert "beams must be an integer from 1 to 4" in refused.json()["error"]


def test_the_table_of_allowed_answers_is_made_once(tiny, run, monkeypatch):
    made, table = [], searches.allowed_table
    monkeypatch.setattr(searches, "allowed_table", lambda x: made.append(x) or table(x))
    allowed = ["cat", "a dog"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = post(tiny, "generate", inputs="A cat", allowed=allowed)
    assert len(made) == 1
    assert found["outputs"] == ask(run, "A cat", allowed=allowed)


def test_searches_are_made_without_warnings(run, monkeypatch):
    """TensorFlow has one for a function that many instances trace."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(tf.get_logger(), "handlers", [handler])
    for number in range(8):
        answerer, _ = run.answerer(beams=number + 1)
        ids, _ = answerer.tokens_of(["A cat"])
        assert np.count_nonzero(ids) == 6
    assert not lines


def test_other_precisions_speak_of_no_xla(bytes_run):
    """It would change the likeliest token of a model in bfloat16."""

    def load(thread):
        policy = "Run.dtype_policy = 'mixed_bfloat16'"
        run = rt.load(bytes_run, bindings=[policy])
        return ServedRun(run, "tiny", LIMITS, thread, (1, 2))

    with serving([Source("tiny", load)]) as client:
        served = client.app.models.get()
        wait_for(lambda: not served.is_compiling, 120)
        assert "made all graphs" in client.said[-1]
        assert not any("XLA" in line for line in client.said)


def test_encoders_are_asked(classifier_run, span_run):
    encoder, spans = rt.load(classifier_run), rt.load(span_run)
    texts = ["a charming journey", "bleak", "x" * 60]
    sources = [of_run("encoder", classifier_run), of_run("spans", span_run)]
    with serving(sources) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = post(client, "classify", inputs=texts, model="encoder")
        expected = encoder.classify(texts)
        assert found["labels"] == [x.label for x in expected]
        np.testing.assert_allclose(
            found["probabilities"], [x.probabilities for x in expected], rtol=1e-5
        )
        found = post(client, "embed", inputs=texts, model="encoder")
        np.testing.assert_allclose(
            found["embeddings"], encoder.embed(texts), rtol=1e-4, atol=1e-6
        )
        seen = post(client, "observe", inputs="bleak", model="encoder")
        assert seen["tokens"]["encoder"]["reads"][:2] == ["[CLS]", "b"]
        pair = {"inputs": "who?", "targets": "it", "model": "spans"}
        names = post(client, "observe", **pair)["tokens"]["encoder"]["writes"]
        assert names == ["[CLS]", *"who?", "[SEP]", *"it", "[SEP]"]
        asked = {"question": "who?", "text": "it was Ann"}
        found = post(client, "answer", model="spans", **asked)
        assert found["outputs"] == spans.answer(*asked.values())
        refused = client.post("/embed", json={"inputs": "a"})
        assert "Name one of the models: encoder, spans" in refused.json()["error"]


@pytest.mark.slower
def test_a_language_model_continues_and_scores(lm_run):
    lm, text = rt.load(lm_run), "to be or"
    with serving([of_run("lm", lm_run)]) as client:
        served = client.app.models.get("lm")
        asked = {"model": "lm", "prompt": text, "max_tokens": 6}
        (found,) = post(client, "v1/completions", **asked)["choices"]
        assert found["text"] == lm.generate(text, max_length=6)
        asked |= {"echo": True, "logprobs": 1, "max_tokens": 0}
        (found,) = post(client, "v1/completions", **asked)["choices"]
        assert "".join(found["logprobs"]["tokens"]) == found["text"] == text
        total = sum(found["logprobs"]["token_logprobs"])
        assert total == pytest.approx(lm.score("", text), rel=1e-4)
        assert served.compilations == 0


@pytest.mark.slower
def test_an_echo_is_one_text_with_its_answer(words_lm_run):
    """As SentencePiece itself decodes the ids of the whole row."""
    file = words_lm_run.parent / "words.model"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
    prompt = "that  is the "
    with serving([of_run("lm", words_lm_run)]) as client:
        asked = {"model": "lm", "prompt": prompt, "logprobs": 1, "max_tokens": 6}
        (answer,) = post(client, "v1/completions", **asked)["choices"]
        asked |= {"echo": True}
        (found,) = post(client, "v1/completions", **asked)["choices"]
        asked |= {"max_tokens": 0}
        (read,) = post(client, "v1/completions", **asked)["choices"]
    ids = [f"▁{token.strip()}" for token in answer["logprobs"]["tokens"]]
    ids = pieces.encode(prompt) + pieces.piece_to_id(ids)
    assert found["text"] == pieces.decode(ids) == f"that is the {answer['text']}"
    assert "".join(found["logprobs"]["tokens"]) == found["text"]
    assert "".join(read["logprobs"]["tokens"]) == read["text"] == "that is the"


@pytest.mark.slower
def test_an_export_in_8_bits_answers(run, tmp_path):
    folder = run.export(str(tmp_path / "8"), "litert", weights="int8")
    with serving([of_run("eight", folder)]) as client:
        found = post(client, "generate", inputs=QUESTIONS)
        assert found["outputs"] == ask(rt.load(folder), QUESTIONS)
        assert found["version"] == "8"
        asked = {"model": "eight", "prompt": QUESTIONS[1], "stream": True}
        events = client.post("/v1/completions", json=asked).text.split("\n\n")
        events = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text == found["outputs"][1]
        for option in ({"max_length": 3}, {"seed": 3}):
            refused = client.post("/generate", json={"inputs": "a", **option})
            assert refused.status_code == 422
            assert f"takes no {min(option)}" in refused.json()["error"]


def test_images_are_classified(image_run):
    array = np.random.default_rng(0).integers(0, 256, [9, 7, 3], np.uint8)
    encoded = base64.b64encode(tf.io.encode_png(array).numpy()).decode()
    with serving([of_run("colors", image_run)]) as client:
        found = post(client, "classify", inputs={"b64": encoded})
        expected = rt.load(image_run).classify(array)
        assert found["labels"] == expected.label
        np.testing.assert_allclose(
            found["probabilities"], expected.probabilities, rtol=1e-4
        )
        refused = client.post("/classify", json={"inputs": "no image"})
        assert refused.status_code == 422, refused.text


def test_matrices_of_a_text(tiny):
    asked = {"inputs": "A cat", "targets": "né"}
    found = post(tiny, "observe", **asked)
    assert found["tokens"]["encoder"]["reads"] == [*"A", "\u2423", *"cat", "</s>"]
    decoder = found["tokens"]["decoder"]
    assert decoder["reads"][:2] == ["<s>", "n"] and decoder["writes"][-1] == "</s>"
    kinds = set()
    for layer in found["layers"]:
        values = np.array(layer["values"])
        rows, columns = (len(found["tokens"][layer[x]]["reads"]) for x in AXES)
        assert values.shape == (1, rows, columns)
        if not layer["signed"]:
            np.testing.assert_allclose(values.sum(axis=-1), 1, atol=0.01)
        kinds.add((layer["rows"], layer["columns"]))
        heads = post(tiny, "observe", layer=layer["layer"], **asked)["layers"]
        assert [x["layer"] for x in heads] == [layer["layer"]]
        assert len(heads[0]["values"]) == layer["heads"]
        mean = np.mean(heads[0]["values"], axis=0)
        np.testing.assert_allclose(mean, values[0], atol=1e-3)
    assert ("decoder", "encoder") in kinds
    refused = tiny.post("/observe", json={**asked, "layer": "no/layer"})
    assert refused.status_code == 422 and "'no/layer'" in refused.json()["error"]
    long = post(tiny, "observe", inputs="a" * 400)
    assert long["trimmed"] and len(long["layers"][0]["values"][0]) <= MOST_TOKENS


@pytest.fixture(scope="module")
def hurried(bytes_run):
    """Asks a server with four seconds for each answer; it has the model, `served`."""
    limits = Limits(max_rows=8, max_queue=12, timeout=4)
    with serving([of_run("tiny", bytes_run, limits)], limits) as client:
        client.served = client.app.models.get()
        wait_for(lambda: not client.served.is_compiling, 120)
        yield client


def test_draws_wait_for_their_search_within_the_limits(hurried):
    served = hurried.served
    served._draws.made.clear()  # as in the first seconds
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ask = functools.partial(hurried.post, "/generate")
        found = pool.submit(ask, json={"inputs": ["A cat"] * 8, "seed": 1})
        wait_for(lambda: served.waiting() == 8)
        assert ask(json={"inputs": ["A cat"] * 5, "seed": 1}).status_code == 429
        assert found.result().status_code == 408
    assert served.waiting() == 0
    stream = {"model": "tiny", "prompt": "A cat", "seed": 1, "stream": True}
    assert hurried.post("/v1/completions", json=stream).status_code == 408
    served._draws.made.set()
    assert hurried.post("/v1/completions", json=stream).status_code == 200


def test_a_stream_that_halts_ends_within_the_limits(hurried, monkeypatch):
    served, thread, may_write = hurried.served, Thread("halts"), threading.Event()
    writer = served._own.writer
    monkeypatch.setattr(writer, "_thread", thread)
    turn = writer._turn

    def halting(new, writing):
        assert new or may_write.wait(20)
        return turn(new, writing)

    monkeypatch.setattr(writer, "_turn", halting)

    async def test():
        pieces = served.stream(b"A cat", {})
        await anext(pieces)
        with pytest.raises(Refusal, match=r"No answer in 4 s\."):
            await anext(pieces)
        may_write.set()
        while writer.is_writing():
            await asyncio.sleep(0.01)

    asyncio.run(test())
    thread.stop()


def test_a_replaced_model_ends_its_streams(hurried, run, monkeypatch):
    served, thread = hurried.served, Thread("replaced")
    monkeypatch.setattr(served, "thread", thread)
    monkeypatch.setattr(served._own.writer, "_thread", thread)

    async def test():
        pieces = served.stream(b"A cat", {})
        async with asyncio.timeout(10):
            found = [await anext(pieces)]
            served.close()
            return found + [piece async for piece in pieces]

    found = asyncio.run(test())
    assert "".join(text for text, _ in found) == run.generate("A cat")
