"""`HarnessModel`: what of a request the model reads, and what it refuses."""

import numpy as np
import pytest
import seqio

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from remixer_tf.evaluation.lm_harness import HarnessModel
from remixer_tf.serving.text_scorer import TextScorer
from tests.data.toy_tasks import VOCABULARY, toy_task
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder, tiny_model

pytestmark = pytest.mark.slower

KINDS = ["encoder_decoder", "prefix_lm", "lm"]


def ids(text):
    return [byte + 3 for byte in text.encode()]


@pytest.fixture(scope="module", params=KINDS)
def scorer(request):
    task = toy_task({"dev": [("a", "b")]}, metric_fns=[])
    lengths = {"inputs": 8, "targets": 8}
    if request.param == "encoder_decoder":
        model = tiny_model("remixer", vocab_size=VOCABULARY.vocab_size)
    else:
        model = tiny_decoder(
            "gmlp", vocab_size=VOCABULARY.vocab_size, tied_logits=False
        )
    if request.param == "lm":
        features = {"targets": task.output_features["targets"]}
        task, lengths = task.replace(output_features=features), {"targets": 16}
    randomize(model)
    letters = np.zeros(VOCABULARY.vocab_size)
    letters[ids("abcdefghijklmnopqrstuvwxyz")] = 3  # it writes hardly anything else
    (kernel,) = (x for x in model.weights if x.path.endswith("logits/kernel"))
    kernel.assign(kernel * letters)
    return TextScorer(model, task, lengths)


def only(kind):
    return pytest.mark.parametrize("scorer", [kind], indirect=True)


class Hook:
    """Remembers what the harness would cache."""

    def __init__(self):
        self.kept = []

    def add_partial(self, name, request, result):
        self.kept.append((name, request, result))


def ask(scorer, method, arguments, batch_size=2):
    """A method's results of a list of requests, and what it let the harness cache."""
    model = HarnessModel(scorer, batch_size)
    model.set_cache_hook(hook := Hook())
    requests = [Instance(method, {}, x, i) for i, x in enumerate(arguments)]
    results = getattr(model, method)(requests)
    assert len(results) == len(requests)
    expected = [
        (method, request, result)
        for request, result in zip(arguments, results, strict=True)
    ]
    assert sorted(hook.kept, key=repr) == sorted(expected, key=repr)
    return results


def context_ids(scorer, text):
    return ids(text) + [1] * (not scorer.codec.running_text)


def test_continuations_have_the_spaces_between_and_no_eos(scorer):
    arguments = [("abcd", ""), ("ab  ", "cd"), ("abc", " d"), ("", "abcd")]
    pairs = [
        (context_ids(scorer, "abcd"), []),
        (context_ids(scorer, "ab"), ids("  cd")),
        (context_ids(scorer, "abc"), ids(" d")),
        (context_ids(scorer, ""), ids("abcd")),
    ]
    expected = [(row[0], row[2]) for row in scorer.score(pairs, 4)]
    found = ask(scorer, "loglikelihood", arguments)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert found[0] == (0.0, True)  # nothing to write


def test_what_greedy_decoding_writes_is_greedy(scorer):
    (text,) = ask(scorer, "generate_until", [("ab", {"until": [], "max_gen_toks": 3})])
    assert len(text) == 3 and text.isalpha()
    other = text[:2] + ("a" if text[2] == "b" else "b")
    found = ask(scorer, "loglikelihood", [("ab", text), ("ab", other)])
    assert [greedy for _, greedy in found] == [True, False]


def test_contexts_lose_their_beginning_and_continuations_must_fit(scorer, caplog):
    one_row = scorer.codec.running_text
    room = scorer.codec.row_length - 2 if scorer.codec.one_row else 8
    arguments = [("x" * 20 + "abcdefghijklmno", "zz")]
    context = context_ids(scorer, arguments[0][0])[-room:]
    (expected,) = scorer.keeping_ends().score([(context, ids("zz"))], 1)
    (found,) = ask(scorer, "loglikelihood", arguments)
    assert found[0] == pytest.approx(expected[0], abs=1e-3)
    assert not expected[3] and "1 of 1 contexts are longer" in caplog.text
    assert one_row == (context[-1] != 1)
    with pytest.raises(ValueError, match="A continuation has 17 tokens"):
        ask(scorer, "loglikelihood", [("a", "b" * 17)])


def test_rolling_scores_each_token_once(scorer):
    texts = ["", "abc", "sixteen letters.", "seventeen letters", "long text! " * 5]
    found = ask(scorer, "loglikelihood_rolling", [(text,) for text in texts])
    for text, total in zip(texts, found, strict=True):
        if scorer.codec.one_row:
            pairs = scorer.windows(text.encode(), scorer.codec.row_length - 1)
        else:
            pairs = [([1], ids(text[i : i + 8])) for i in range(0, len(text), 8)]
        assert sum((targets for _, targets in pairs), []) == ids(text)
        expected = sum(row[0] for row in scorer.keeping_ends().score(pairs, 2))
        assert total == pytest.approx(expected, abs=2e-3)
    assert found[0] == 0.0


