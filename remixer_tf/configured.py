"""What commands and loaded runs make of a `Configuration`."""

from remixer_tf.checkpoints.vocabularies import name_copies
from remixer_tf.configuration import hyperparameters
from remixer_tf.configuration.result_bindings import evaluation_bindings
from remixer_tf.configuration.values import TWO_FILES
from remixer_tf.data.pipeline import batch_shapes, data_of, train_dataset
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.jax.layout import Layout, declare_run
from remixer_tf.errors import UserError
from remixer_tf.evaluation.best import givers
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.objectives.objective import Objective, try_shapes
from remixer_tf.run import Run
from remixer_tf.tasks.folders import data_folders
from remixer_tf.training.loop import train
from remixer_tf.training.settings import Checkpointing, Launch, Schedule, Watching
from remixer_tf.training.timed_batches import check_vocabulary_size


def layout_of(configuration):
    """Returns the `Layout` that a configuration gives the `JaxEngine`."""
    names = "mesh_shape", "layout_rules"
    values = {name: configuration.value(JaxEngine, name, "") for name in names}
    return Layout(**values)


def run_without_data(configuration):
    """Returns the `Run` without what may have no files: task, lengths, vocabulary."""
    model = configuration.value(Run, "model")
    return configuration.call(Run, model, None, None, None)


def data_of_run(configuration):
    """Returns the task and the lengths of a run's data; it may have no model yet."""
    own = (configuration.value(train_dataset, n) for n in ("task", "feature_lengths"))
    return data_of(configuration.call(Run, model=None), *own)


def train_run(configuration, model_dir, **options):
    """Trains the run of a configuration in a folder; the options are `Launch`'s."""

    def operative():
        text = name_copies(configuration.seen_from(model_dir), model_dir)
        return text, hyperparameters(text)

    options["watching"] = configuration.call(Watching)
    bindings = evaluation_bindings(configuration)
    with data_folders(configuration.data_folders()):
        return configuration.call(
            train,
            configuration.call(Run),
            Launch(model_dir, operative, bindings, **options),
            schedule=configuration.call(Schedule),
            checkpointing=configuration.call(Checkpointing),
            objective=configuration.call(Objective),
        )


def check_train(configuration, metric=None):
    """Raises a UserError for a configuration that `train_run` would refuse.

    The model is declared, and its objective computed on the shapes of a batch. Training
    data are not read. `metric` is one that the run's evaluations must give, in their
    data; None for none.
    """
    run = run_without_data(configuration)
    if run.model is None:
        raise UserError(f"Run needs a value for 'model'. {TWO_FILES}")
    schedule = configuration.call(Schedule)
    objective = configuration.call(Objective)
    optimizer = configuration.value(train, "optimizer")
    model, _ = declare_run(run.make_model, optimizer, run.dtype_policy)
    dataset = configuration.value(train, "dataset")
    with data_folders(configuration.data_folders()):
        if getattr(dataset, "__wrapped__", None) is train_dataset:  # else its data say
            task, lengths = data_of_run(configuration)
            check_vocabulary_size(describe_vocabularies(task), model)
            batching = configuration.value(train_dataset, "batching")
            try_shapes(model, objective, batch_shapes(batching, lengths))
        evaluations = configuration.value(train, "evaluations", ())
        best = configuration.call(Checkpointing).best
        schedule.check_evaluations(evaluations, best)
        if metric and not evaluations:
            raise UserError(
                f"--metric={metric} needs an evaluation, and there is none. Add "
                "--gin.train.evaluations=[@LossEvaluation()]."
            )
        if metric:
            givers(evaluations, metric, "--metric=")


def evaluate_run(configuration, model_dir, step=None, force=False):
    """Evaluates checkpoints of a run in a folder, see `evaluate`."""
    bindings = evaluation_bindings(configuration)
    given = {"step": step, "bindings": bindings, "force": force}
    with data_folders(configuration.data_folders()):
        return configuration.call(evaluate, configuration.call(Run), model_dir, **given)
