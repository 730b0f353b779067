"""Training, as gin configures it."""

from remixer_tf.configuration.gin_files import (
    bind_relative_paths,
    call,
    configuration_str,
    hyperparameters,
)
from remixer_tf.configuration.result_bindings import evaluation_bindings


def train(model_dir, dry_run=False, layer_checks=True):
    """Calls `training.loop.train` with what the configuration sets.

    Args:
        model_dir: folder of the run.
        dry_run, layer_checks: see `Launch`.
    """
    from remixer_tf.training.settings import Launch

    def configuration():
        bind_relative_paths(model_dir)
        text = configuration_str()
        return text, hyperparameters(text)

    run = call("Run")
    bindings = evaluation_bindings()
    launch = Launch(model_dir, configuration, bindings, dry_run, layer_checks)
    names = ("Schedule", "Checkpointing", "Objective")
    settings = {name.lower(): call(name) for name in names}
    return call("train", run, launch, **settings)
