"""Checkpoints: {path: variable}, with their coverage checked both ways.

`tf.train.Checkpoint(model=model)` leaves out layers held in Python lists and the
states of random generators without a word, so every variable is listed here by its
path, and the list is compared with the model and with the file.

A checkpoint is a folder that appears, whole, by being renamed:

    <model_dir>/checkpoints/<step>/state.*         model, optimizer, step
    <model_dir>/checkpoints/<step>/arrays/         model, optimizer, if orbax writes
    <model_dir>/checkpoints/<step>/data-0-of-1.*   position in each part of the data
    <model_dir>/checkpoints/writing-<step>/        until then
    <model_dir>/checkpoints/0/state.*              where a run starts: the model alone
    <model_dir>/checkpoints/damaged-<step>/        what could not be read
"""

import contextlib
import os
import re
import threading

import keras
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints import sharded
from remixer_tf.checkpoints.host import Host
from remixer_tf.checkpoints.reading import (
    assign_all,
    available_steps,
    check_coverage,
    checkpoint_directory,
    checkpoint_path,
    is_random_state,
    named_variables,
    read_all,
    saved_value,
    shorten,
)


class Checkpoints:
    """Saves and restores everything that a run needs to continue exactly.

    Training waits only for the copy of the variables: a thread writes them. Its
    memory is that of the variables once more, while it writes. Use it as a context
    manager around the training loop.

    Args:
        model_dir: folder of the run, which all hosts share.
        variables, values: functions that return {group: {path: `keras.Variable`}}, and
            {group: {path: array}} of what they hold; see `Engine`. All hosts call
            `values`.
        iterator: this host's `tf.data` iterator.
        keep: how many of the newest checkpoints stay.
        keep_period: checkpoints of steps that it divides stay for good; None for none.
        host: the `Host` that this process is; None for the only one. Host 0 writes
            model and optimizer, one of the hosts that read a part of the data the
            position in it.
        checkpoint_format: "tensorflow", or "orbax" to have every host write the parts
            of model and optimizer that its devices hold; see `sharded`. It does not
            matter to reading.

    Attributes:
        best_step: int, a step whose checkpoint stays, or None.
        has_start: bool, whether the folder has a checkpoint of step 0, see
            `write_weights`.
    """

    def __init__(
        self,
        model_dir,
        variables,
        values,
        iterator,
        *,
        keep=3,
        keep_period=None,
        host=None,
        checkpoint_format="tensorflow",
    ):
        self.directory = checkpoint_directory(model_dir)
        self.best_step = None
        self.has_start = 0 in available_steps(self.directory)
        self._variables = variables
        self._values = values
        self._data = tf.train.Checkpoint(iterator=iterator)
        self._data_shapes = _describe(iterator.element_spec)
        self._groups = variables()
        self._keep = keep
        self._keep_period = keep_period
        self._host = host or Host()
        self._by_orbax = checkpoint_format == "orbax"
        self._last_step = 0
        self._thread = None
        self._error = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        """Lets the checkpoint that is being written be finished, whatever happened."""
        if self._thread:
            self._thread.join()

    def save(self, step):
        """Copies everything, and starts writing the checkpoint of `step`.

        The step that was saved or restored last is not written again.

        Raises:
            OSError: this or the previous checkpoint could not be written.
            ValueError: the model or optimizer has made variables since, which the
                checkpoint would miss.
        """
        self.wait()
        if step == self._last_step:
            return
        self._last_step = step
        for group, now in self._variables().items():
            late = sorted(now.keys() ^ self._groups[group].keys())
            if late:
                raise ValueError(
                    f"The {group}'s variables are not those it had when training "
                    f"started. Changed: {shorten(late)}. Make every variable in "
                    "build()."
                )
        folder = os.path.join(self.directory, f"writing-{step}")
        with self._noted_error():
            if self._host.index == 0:
                tf.io.gfile.makedirs(folder)
        self._host.barrier()
        with self._noted_error():
            if self._host.saves_position:
                self._data.write(self._data_path(folder))
        self._host.barrier()  # The positions of all hosts are there.
        finish, state = self._copy(folder, step)
        if not self._error:
            self._thread = threading.Thread(
                target=self._write,
                args=(finish, state, folder, step),
                name="checkpoint",
            )
            self._thread.start()
        self.check()

    @contextlib.contextmanager
    def _noted_error(self):
        """Keeps an error for `check`: the other hosts wait at the next barrier."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            self._error = error

    def _copy(self, folder, step):
        """Copies everything; returns what waits for orbax, and what TensorFlow writes.

        All hosts call it.
        """
        finish, groups = (lambda: None), {}
        if self._by_orbax:
            arrays = {
                group: {path: variable.value for path, variable in variables.items()}
                for group, variables in self._variables().items()
            }
            try:
                finish = sharded.save(folder, arrays)
            except (OSError, ValueError) as error:  # ValueError is tensorstore's.
                self._error = error
        else:
            groups = self._values()
        if self._host.index:
            return finish, None
        with tf.device("CPU"):
            groups = {
                group: {path: tf.Variable(value) for path, value in values.items()}
                for group, values in groups.items()
            }
            return finish, tf.train.Checkpoint(
                step=tf.Variable(step, dtype=tf.int64),
                data_shapes=tf.Variable(self._data_shapes),
                **groups,
            )

    def _write(self, finish, state, folder, step):
        """Writes, makes the checkpoint appear, and removes old ones."""
        try:
            finish()
            if self._host.index:
                return
            if self._by_orbax:
                sharded.write_checksums(folder)
            state.write(os.path.join(folder, "state"))
            tf.io.gfile.rename(folder, checkpoint_path(self.directory, step))
            for old in self._superfluous():
                tf.io.gfile.rmtree(checkpoint_path(self.directory, old))
        except Exception as error:  # Shown by `check`, in the main thread.
            self._error = error

    def _superfluous(self):
        """Returns the steps whose checkpoints need not stay."""
        return [
            step
            for step in available_steps(self.directory)[: -self._keep]
            if step != self.best_step
            and not (self._keep_period and step % self._keep_period == 0)
        ]

    def check(self):
        """Raises OSError if a checkpoint could not be written."""
        if self._error is None:
            return
        error, self._error = self._error, None
        steps = available_steps(self.directory)
        raise OSError(
            f"A checkpoint could not be written to {self.directory}: "
            f"{getattr(error, 'message', error)}. "
            + (
                f"That of step {steps[-1]} is good, and the same command goes on from "
                "it. "
                if steps
                else "There is none yet. "
            )
            + "Is the disk full, or the folder not writable?"
        )

    def wait(self):
        """Waits until the checkpoint is written.

        Raises:
            OSError: it could not be.
        """
        if self._thread:
            self._thread.join()
            self._thread = None
        self.check()

    def restore(self, restart_data_at=None):
        """Restores the newest checkpoint that can be read, and returns its step.

        That of step 0 leaves dropout's random states as they are: another rate than
        where it was written is no other model.

        Args:
            restart_data_at: int, the step of a checkpoint whose position in the data is
                left aside, so that the data starts anew; None for none.

        Returns:
            int, 0 if the folder holds no checkpoint, or that of step 0 alone.

        Raises:
            OSError: there are checkpoints, and none can be read.
            ValueError: the checkpoint holds other variables than this run, or the
                position in other data, or in data in another number of parts.
        """
        steps = [step for step in available_steps(self.directory) if step]
        whole = (s for s in reversed(steps) if self._is_readable(s))
        step = next(whole, 0)
        self._host.barrier()  # All hosts have seen the same folder.
        if self._host.index == 0:
            self._clean(damaged=[s for s in steps if s > step])
        if steps and not step:
            raise OSError(
                f"None of the checkpoints in {self.directory} can be read (steps "
                f"{', '.join(map(str, steps))}). They are called damaged-* now. Put a "
                "good copy there, or set another --model_dir to start from scratch."
            )
        if not step:
            if self.has_start:
                self._restore_start()
            return 0
        folder = checkpoint_path(self.directory, step)
        check_coverage(folder, self._groups)
        assign_all(folder, self._groups)
        if step != restart_data_at:
            self._restore_data(folder, step)
        self._last_step = step
        return step

    def _restore_start(self):
        folder = checkpoint_path(self.directory, 0)
        variables = {
            name: variable
            for name, variable in self._groups["model"].items()
            if not is_random_state(name)
        }
        check_coverage(folder, {"model": variables}, random_states=False)
        assign_all(folder, {"model": variables})

    def _is_readable(self, step):
        """Reads every file of a checkpoint, whose checksums TensorFlow compares."""
        folder = checkpoint_path(self.directory, step)
        try:
            names = [n for n in tf.io.gfile.listdir(folder) if n.endswith(".index")]
            parts = {n for n in names if n.startswith("data-")}
            if "state.index" not in names or len(parts) != _num_parts(parts):
                raise OSError(f"files are missing, there are {sorted(names)}")
            for name in names:
                read_all(os.path.join(folder, name.removesuffix(".index")))
            if sharded.is_sharded(folder):
                sharded.check_checksums(folder)
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            logging.error(
                "The checkpoint %s cannot be read and is left aside: %s",
                folder,
                str(getattr(error, "message", error)).splitlines()[0],
            )
            return False
        return True

    def _clean(self, damaged):
        """Renames what cannot be read, and removes what a kill left half written."""
        for step in damaged:
            target = os.path.join(self.directory, f"damaged-{step}")
            if tf.io.gfile.exists(target):
                tf.io.gfile.rmtree(target)
            tf.io.gfile.rename(checkpoint_path(self.directory, step), target)
        if tf.io.gfile.isdir(self.directory):
            for name in tf.io.gfile.listdir(self.directory):
                if name.startswith("writing-"):
                    tf.io.gfile.rmtree(os.path.join(self.directory, name))

    def _restore_data(self, folder, step):
        """Goes to the checkpoint's position in the data; raises if it is in other."""
        reader = tf.train.load_checkpoint(os.path.join(folder, "state"))
        saved = reader.get_tensor("data_shapes/.ATTRIBUTES/VARIABLE_VALUE").decode()
        names = tf.io.gfile.listdir(folder)
        parts = _num_parts(n for n in names if n.startswith("data-"))
        here = self._host.shard_info.num_shards
        reason = None
        if saved != self._data_shapes or parts != here:
            reason = (
                f"\n  saved: {saved}, read in {parts} part(s)\n"
                f"  here: {self._data_shapes}, read in {here} part(s)\n"
            )
        else:
            try:
                self._data.read(self._data_path(folder)).assert_consumed()
            except (AssertionError, ValueError, tf.errors.OpError) as error:
                message = str(getattr(error, "message", error))
                reason = f" ({message.splitlines()[0]}) "
        if reason:
            raise ValueError(
                f"The checkpoint {folder} holds a position in other data.{reason}"
                "Continue exactly with the task, batch size, lengths, steps_per_call "
                "and division among hosts it was trained with. Or set "
                f"--gin.train.restart_data_at={step} to keep weights, optimizer and "
                "step, and start the data anew. Or use another --model_dir."
            )

    def _data_path(self, folder):
        """Returns the path of the position in this host's part of the data."""
        shard = self._host.shard_info
        return os.path.join(folder, f"data-{shard.index}-of-{shard.num_shards}")


def write_weights(model_dir, model, step=0):
    """Writes a checkpoint of a model alone. A run can start from that of step 0.

    Args:
        model_dir: folder of the run.
        model: a built `keras.Model`.
        step: int, of which there is no checkpoint.
    """
    folder = checkpoint_path(checkpoint_directory(model_dir), step)
    variables = named_variables(model.variables)
    values = {name: saved_value(variable) for name, variable in variables.items()}
    if keras.backend.backend() != "tensorflow":
        values = {name: tf.Variable(value) for name, value in values.items()}
    tf.train.Checkpoint(step=tf.Variable(step, dtype=tf.int64), model=values).write(
        os.path.join(folder, "state")
    )


def _num_parts(names):
    """Returns the number of parts in names such as 'data-0-of-2.index'."""
    return int(re.match(r"data-\d+-of-(\d+)", min(names, default="data-0-of-1"))[1])


def _describe(element_spec):
    """Returns the names and shapes of the data's elements."""
    return ", ".join(f"{k} {list(v.shape)}" for k, v in sorted(element_spec.items()))
