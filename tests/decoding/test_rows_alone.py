"""Rows of a batch with prompts of different lengths: each as if it were alone."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import HuggingFaceRules, T5Rules, beam_search
from tests.compiled import in_graph, slow_on_jax
from tests.decoding import recurrent
from tests.decoding.test_prefill import make, prompts

RULES = {"t5": T5Rules(), "huggingface": HuggingFaceRules()}


@pytest.mark.slow
@pytest.mark.parametrize("rules", slow_on_jax(RULES, but=["t5"]))
def test_beams_of_prompts_of_different_lengths(rules):
    model = make("gmlp")
    search = functools.partial(
        beam_search, model, max_length=5, rules=RULES[rules], beams=3, n_best=2
    )
    search = in_graph(search, model)
    for lengths in ((8, 6), (3, 8)):
        tokens = prompts(*lengths)["encoder_input_tokens"]
        together = search({"encoder_input_tokens": tokens})
        for row in range(2):
            alone = search({"encoder_input_tokens": tokens[[row, row]]})
            assert np.array(alone.tokens[0]).any()
            np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
            np.testing.assert_array_equal(
                together.answers.tokens[row], alone.answers.tokens[0]
            )
            np.testing.assert_allclose(
                together.answers.scores[row], alone.answers.scores[0], atol=1e-4
            )


@pytest.mark.slow_on_jax
def test_a_row_that_is_cut_before_its_neighbours_keeps_its_answer():
    """No beam ends here, so that the answer is the likeliest of all that are cut."""
    model = recurrent.Recurrent(reads_prompt=True)
    tokens = np.array([[2, 3, 4, 5], [2, 0, 0, 0]], "int32")
    beams = recurrent.VOCAB_SIZE - 1  # As many as tokens that are not EOS: all of them.
    search = functools.partial(
        beam_search, model, max_length=2, rules=T5Rules(), beams=beams, eos_id=9
    )
    found = in_graph(search, model)({"encoder_input_tokens": tokens})
    for row, prompt in enumerate(tokens):
        first = model.log_probs(prompt, [])
        best = np.argsort(-first)[:beams]
        totals = {
            (a, b): first[a] + model.log_probs(prompt, [a])[b]
            for a in best
            for b in range(recurrent.VOCAB_SIZE)
        }
        answer = max(totals, key=totals.get)
        assert tuple(np.array(found.tokens[row])) == answer
        np.testing.assert_allclose(found.scores[row], totals[answer], atol=1e-4)
