"""A run makes its task, its codec and its restored model, of gin's one binding each."""

import pytest

import remixer_tf.tasks  # noqa: F401
from remixer_tf import configuration
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.run import Run
from tests.data.toy_tasks import rows, toy_task
from tests.evaluation.shift import make_shift, save

LENGTHS = {"inputs": 8, "targets": 6}


def test_task_and_codec():
    vocabulary = byte_vocabulary()
    run = Run(make_shift, "mini_cogs", LENGTHS, vocabulary)
    features = run.get_task().output_features
    assert all(feature.vocabulary == vocabulary for feature in features.values())
    assert run.codec(make_shift()).lengths == LENGTHS
    with pytest.raises(UserError, match="Set Run.task"):
        Run(make_shift).get_task()


def test_restores_a_step(tmp_path):
    save(tmp_path, 5, shift=0.0)
    save(tmp_path, 9)
    run = Run(make_shift)
    assert run.restore(str(tmp_path))[1] == 9
    engine, step = run.restore(str(tmp_path), 5)
    assert step == 5 and float(engine.model.shift) == 0

    def refuse(model):
        raise UserError(f"not {model.name}")

    with pytest.raises(UserError, match="^not "):
        run.restore(str(tmp_path), 6, refuse)  # before it looks for the step
    with pytest.raises(FileNotFoundError, match="step 6"):
        run.restore(str(tmp_path), 6)


def test_an_evaluation_has_the_runs_data_unless_given_its_own():
    data = {"train": rows([(2, 2)]), "dev": rows([(3, 2)])}
    task, other = toy_task(data, name="of_run"), toy_task(data, name="other")
    run = Run(make_shift, task, LENGTHS)
    evaluation = LossEvaluation(run=run)
    assert evaluation.task is task and evaluation.feature_lengths == LENGTHS
    lengths = {"inputs": 2, "targets": 2}
    evaluation = LossEvaluation(other, run=run, feature_lengths=lengths)
    assert evaluation.task is other and evaluation.feature_lengths == lengths
    for given in ({"task": task}, {"feature_lengths": LENGTHS}):
        with pytest.raises(UserError, match="a run, or a task and feature_lengths"):
            LossEvaluation(**given)


@pytest.mark.usefixtures("clear_gin")
def test_gin_binds_each_once():
    for model in ("t5_1_1_tiny", "gmlp_lm_tiny", "gmlp_tiny_mlm", "gmlp_vision_tiny"):
        run = "imagenet" if "vision" in model else "own_task"
        settings = configuration.read(
            [f"models/{model}.gin", f"runs/{run}.gin"], [], complete=False
        )
        lines = settings.text().splitlines()
        for name in ("model", "engine", "dtype_policy"):
            bound = [line for line in lines if f".{name} = " in line]
            assert len(bound) == 1 and bound[0].startswith("Run."), bound
