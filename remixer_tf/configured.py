"""What commands and loaded runs make of a `Configuration`."""

from remixer_tf.checkpoints.vocabularies import name_copies
from remixer_tf.configuration import hyperparameters
from remixer_tf.configuration.result_bindings import evaluation_bindings
from remixer_tf.data.pipeline import data_of, train_dataset
from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.jax.layout import Layout
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.objectives.objective import Objective
from remixer_tf.run import Run
from remixer_tf.tasks.folders import data_folders
from remixer_tf.training.loop import train
from remixer_tf.training.settings import Checkpointing, Launch, Schedule, Watching


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


def evaluate_run(configuration, model_dir, step=None, force=False):
    """Evaluates checkpoints of a run in a folder, see `evaluate`."""
    bindings = evaluation_bindings(configuration)
    given = {"step": step, "bindings": bindings, "force": force}
    with data_folders(configuration.data_folders()):
        return configuration.call(evaluate, configuration.call(Run), model_dir, **given)