def test_answers_in_order_whatever_the_batches(scorer):
    greedy = {"until": ["q"], "max_gen_toks": 4}
    arguments = [
        ("abc", greedy),
        ("", greedy),
        ("a", {"until": [], "max_gen_toks": 6, "temperature": 0.0}),
        ("abcdef", greedy),
        ("abc", greedy | {"do_sample": True, "temperature": 1.0, "top_k": 1}),
        ("bcd", greedy),
    ]
    found = ask(scorer, "generate_until", arguments)
    assert found[0] == found[4]  # the likeliest of one
    assert ask(scorer, "generate_until", arguments[::-1], batch_size=3) == found[::-1]


def test_answers_end_before_the_first_stop(scorer):
    arguments = {"until": [], "max_gen_toks": 6}
    (whole,) = ask(scorer, "generate_until", [("ab", arguments)])
    assert len(whole) > 2
    stops = arguments | {"until": [whole[2:], whole[1], "@@"]}
    assert ask(scorer, "generate_until", [("ab", stops)]) == [whole.split(whole[1])[0]]


@only("encoder_decoder")
def test_repeated_requests_draw_different_samples(scorer):
    drawn = {"until": [], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}
    requests = [("ab", drawn)] * 8 + [("cd", drawn)]
    found = ask(scorer, "generate_until", requests)
    assert len(set(found[:8])) > 4
    assert ask(scorer, "generate_until", requests) == found
    drawn = {"until": [], "max_gen_toks": 6, "do_sample": True}  # temperature 1
    assert ask(scorer, "generate_until", [("ab", drawn)] * 8) == found[:8]
    # transformers takes these of greedy requests, and ignores them.
    greedy = drawn | {"do_sample": False, "top_k": 0, "top_p": None}
    assert len(set(ask(scorer, "generate_until", [("ab", greedy)] * 3))) == 1


def test_lengths_of_answers(scorer):
    (default,) = ask(scorer, "generate_until", [("ab", {"until": []})])
    (eight,) = ask(scorer, "generate_until", [("ab", {"until": [], "max_gen_toks": 8})])
    assert default == eight
    if scorer.codec.one_row:
        with pytest.raises(ValueError, match="16 tokens: max_gen_toks must be less"):
            ask(scorer, "generate_until", [("ab", {"max_gen_toks": 16})])
    else:
        with pytest.raises(ValueError, match="max_length"):  # the model's own
            ask(scorer, "generate_until", [("ab", {"max_gen_toks": 99})])
    with pytest.raises(ValueError, match="max_gen_toks"):
        ask(scorer, "generate_until", [("ab", {"max_gen_toks": 0})])


@only("lm")
def test_what_is_not_honoured_is_refused(scorer):
    arguments = {"until": [], "num_beams": 4, "repetition_penalty": 1.2}
    with pytest.raises(ValueError, match="num_beams=4, repetition_penalty=1.2"):
        ask(scorer, "generate_until", [("ab", arguments)])
    model = HarnessModel(scorer)
    assert model.chat_template() == ""
    for chat in (
        lambda: model.tokenizer_name,
        lambda: model.apply_chat_template([]),
        lambda: model.chat_template(True),
    ):
        with pytest.raises(ValueError, match="no chat template"):
            chat()
    with pytest.raises(ValueError, match="batch_size"):
        HarnessModel(scorer, "auto")


@only("lm")
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 60])
def test_windows_are_the_harness_own(scorer, length):
    """The model puts its own token before every row, in place of the prefix."""
    text = "".join(chr(97 + i % 26) for i in range(length))
    found = HarnessModel(scorer)._windows(text)
    windows = get_rolling_token_windows(ids(text), 0, max_seq_len=16, context_len=2)
    assert found == [(a[1:], b) for a, b in map(make_disjoint_window, windows)]


@only("encoder_decoder")
def test_an_encoder_reads_eos_where_there_is_no_context(scorer):
    features = {
        name: seqio.Feature(VOCABULARY, add_eos=False) for name in ("inputs", "targets")
    }
    task = toy_task({"dev": [("a", "b")]}, metric_fns=[])
    task = task.replace(output_features=features)
    bare = TextScorer(scorer.model, task, scorer.codec.lengths)
    arguments = [("", "abc")]
    assert ask(bare, "loglikelihood", arguments) == ask(
        scorer, "loglikelihood", arguments
    )
    texts = [("abc",)]
    assert ask(bare, "loglikelihood_rolling", texts) == ask(
        scorer, "loglikelihood_rolling", texts
    )
