"""Beam search against every answer there is, and against its rules written down."""

import functools
import itertools

import numpy as np
import pytest

from remixer_tf.decoding import (
    HuggingFaceRules,
    T5Rules,
    beam_search,
    greedy_decode,
)
from tests.compiled import compiled, slow_on_jax
from tests.decoding.recurrent import EOS, Recurrent, inputs
from tests.decoding.scored import score_answers
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder, tiny_model


def run(search, model, batch, max_length, **options):
    search = functools.partial(search, model, max_length=max_length, **options)
    return compiled(search, model)(batch)


def search(model, batch, max_length, **options):
    """Each row's answers: lists of (log-probability, tokens), best first."""
    options = {"beams": 3, "n_best": 3, **options}
    _, _, answers = run(beam_search, model, batch, max_length, **options)
    return [
        [
            (float(score), cut_at_eos(text.tolist()))
            for score, text in zip(*row, strict=True)
            if score > -np.inf
        ]
        for row in zip(*map(np.array, answers[::-1]), strict=True)
    ]


def cut_at_eos(text):
    end = text.index(EOS) + 1 if EOS in text else len(text)
    assert not any(text[end:])
    return text[:end]


def check(found, expected):
    """Compares answers to one example, and tells whether any is there."""
    assert [text for _, text in found] == [text for _, text in expected]
    np.testing.assert_allclose(
        [score for score, _ in found], [score for score, _ in expected], atol=1e-4
    )


# Rules, as a function of log-probability and length that answers rank by.


def t5_rank(alpha=0.6):
    return lambda log_prob, length: log_prob / ((5 + length) / 6) ** alpha


def hugging_face_rank(penalty=1.0):
    return lambda log_prob, length: log_prob / length**penalty


ARCHITECTURES = {
    "t5_1_1": lambda: tiny_model("t5_1_1", vocab_size=4),
    "remixer": lambda: tiny_model("remixer", vocab_size=4),
    "gmlp_lm": lambda: tiny_decoder("gmlp", vocab_size=4),
}
OTHER_ARCHITECTURES = {
    "amlp": lambda: tiny_model("amlp", vocab_size=4),
    "mixer": lambda: tiny_model("mixer", vocab_size=4),
    "bert_lm": lambda: tiny_decoder("bert", vocab_size=4),
}


@functools.cache
def tiny(kind):
    model = (ARCHITECTURES | OTHER_ARCHITECTURES)[kind]()
    randomize(model)
    return model


PRESETS = {
    "t5": (T5Rules(), t5_rank()),
    "huggingface": (HuggingFaceRules(early_stopping="never"), hugging_face_rank()),
}
EACH = list(itertools.product(ARCHITECTURES, PRESETS))


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "kind, preset",
    [
        *slow_on_jax(EACH, but=[("gmlp_lm", "huggingface")]),
        *(
            pytest.param(kind, "huggingface", marks=pytest.mark.slow)
            for kind in OTHER_ARCHITECTURES
        ),
    ],
)
def test_wide_beams_find_the_best_of_all_answers(kind, preset, monkeypatch):
    """Of 4 tokens and length 3: with 27 beams, nothing is ever dropped."""
    monkeypatch.setattr("remixer_tf.decoding.search.FIRST_CACHE_LENGTH", 2)
    model, length = tiny(kind), 3
    rules, rank = PRESETS[preset]
    batch = {"encoder_input_tokens": np.array([[2, 3, 3], [3, 2, 0]], "int32")}
    texts = np.array(list(itertools.product(range(4), repeat=length)))
    texts = np.stack([texts, texts])
    log_probs = score_answers(model, batch, texts)
    found = search(model, batch, length, rules=rules, beams=27, n_best=9)
    for row in range(2):
        answers = {}
        for text, log_prob in zip(texts[row].tolist(), log_probs[row], strict=True):
            end = text.index(EOS) + 1 if EOS in text else length
            if EOS in text or preset != "t5":  # whose answers all end
                answers[tuple(text[:end])] = log_prob
        best = sorted(answers, key=lambda t: -rank(answers[t], len(t)))
        if preset != "t5":
            assert len(found[row]) == 9
        best = best[: len(found[row])]  # T5 stops when no other can be better
        check(found[row], [(answers[text], list(text)) for text in best])
    assert found[0] and found[1]


