"""Loggers: services that get the numbers of metrics.jsonl.

gin binds them in one line, such as `Watching.loggers = [@WandbLogger()]`. A logger of
your own has the same three methods.
"""

import hashlib
import importlib.util
import os
import re
import secrets

from remixer_tf.errors import library


class WandbLogger:
    """Sends a run's numbers to Weights & Biases.

    W&B's environment variables set all else, such as WANDB_ENTITY, WANDB_RUN_GROUP, and
    WANDB_MODE=offline for a machine without a network. `wandb login` keeps the key, or
    WANDB_API_KEY has it; it is not written to the run's folder.

    Args:
        project: str; None for WANDB_PROJECT, or W&B's default.
        name: str, of the run in W&B; None for the name of the run's folder.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(self, project=None, name=None):
        self._wandb = library("wandb", "WandbLogger", "wandb")
        self._project = project
        self._name = name

    def start(self, model_dir, run_id, hyperparameters):
        """Starts or resumes the run of the folder `model_dir` in the service.

        `run_id` is what `start` returned in an earlier process, None at first. The
        hyperparameters are a dictionary of numbers and strings. Returns a str, by which
        a later process finds the run.
        """
        self._run = self._wandb.init(
            project=self._project,
            name=self._name or _name(model_dir),
            id=run_id or secrets.token_hex(4),
            resume="allow",
            dir=None if "://" in model_dir else model_dir,
            config=hyperparameters,
            allow_val_change=True,
        )
        # W&B's own steps only grow, and a run may resume from an earlier checkpoint.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def log(self, step, values):
        """Sends a dictionary of numbers."""
        self._run.log({"step": step, **values})

    def finish(self, status):
        """Ends: "finished", "stopped" by a signal, or "failed"."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowLogger:
    """Sends a run's numbers to MLflow, as `WandbLogger` does to W&B.

    MLflow's environment variables set all else: MLFLOW_TRACKING_URI the server, and
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD how to log in. Without a
    server, MLflow writes to a database in the working directory. Its client alone,
    mlflow-skinny, has no database: it writes files into `mlruns` there.

    A character of a metric's name that MLflow refuses is sent as its number, as XML
    does: "C++" is "C_x002B__x002B_".

    Args:
        experiment: str; None for MLFLOW_EXPERIMENT_NAME, or MLflow's default.
        name: str, of the run in MLflow; None for the name of the run's folder.

    Raises:
        ImportError: mlflow is not installed.
    """

    def __init__(self, experiment=None, name=None):
        self._mlflow = library("mlflow", "MlflowLogger", "mlflow")
        self._experiment = experiment
        self._name = name

    def start(self, model_dir, run_id, hyperparameters):
        """Starts or resumes the run; see `WandbLogger.start`."""
        given = self._mlflow.is_tracking_uri_set()
        if not given and importlib.util.find_spec("sqlalchemy") is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            self._mlflow.set_tracking_uri(os.path.abspath("mlruns"))
        if self._experiment is not None:
            self._mlflow.set_experiment(self._experiment)
        name = self._name or _name(model_dir)
        run = self._mlflow.start_run(run_id=run_id, run_name=name)
        if run_id is None:  # MLflow's parameters cannot change.
            names = mlflow_names(hyperparameters)
            values = {names[name]: value for name, value in hyperparameters.items()}
            self._mlflow.log_params(values)
        return run.info.run_id

    def log(self, step, values):
        """Sends a dictionary of numbers."""
        names = mlflow_names(values)
        pairs = [(names[name], value) for name, value in values.items()]
        for start in range(0, len(pairs), _MOST_METRICS):
            part = dict(pairs[start : start + _MOST_METRICS])
            self._mlflow.log_metrics(part, step=step)

    def finish(self, status):
        """Ends: "finished", "stopped" by a signal, or "failed"."""
        states = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._mlflow.end_run(states[status])


_MOST_METRICS = 1000  # that MLflow takes in a call
_LONGEST_NAME = 250  # of a metric in MLflow


def mlflow_names(names):
    """Returns a name that MLflow takes for each name of a metric, a dictionary.

    MLflow takes letters, digits and "_-. :/" in paths without empty parts, "." and
    "..". Its store of files has a file for each metric, so that no name may be a folder
    of another's: in "f1" and "f1/yes" the second one becomes "f1.yes". A name that is
    too long, or that another metric has, ends with a part of its SHA-256.
    """
    paths = {name: _mlflow_path(name, names) for name in names}
    files, folders, found = set(), set(), {}
    # Those that stay as they are come first.
    for name, path in sorted(paths.items(), key=lambda pair: pair[0] != pair[1]):
        above = _folders(path)
        taken = path in files | folders or not files.isdisjoint(above)
        if taken or len(path) > _LONGEST_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            path = f"{path.replace('/', '.')[: _LONGEST_NAME - 9]}-{digest}"
            above = set()
        files.add(path)
        folders |= above
        found[name] = path
    return {name: found[name] for name in names}


def _mlflow_path(name, names):
    """Returns a name with the characters that MLflow takes; see `mlflow_names`."""
    parts = [re.sub(r"[^\w\-. :]", _as_number, part) for part in name.split("/")]
    parts = [re.sub(r"^$|^\.\.?$", _as_number, part) for part in parts]
    path = parts[0]
    for i, part in enumerate(parts[1:], start=1):
        path += ("." if "/".join(name.split("/")[:i]) in names else "/") + part
    return path


def _folders(path):
    """Returns the set of the folders above a path: "a" and "a/b" of "a/b/c"."""
    return {path[: match.start()] for match in re.finditer("/", path)}


def _as_number(match):
    return "".join(f"_x{ord(letter):04X}_" for letter in match[0]) or "_x0000_"


def _name(model_dir):
    return os.path.basename(os.path.normpath(model_dir))
