"""The best step among results, NaN and early stopping."""

import json
import shutil

import pytest

from remixer_tf.checkpoints.reading import available_steps, restore_model
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.evaluation.best import Best
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.evaluation.results import write_result
from remixer_tf.evaluation.scored import ScoredEvaluation
from remixer_tf.run import Run
from remixer_tf.tasks.text_metrics import accuracy
from tests.data.toy_tasks import toy_task
from tests.evaluation.shift import DEV, LENGTHS, decoded
from tests.training import toy

NAN = float("nan")


class Planned:
    """An evaluation whose values are known beforehand: {step: value}."""

    kind = "metrics"
    name = ""

    def __init__(self, values, period=2, metric="em"):
        self.values = values
        self.period = period
        self.metric = metric
        self.steps = []

    def check(self, model_dir, others):
        pass

    def metric_names(self, wanted):
        return {f"toy/dev/{self.metric}"}

    def results(self, model_dir, model, bindings):
        return [
            {
                "task": "toy",
                "split": "dev",
                "step": s,
                "metrics": {self.metric: self.values[s]},
            }
            for s in self.steps
        ]

    def run(self, model_dir, engine, step, force, **key):
        if step not in self.steps:
            self.steps.append(step)


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("max", {}, (None, None, False)),
        ("max", {10: 1.0, 20: 3.0, 30: 2.0}, (20, 3.0, False)),
        ("max", {10: 1.0, 20: 3.0, 30: 2.0, 40: 3.0}, (20, 3.0, True)),
        ("min", {10: 1.0, 20: 3.0, 100: 2.0}, (10, 1.0, True)),
        ("min", {10: 1.0, 20: 0.5}, (20, 0.5, False)),
        ("max", {10: NAN, 20: 1.0, 30: 3.0}, (30, 3.0, False)),
        ("min", {10: NAN, 20: 1.0, 30: 3.0}, (20, 1.0, False)),
        ("max", {10: 1.0, 20: NAN, 30: NAN}, (10, 1.0, True)),
        ("max", {10: NAN, 20: NAN, 30: NAN}, (None, None, False)),
    ],
)
def test_best(mode, values, expected):
    evaluation = Planned(values)
    evaluation.steps = list(values)
    best = Best("toy/dev/em", mode, 2)
    assert best.find("folder", [evaluation], None, 100) == expected


def test_later_results_do_not_count():
    evaluation = Planned({10: 1.0, 20: 3.0, 30: 5.0})
    evaluation.steps = [10, 20, 30]
    found = Best("toy/dev/em").find("folder", [evaluation], None, 20)
    assert found == (20, 3.0, False)


def test_a_metric_that_nothing_gives(tmp_path):
    def engine():
        raise AssertionError("the run has started")

    best = Best("toy/dev/n")
    with pytest.raises(ValueError, match="'toy/dev/n'. Nearest: toy/dev/em. They give"):
        run(tmp_path, 4, Planned({}), None, best=best, engine=engine)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="'most'"):
        Best("toy/dev/em", mode="most")


@pytest.mark.slow
def test_waits_for_an_evaluation_that_is_rarer_than_others(tmp_path):
    loss = Planned({2: 1.0, 4: 2.0, 6: 3.0, 8: 4.0}, metric="loss")
    decoded = Planned({4: 7.0, 8: 6.0}, period=4)
    run(tmp_path, 8, decoded, patience=5, evaluations=[loss, decoded])
    assert loss.steps == [2, 4, 6, 8] and decoded.steps == [4, 8]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best == {"metric": "toy/dev/em", "step": 4, "value": 7.0}


def test_names_of_metrics_are_known_before_there_is_a_model():
    def by_letter(targets, predictions):
        assert targets == predictions
        return {"letters": {target[0]: 1.0 for target in targets}}

    def broken(targets, predictions):
        raise RuntimeError("no corpus")

    dev = [("a", "a")] * 16 + [("z", "z")]  # Further than the first few.
    for metric in ("toy/dev/letters/a", "toy/dev/letters/z"):
        Best(metric).check([decoded(toy_task({"dev": dev}, metric_fns=[by_letter]))])
    of_letters = decoded(toy_task({"dev": dev}, metric_fns=[by_letter]))
    with pytest.raises(ValueError, match="'toy/dev/letter/a'. Nearest: toy/dev/lett"):
        Best("toy/dev/letter/a").check([of_letters])
    of_unknown = decoded(toy_task({"dev": dev}, metric_fns=[broken]), name="b")
    Best("b/toy/dev/anything").check([of_letters, of_unknown])
    with pytest.raises(ValueError, match="They give: b/toy/dev/, toy/dev/letters/a"):
        Best("b/toy/test/em").check([of_letters, of_unknown])
    loss = LossEvaluation(toy_task({"dev": dev}), feature_lengths=LENGTHS, name="l")
    Best("l/toy/dev/perplexity").check([loss])
    with pytest.raises(ValueError, match="They give: l/toy/dev/loss, .*/perplex"):
        Best("toy/dev/loss").check([loss])


