"""OpenAI's completions: choices, stops, scores, and events of a stream."""

import json

import pytest

from remixer_tf.server.served import Served
from tests.server.echo import Echo

URL = "/v1/completions"


def complete(client, status=200, **fields):
    fields = {"model": "echo", "prompt": "ab"} | fields
    response = client.post(URL, json=fields)
    assert response.status_code == status, response.text
    return response.json()


def events(client, **fields):
    fields = {"model": "echo", "prompt": "ab", "stream": True} | fields
    response = client.post(URL, json=fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_an_answer(client):
    found = complete(client, prompt="ab!", user="somebody", suffix=None, best_of=1)
    choice = {"index": 0, "text": "AB!", "logprobs": None, "finish_reason": "stop"}
    assert found["choices"] == [choice]
    assert found["object"] == "text_completion" and found["id"].startswith("cmpl-")
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert found["usage"] == usage
    cut = complete(client, max_tokens=1)["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == ("A", "length")
    stopped = complete(client, prompt="abcd", stop=["CD", "D"])["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == ("AB", "stop")


def test_echo(client):
    found = complete(client, prompt="abc", echo=True, stop="C")["choices"][0]
    assert found["text"] == "abc AB"  # as the whole row is written


def test_several_prompts_and_answers(client):
    whole = complete(client, prompt=["a", "b"], n=2, seed=5)
    found, usage = whole["choices"], whole["usage"]
    # A prompt is read once for all of its answers.
    assert usage == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    *_, last = events(
        client, prompt=["a", "b"], n=2, seed=5, stream_options={"include_usage": True}
    )
    assert last["usage"] == usage
    assert [x["text"] for x in found] == ["A5", "A6", "B5", "B6"]
    assert [x["index"] for x in found] == [0, 1, 2, 3]
    texts = {x["text"] for x in complete(client, n=3)["choices"]}
    assert len(texts) == 3  # of seeds that are drawn


def test_the_usage_of_an_export_is_unknown(client, monkeypatch):
    monkeypatch.setattr(Echo, "count_tokens", Served.count_tokens)
    *_, last = events(client, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"] is None


def test_log_probabilities(client):
    found = complete(client, logprobs=0)["choices"][0]["logprobs"]
    assert found == {
        "tokens": ["A", "B"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": None,
        "text_offset": [0, 1],
    }
    found = complete(client, prompt="abcd", logprobs=0, stop="C")["choices"][0]
    assert found["text"] == "AB" and found["logprobs"]["tokens"] == ["A", "B"]
    assert found["logprobs"]["text_offset"] == [0, 1]
    found = complete(client, logprobs=1, echo=True)["choices"][0]
    assert found["logprobs"]["tokens"] == ["a", "b", "A", "B"]
    found = complete(client, logprobs=0, echo=True, max_tokens=0)["choices"][0]
    assert found["text"] == "ab" and found["logprobs"]["tokens"] == ["a", "b"]


def test_a_stream(client):
    found = events(client, prompt="abc", stream_options={"include_usage": True})
    *pieces, last, usage = found
    assert [x["choices"][0]["text"] for x in pieces] == ["A", "B", "C"]
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 6
    assert len({x["id"] for x in found}) == 1
    texts = {0: "", 1: "", 2: "", 3: ""}
    for event in events(client, prompt=["a", "b"], n=2, seed=1):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "A1", 1: "A2", 2: "B1", 3: "B2"}


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [("CD", "AB", "stop"), ("CX", "ABCDC", "length"), (["X", "B"], "A", "stop")],
)
def test_a_stream_holds_back_what_may_be_a_stop(client, stop, text, reason):
    found = [x["choices"][0] for x in events(client, prompt="abcdc", stop=stop)]
    assert "".join(x["text"] for x in found) == text
    assert found[-1]["finish_reason"] == reason
    assert not any("C" in x["text"] for x in found[:2])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": None}, "The field 'prompt' is missing"),
        ({"prompt": [1, 2]}, "prompt[0] must be a text"),
        ({"prompt": ["a"] * 9}, "prompt has 9 texts"),
        ({"prompt": ["a"] * 4, "n": 3}, "At most 8 answers of a request"),
        ({"n": 0}, "n must be an integer from 1 to 16"),
        ({"temperature": -1}, "temperature must be a number from 0"),
        ({"stop": ["a"] * 5}, "at most 4 of them"),
        ({"stop": ""}, "a text of 1 to 200"),
        ({"logprobs": 5}, "logprobs must be an integer from 0 to 1"),
        ({"presence_penalty": 1}, "presence_penalty is not computed here"),
        ({"best_of": 2}, "best_of is not computed here"),
        ({"stream": 1}, "stream must be true or false"),
        ({"stream": True, "logprobs": 1}, "logprobs is not streamed"),
        ({"stream_options": {"x": 1}}, "no field 'x'"),
        ({"max_tokens": 0}, "give echo and logprobs"),
        ({"messages": []}, "There is no field 'messages'"),
        ({"max_length": 5}, "There is no field 'max_length'"),
        *(
            (
                {"max_tokens": 99, "stream": stream},
                "max_tokens is too much: 99. (x.max_length says so.)",
            )
            for stream in (False, True)
        ),
    ],
)
def test_mistakes(client, fields, message):
    error = complete(client, 422, **fields)["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error.keys() == {"message", "type", "param", "code"}


def test_models_and_unknown_ones(client):
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["kind"]) == ("echo", "model", "Echo")
    assert client.get("/v1/models/echo").json()["id"] == "echo"
    error = complete(client, 404, model="gpt")["error"]
    assert "There is no model 'gpt'" in error["message"]
    for fields in ({"stream": True}, {}):
        error = complete(client, 422, prompt="mistake", **fields)["error"]
        assert error["message"] == "echo has no such text"
