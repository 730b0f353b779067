"""Threads that load and ask runs side by side: each has its own run's settings."""

import concurrent.futures
import warnings

import gin
import pytest

import remixer_tf as rt

pytestmark = pytest.mark.slow_on_jax
TWO = range(2)


@pytest.fixture(scope="module")
def folder(bytes_run):
    gin.clear_config()  # Settings of training are none of the loaded run.
    return bytes_run


def in_two_threads(function):
    """Calls a function of 0 and of 1, each in a thread of its own; both begin at once.

    Returns both results. An error of either is raised.
    """
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        return [*threads.map(function, TWO)]


def lengths(index, number):
    return {"inputs": 24 + index, "targets": 10 + 2 * number + index}


def test_threads_load_one_folder(folder):
    def load(index):
        return [rt.load(folder).run.seed for _ in range(5)]

    assert in_two_threads(load) == [[0] * 5] * 2


def test_threads_load_with_other_lengths(folder):
    def load(index):
        return [
            rt.load(
                folder, bindings=[f"FEATURE_LENGTHS = {lengths(index, number)}"]
            ).run.feature_lengths
            for number in range(10)
        ]

    found = in_two_threads(load)
    assert found == [[lengths(index, number) for number in range(10)] for index in TWO]


@pytest.mark.slow
def test_threads_ask_runs_of_other_limits(folder):
    """The graphs of both runs are traced while the other one answers."""
    allowed = [["Emma", "the cat"], ["a dog", "slept"]]
    # Both are loaded before either is asked: a graph is traced at the first question.
    runs = [
        rt.load(
            folder,
            bindings=[
                "text_to_text.decode_fn = @greedy_decode",
                "greedy_decode.limits = @AnswerLimits()",
                "AnswerLimits.allowed = @allowed_answers()",
                f"allowed_answers.strings = {texts}",
            ],
        )
        for texts in allowed
    ]

    def ask(index):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [runs[index].generate(f"question {n}") for n in range(12)]

    for texts, answers in zip(allowed, in_two_threads(ask), strict=True):
        assert {*answers} <= {*texts}


def test_nothing_of_a_run_stays_in_gin(folder):
    run = rt.load(folder, bindings=["cogs.directory = 'here'"])
    run.run.make_model()  # It needs nothing but the run.
    assert not gin.config_str() and not gin.config_is_locked()