def test_a_metric_has_one_name_and_a_name_one_metric(tmp_path):
    """Loss and answers of one split, in the order of the guide of long runs."""
    folder = str(tmp_path)
    task = toy_task({"dev": DEV}, metric_fns=[accuracy])
    loss = LossEvaluation(task, feature_lengths=LENGTHS)
    answers = decoded(task)
    for evaluation in (loss, answers):
        evaluation.check(folder, [loss, answers])
    assert answers.metric_names() == {"toy/dev/accuracy"}
    assert "toy/dev/token_accuracy" in loss.metric_names()
    Best("toy/dev/accuracy").check([loss, answers])

    def own(targets, predictions):
        return {"loss": 1.0}

    task = toy_task({"dev": DEV}, metric_fns=[own])
    both = [loss, decoded(task)]
    twice = "DecodedEvaluation and LossEvaluation both give toy/dev/loss.*name = 'a'"
    with pytest.raises(ValueError, match=twice):
        both[1].check(folder, both)
    with pytest.raises(ValueError, match="'toy/dev/loss' is given by several.*Decoded"):
        Best("toy/dev/loss").check(both)
    both = [loss, decoded(task, name="a")]
    both[1].check(folder, both)
    Best("a/toy/dev/loss").check(both)
    # Scores that an evaluation of another day gave this name.
    result = {"evaluation": "", "task": "toy", "split": "dev", "step": 5}
    write_result(folder, "score", {**result, "metrics": {"accuracy": 50.0}})
    with pytest.raises(ValueError, match="score.json of step 5 both give toy/dev/acc"):
        answers.check(folder, [loss, answers])


def test_metrics_that_cannot_be_tried_are_no_reason_to_refuse(tmp_path):
    def answers(targets, predictions):
        raise ValueError("too few")

    def likelihood(targets, scores):
        raise ValueError("too few")

    task = toy_task({"dev": DEV}, metric_fns=[answers, likelihood])
    both = [decoded(task), ScoredEvaluation(task, feature_lengths=LENGTHS)]
    both[1].check(str(tmp_path), both)


def test_values_of_two_evaluations_are_never_compared():
    """Metrics that fail before training are found twice by their results."""
    loss, answers = Planned({10: 0.88, 20: 0.9}), Planned({20: 24.0, 40: 26.0})
    loss.steps, answers.steps = [10, 20], [20, 40]
    with pytest.raises(ValueError, match="is given by several evaluations"):
        Best("toy/dev/em").find("folder", [loss, answers], None, 40)


def run(model_dir, train_steps, evaluation, patience, **options):
    options = {"best": Best("toy/dev/em", patience=patience), **options}
    engine = options.pop("engine", backend_engine)
    return toy.train_toy(
        Run(toy.ToyModel, engine=engine),
        model_dir,
        train_steps,
        checkpoint_period=100,
        keep=1,
        **{"evaluations": [evaluation], **options},
    )


def test_stops_early_and_keeps_the_best_checkpoint(tmp_path, capsys):
    values = {2: 1.0, 4: 5.0, 6: 3.0, 8: 4.0, 9: 6.0, 10: 0.0}
    evaluation = Planned(values)
    summary = run(tmp_path, 100, evaluation, patience=2)
    assert summary["steps"] == 8 and evaluation.steps == [2, 4, 6, 8]
    assert available_steps(tmp_path / "checkpoints") == [4, 8]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best == {"metric": "toy/dev/em", "step": 4, "value": 5.0}
    model = toy.ToyModel()
    model.build()
    assert restore_model(str(tmp_path), model, "best") == 4
    assert "stopped early at step 8" in capsys.readouterr().out

    assert run(tmp_path, 100, evaluation, patience=2) is None
    assert "nothing to do" in capsys.readouterr().out
    assert evaluation.steps == [2, 4, 6, 8]
    summary = run(tmp_path, 9, evaluation, patience=3)  # the last step counts too
    assert summary["steps"] == 9 and evaluation.steps == [2, 4, 6, 8, 9]
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 9


def test_a_best_step_of_another_configuration_stays(tmp_path, capsys):
    """Its value does not compare with later ones; its checkpoint may be all one has."""
    run(tmp_path, 4, Planned({2: 5.0, 4: 1.0}), patience=None)
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 2
    second, third = {4: 0.0, 6: 1.0, 8: 0.5}, {8: 0.0, 10: 2.0, 12: 1.0}
    for last, values in ((8, second), (12, third)):
        capsys.readouterr()
        run(tmp_path, last, Planned(values), patience=None)
        shown = capsys.readouterr().out
        assert "step 2" in shown and "its checkpoint stays" in shown
    best = json.loads((tmp_path / "best.json").read_text())
    assert (best["step"], best["earlier_steps"]) == (10, [2, 6])
    assert available_steps(tmp_path / "checkpoints") == [2, 6, 10, 12]
    # A run that looks for no best step leaves them; one that has gone is not named.
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    run(tmp_path, 14, Planned({14: 0.0}), patience=None, best=None)
    shown = capsys.readouterr().out
    assert "step 2, 10 was the best, and Checkpointing.best is None now" in shown
    assert available_steps(tmp_path / "checkpoints") == [2, 10, 14]


@pytest.mark.slow
def test_a_run_killed_before_its_evaluation_does_it_when_it_goes_on(tmp_path):
    class Killed(Planned):
        def run(self, *args, **kwargs):
            raise KeyboardInterrupt

    values = {2: 1.0, 4: 2.0}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 4, Killed(values), patience=None)
    evaluation = Planned(values)
    run(tmp_path, 4, evaluation, patience=None)
    assert evaluation.steps == [2, 4]


def test_results_of_an_earlier_run_are_not_taken_for_this_one(tmp_path):
    result = {"task": "toy", "split": "dev", "step": 5, "metrics": {}}
    write_result(str(tmp_path), "metrics", result)
    with pytest.raises(ValueError, match="evaluations of an earlier run"):
        run(tmp_path, 4, Planned({}), patience=None)


@pytest.mark.parametrize("text", ["", "[]", '{"step": 2, "earlier_steps": [true]}'])
def test_a_damaged_file_loses_no_checkpoint(tmp_path, text):
    run(tmp_path, 4, Planned({2: 5.0, 4: 1.0}), patience=None)
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(ValueError, match="best.json is damaged.*[Rr]emove it"):
        run(tmp_path, 6, Planned({6: 0.0}), patience=None)
    assert available_steps(tmp_path / "checkpoints") == [2, 4]