def t5_reference(log_probs, max_length, beams, alpha=0.6):
    """Mesh TensorFlow's rules for one example."""
    rank = t5_rank(alpha)
    alive, finished = [(0.0, [])], []
    for _ in range(max_length):
        continuations = best_continuations(log_probs, alive, 2 * beams)
        finished += [c for c in continuations if c[1][-1] == EOS]
        finished.sort(key=lambda c: -rank(c[0], len(c[1])))
        del finished[beams:]
        alive = [c for c in continuations if c[1][-1] != EOS][:beams]
        if finished:
            worst = rank(finished[-1][0], len(finished[-1][1]))
            if worst > rank(alive[0][0], max_length):
                break
    return finished or alive


def hugging_face_reference(
    log_probs, max_length, beams, penalty=1.0, early_stopping=False
):
    """Hugging Face's rules for one example."""
    rank = hugging_face_rank(penalty)
    alive, finished = [(0.0, [])], []
    for length in range(1, max_length + 1):
        continuations = best_continuations(log_probs, alive, 2 * beams)
        finished += [
            c for c in continuations[:beams] if c[1][-1] == EOS or length == max_length
        ]
        finished.sort(key=lambda c: -rank(c[0], len(c[1])))
        del finished[beams:]
        alive = [c for c in continuations if c[1][-1] != EOS][:beams]
        if len(finished) == beams:
            longest = (
                max_length if early_stopping == "never" and penalty > 0 else length
            )
            worst = rank(finished[-1][0], len(finished[-1][1]))
            if early_stopping is True or rank(alive[0][0], longest) <= worst:
                break
    return finished


def best_continuations(log_probs, alive, number):
    continuations = [
        (score + log_prob, [*text, token])
        for score, text in alive
        for token, log_prob in enumerate(log_probs(text))
    ]
    return sorted(continuations, key=lambda c: -c[0])[:number]


REFERENCES = {
    "t5": (T5Rules, t5_reference, {}),
    "huggingface": (HuggingFaceRules, hugging_face_reference, {}),
}
OTHERS = {
    "t5, alpha 0": (T5Rules, t5_reference, {"alpha": 0.0}),
    "t5, alpha 2": (T5Rules, t5_reference, {"alpha": 2.0}),
    "huggingface, early": (
        HuggingFaceRules,
        hugging_face_reference,
        {"early_stopping": True},
    ),
    "huggingface, never": (
        HuggingFaceRules,
        hugging_face_reference,
        {"early_stopping": "never", "length_penalty": 2.0},
    ),
    "huggingface, short": (
        HuggingFaceRules,
        hugging_face_reference,
        {"length_penalty": -0.5},
    ),
    # 7 ** 12 is over 1e10: no answer must not rank as one.
    "huggingface, longest": (
        HuggingFaceRules,
        hugging_face_reference,
        {"length_penalty": 12.0, "early_stopping": True},
    ),
}


@pytest.mark.parametrize(
    "name", [*REFERENCES, *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS)]
)
def test_rules(name):
    """Each row has a prompt of its own, and ends by itself, whatever the others do."""
    make, reference, settings = (REFERENCES | OTHERS)[name]
    # Of these, going on where a rule stops changes what several rows answer.
    model, batch = Recurrent(reads_prompt=True), inputs(seed=5)
    found = search(model, batch, 7, rules=make(**settings))
    settings = {key.replace("length_", ""): x for key, x in settings.items()}
    lengths = set()
    for row, answers in zip(batch["encoder_input_tokens"], found, strict=True):
        log_probs = functools.partial(model.log_probs, row)
        check(answers, reference(log_probs, 7, 3, **settings))
        lengths |= {len(text) for _, text in answers}
    assert len(lengths) > 1


def test_one_beam_is_greedy():
    model, batch = Recurrent(), inputs()
    expected = run(greedy_decode, model, batch, 6)
    for rules in (T5Rules(), HuggingFaceRules()):
        found = run(beam_search, model, batch, 6, rules=rules, beams=1)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


def test_the_first_of_several_answers_is_the_answer():
    model, batch = Recurrent(), inputs()
    decoded = run(beam_search, model, batch, 4, rules=T5Rules(), beams=2, n_best=2)
    np.testing.assert_array_equal(decoded.answers.tokens[:, 0], decoded.tokens)
    np.testing.assert_array_equal(decoded.answers.scores[:, 0], decoded.scores)
    np.testing.assert_array_equal(np.shape(decoded.answers.tokens), (5, 2, 4))


def test_errors():
    with pytest.raises(ValueError, match="n_best=3, beams=2"):
        beam_search(Recurrent(), inputs(), 4, T5Rules(), beams=2, n_best=3)
    with pytest.raises(ValueError, match="early_stopping='always'"):
        HuggingFaceRules(early_stopping="always")
    with pytest.raises(ValueError, match="alpha=-1"):
        T5Rules(alpha=-1)
