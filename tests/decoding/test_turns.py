"""Rows that come and go: each has the answer that it has alone."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.decoding import (
    AnswerLimits,
    Sampling,
    T5Rules,
    beam_search,
    greedy_decode,
    sample,
    turns,
)
from remixer_tf.decoding.row_random import seed_words
from remixer_tf.errors import UserError
from remixer_tf.layers.base import rows_apart
from tests.compiled import in_graph
from tests.models.tiny import VOCAB_SIZE, slow_but, tiny_decoder, tiny_model

QUICK = [] if keras.backend.backend() == "jax" else ["remixer"]
MODELS = {
    "t5": lambda: tiny_model("t5_1_1", max_length=90),
    "remixer": lambda: tiny_model("remixer", max_length=90),
    "amlp": lambda: tiny_model("amlp", max_length=90),
    "bert": lambda: tiny_decoder("bert"),
    "gmlp": lambda: tiny_decoder("gmlp"),
    "smlp": lambda: tiny_decoder("smlp"),
}
LIMITS = AnswerLimits(min_length=2, no_repeat_ngram_size=2, repetition_penalty=1.3)
SEARCHES = {
    "greedy": greedy_decode,
    "limited": functools.partial(greedy_decode, limits=LIMITS),
    "drawn": functools.partial(sample, sampling=Sampling(temperature=3.0)),
    "several": functools.partial(sample, num_samples=3, sampling=Sampling(top_k=9)),
}
WIDTHS = 4, 8  # of the questions' tensors
ANSWER = 7


def questions(rows, seed):
    """Ids of so many questions of 1 to 8 tokens, and settings of each."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(2, VOCAB_SIZE, (rows, WIDTHS[1])).astype("int32")
    lengths = rng.integers(1, WIDTHS[1] + 1, rows)
    tokens[np.arange(WIDTHS[1]) >= lengths[:, None]] = 0
    return {
        "encoder_input_tokens": tokens,
        "seeds": np.stack([seed_words(int(x)) for x in rng.integers(0, 2**40, rows)]),
        "max_length": rng.integers(3, ANSWER + 1, rows).astype("int32"),
    }


def answers(model, search, batch):
    """Answers a batch in three places; returns {row: tokens and scores}."""
    rows = len(batch["max_length"])
    length = ANSWER if hasattr(model, "encoder") else ANSWER + WIDTHS[1]
    write = in_graph(
        lambda rows: turns.write(search, model, rows, ANSWER, length, 2, 0), model
    )
    waiting, places, state, found = list(range(rows)), [], None, {}
    while waiting or any(place is not None for place in places):
        kept = [i for i, row in enumerate(places) if row is not None]
        new = [waiting.pop(0) for _ in range(min(3 - len(kept), len(waiting), 2))]
        parts = [state] if kept else []
        if new:
            taken = {name: x[new] for name, x in batch.items()}
            # Where all are short, with less padding.
            longest = np.count_nonzero(taken["encoder_input_tokens"], axis=1).max()
            width = min(n for n in WIDTHS if n >= longest)
            taken["encoder_input_tokens"] = taken["encoder_input_tokens"][:, :width]
            begun = in_graph(
                functools.partial(
                    turns.begin, search, model, max_length=ANSWER, length=length
                ),
                model,
            )(taken)
            parts.append(turns.fit(model, begun, WIDTHS[1], length))
        size = 3 if len(kept) + len(new) > 1 else 1
        index = kept + [len(places) * bool(kept) + i for i in range(len(new))]
        live = np.arange(size) < len(index)
        places = [places[i] for i in kept] + new + [None] * (size - len(index))
        index = np.array(index + index[:1] * (size - len(index)), "int32")
        state = turns.merge(parts, ops.convert_to_tensor(index), live)
        decoded, state = write(state)
        running = np.array(state.now.hypotheses.running).any(axis=1)
        for i, row in enumerate(places):
            if row is not None and not running[i]:
                found[row] = keras.tree.map_structure(
                    lambda x, i=i: np.array(x)[i], decoded
                )
                places[i] = None
    return found


@pytest.mark.parametrize("search", slow_but(["limited"], SEARCHES, slow=[]))
@pytest.mark.parametrize("kind", slow_but(QUICK, MODELS, slow=["bert"]))
def test_rows_have_the_answers_that_they_have_alone(kind, search):
    keras.utils.set_random_seed(3)
    model, batch = MODELS[kind](), questions(6, seed=1)
    assert rows_apart(model)
    found = answers(model, SEARCHES[search], batch)
    alone = in_graph(lambda x: SEARCHES[search](model, x, ANSWER), model)
    for row in range(6):
        expected = alone({name: x[[row, row]] for name, x in batch.items()})
        expected = keras.tree.map_structure(lambda x: np.array(x)[0], expected)
        assert np.count_nonzero(expected.tokens)
        np.testing.assert_array_equal(found[row].tokens, expected.tokens)
        np.testing.assert_allclose(found[row].scores, expected.scores, rtol=1e-4)
        if expected.answers:
            np.testing.assert_array_equal(
                found[row].answers.tokens, expected.answers.tokens
            )


def test_rows_that_keep_in_step_are_refused():
    model, batch = MODELS["t5"](), questions(2, seed=0)
    with pytest.raises(UserError, match="branch"):
        beams = functools.partial(beam_search, rules=T5Rules())
        turns.begin(beams, model, batch, ANSWER, ANSWER)
    mixer = tiny_model("mixer")
    assert not rows_apart(mixer)
    with pytest.raises(UserError, match="rows_apart"):
        turns.begin(greedy_decode, mixer, batch, ANSWER, ANSWER)


@pytest.mark.parametrize(
    ("positions", "length"), [(1, 64), (64, 64), (65, 100), (100, 100)]
)
def test_the_room_of_a_cache(positions, length):
    assert turns.room(positions, 100) == length
