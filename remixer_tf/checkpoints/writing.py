"""Writes checkpoints, and restores a run from the newest whole one.

`tf.train.Checkpoint(model=model)` silently leaves out layers in Python lists and the
states of random generators. So a checkpoint lists every variable by its path, and the
list is compared with the model and with the file. Below <model_dir>/checkpoints/:

    <step>/state.*         model, optimizer, step.
    <step>/arrays/         model and optimizer, if orbax writes them.
    <step>/data-0-of-1.*   the position in each part of the data, see `save`.
    <step>/summary.json    the run's summary so far.
    <step>/checksums.json  of all these files, see `checksums`.
    0/state.*              the weights that a run starts with.
    writing-<step>/        a checkpoint until it is whole.
    removing-<step>/       an old checkpoint while it is deleted.
    damaged-<step>/        a damaged checkpoint.

Frozen variables are in 0/ alone. Later checkpoints have its hash, `base`.
"""

import contextlib
import functools
import os
import re
import threading

import keras
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints import sharded
from remixer_tf.checkpoints.checksums import has_checksums, write_checksums
from remixer_tf.checkpoints.damage import DamagedError, first_line
from remixer_tf.checkpoints.reading import (
    available_steps,
    check_complete,
    check_whole,
    checkpoint_directory,
    checkpoint_path,
    hash_checkpoint,
    is_random_state,
    named_variables,
    num_parts,
    plain_path,
    restore_variables,
    saved_value,
)
from remixer_tf.checkpoints.whole_folder import copy_file, read_json, write_json
from remixer_tf.errors import MissingFileError, StorageError, UserError, shorten
from remixer_tf.models.adapters import of_adapter
from remixer_tf.waiting import Waiter

_POSITION = "position/.ATTRIBUTES/VARIABLE_VALUE"  # the step of an earlier position


class _HangsError(Exception):
    """The position in the data does not come."""


class Checkpoints:
    """Saves and restores everything that a run needs to continue exactly.

    Training waits for the copy of the variables only: a thread writes them. Use it as a
    context manager around the training loop.

    Host 0 writes model and optimizer. With `Engine.checkpoint_format` "orbax" every
    host writes the parts on its devices, see `sharded`. For each part of the data, one
    host that reads it writes the position.

    Args:
        model_dir: folder of the run, which all hosts share.
        engine: the built `Engine`.
        iterator: this host's `tf.data` iterator.
        keep: int, how many of the newest checkpoints stay.
        keep_period: int. Checkpoints of its multiples stay for good. None for none.

    Attributes:
        best_step: int, a step whose checkpoint stays, or None.
        earlier_best: list of int, steps whose checkpoints stay as well.
        has_start: bool, whether there is a checkpoint of step 0, see `write_weights`.
        summary: dictionary, the restored checkpoint's summary, or {}.
        ends: function that says whether the run ends, see `save`.
    """

    def __init__(self, model_dir, engine, iterator, keep=3, keep_period=None):
        self.directory = checkpoint_directory(model_dir)
        self.best_step, self.earlier_best = None, []
        self.summary = {}
        self.has_start = 0 in available_steps(self.directory)
        self._engine = engine
        self._data = tf.train.Checkpoint(iterator=iterator)
        self._data_shapes = ", ".join(
            f"{key} {list(spec.shape)}"
            for key, spec in sorted(iterator.element_spec.items())
        )
        self._groups = engine.variables()
        self._frozen = self._groups.get("frozen", {})
        self._keep = keep
        self._keep_period = keep_period
        self._host = engine.host
        self._by_orbax = engine.checkpoint_format == "orbax"
        self._last_step = 0
        # The step at which the data had their last saved position, and its checkpoint:
        # None at first, where the data are at their start.
        self._position = 0, None
        self.ends = lambda: False
        self._thread = None
        self._error = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.join()

    def save(self, step, summary=None, hangs=False):
        """Copies everything, and starts writing the checkpoint of `step`.

        All hosts call it. The step that was saved or restored last is not written
        again. The checkpoint keeps `summary`, a dictionary for JSON or None for {}. If
        a read of the data `hangs`, their position is unknown: the checkpoint has the
        last one, and a restart reads on from there up to this step. So it is if the
        position does not come, and `ends()` says that the run ends.

        Raises OSError if this or the previous checkpoint could not be written on a
        host, and a ValueError if a restart would lack new variables.
        """
        self.wait()
        if step == self._last_step:
            return
        self._last_step = step
        for group, now in self._engine.variables().items():
            if late := sorted(now.keys() ^ self._groups[group].keys()):
                raise UserError(
                    f"The {group}'s variables are not those it had when training "
                    f"started. Changed: {shorten(late)}. Make every variable in "
                    "build()."
                )
        groups = {k: x for k, x in self._engine.variables().items() if k != "frozen"}
        try:
            self._start_writing(step, groups, summary, hangs)
        except _HangsError:
            self._start_writing(step, groups, summary, hangs=True)

    def save_start(self):
        """Writes the checkpoint of step 0 if there are frozen variables, and waits.

        All hosts call it before the first step. See `save` for errors.
        """
        if self._frozen and not self.has_start:
            model = self._groups["model"] | self._frozen
            start = {k: v for k, v in model.items() if not of_adapter(k)}
            self._start_writing(0, {"model": start})
            self.wait()
            self.has_start = True

    def _start_writing(self, step, groups, summary=None, hangs=False):
        """Copies {group: {path: variable}}, and starts writing a checkpoint."""
        # A thread that hangs may still write to the other name.
        name = f"writing-{step}-hangs" if hangs else f"writing-{step}"
        folder = os.path.join(self.directory, name)
        with self._noted_error():
            if self._host.index == 0:
                if tf.io.gfile.exists(folder):
                    tf.io.gfile.rmtree(folder)
                tf.io.gfile.makedirs(folder)
                write_json(_summary_path(folder), summary or {})
        self._agree()
        with self._noted_error():
            if step and hangs:
                self._copy_position(folder)
            elif step and self._host.saves_position:
                write = functools.partial(self._data.write, self._data_path(folder))
                with Waiter(write, self._leave) as wait:
                    wait("the position in the data: their source is slow, or hangs")
        self._agree()  # All hosts have written their positions.
        finish, state = self._copy(folder, step, groups)
        if hangs and state is not None:
            state.position = tf.Variable(self._position[0], dtype=tf.int64)
        elif step:
            self._position = step, checkpoint_path(self.directory, step)
        self._agree()
        arguments = finish, state, folder, step
        self._thread = threading.Thread(target=self._write, args=arguments)
        self._thread.start()

    def _leave(self):
        if self.ends():
            raise _HangsError

    def _copy_position(self, folder):
        """Copies the last position in the data, if there is one, into `folder`."""
        _, last = self._position
        for name in tf.io.gfile.listdir(last) if last else ():
            if name.startswith("data-"):
                copy_file(os.path.join(last, name), os.path.join(folder, name))

    def _agree(self):
        """Raises OSError on all hosts if one has noted an error."""
        failed = self._host.gather(int(self._error is not None))
        self.check()
        if any(failed):
            self._remove_unfinished()
            raise StorageError(
                f"Process {failed.index(1)} could not write its part of a checkpoint "
                f"to {self.directory}; its output has the reason. Correct that, and "
                "start all processes again: they resume from the checkpoint before."
            )

    @contextlib.contextmanager
    def _noted_error(self):
        """Keeps an error for `_agree`, where the other hosts wait."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            self._error = error

    def _copy(self, folder, step, groups):
        """Copies groups. Returns a function that waits for orbax, and the state."""
        finish, copies = (lambda: None), {}
        if self._by_orbax:
            arrays = {
                group: {path: variable.value for path, variable in variables.items()}
                for group, variables in groups.items()
            }
            try:
                finish = sharded.save(folder, arrays)
            except (OSError, ValueError) as error:  # ValueError is tensorstore's.
                self._error = error
        else:
            copies = {
                group: {k: saved_value(v, self._engine.to_numpy) for k, v in x.items()}
                for group, x in groups.items()
            }
        if self._host.index:
            return finish, None
        with tf.device("CPU"):
            copies = {
                group: {path: tf.Variable(value) for path, value in values.items()}
                for group, values in copies.items()
            }
            if step and self._frozen:
                start = checkpoint_path(self.directory, 0)
                copies["base"] = tf.Variable(hash_checkpoint(start))
            return finish, tf.train.Checkpoint(
                step=tf.Variable(step, dtype=tf.int64),
                data_shapes=tf.Variable(self._data_shapes),
                **copies,
            )

    def _write(self, finish, state, folder, step):
        """Writes a checkpoint, renames its folder, and removes old checkpoints."""
        try:
            finish()
            if self._host.index:
                return
            state.write(os.path.join(folder, "state"))
            write_checksums(folder)
            check_complete(folder)
            _sync(folder)
            tf.io.gfile.rename(folder, checkpoint_path(self.directory, step))
            _sync(self.directory, below=False)
            for old in available_steps(self.directory)[: -self._keep]:
                for_good = self._keep_period and old % self._keep_period == 0
                for_good = for_good or (old == 0 and self._frozen)
                best = self.best_step, *self.earlier_best
                if old not in best and not for_good:
                    self._remove(old)
        except Exception as error:  # `check` raises it in the main thread.
            self._error = error

    def _remove(self, step):
        """Removes a checkpoint, later if another process still reads it."""
        target = os.path.join(self.directory, f"removing-{step}")
        try:
            if not tf.io.gfile.exists(target):
                tf.io.gfile.rename(checkpoint_path(self.directory, step), target)
            tf.io.gfile.rmtree(target)
        except (OSError, tf.errors.OpError) as error:
            logging.warning(
                "%s is not removed yet (%s). The next start removes it.",
                target,
                first_line(error),
            )

    def check(self):
        """Raises OSError if a checkpoint could not be written."""
        if self._error is None:
            return
        error, self._error = self._error, None
        self._remove_unfinished()  # Otherwise a full disk stays full.
        there = "There is none yet."
        if steps := available_steps(self.directory):
            there = (
                f"The checkpoint of step {steps[-1]} is good: run the same command to "
                "resume from it."
            )
        raise StorageError(
            f"A checkpoint could not be written to {self.directory}: "
            f"{first_line(error)}. {there} Is the disk full, or the folder not "
            "writable?"
        )

    def wait(self):
        """Waits until all hosts have written; raises OSError if one could not."""
        self.join()
        self._agree()

    def join(self):
        """Waits for this host's thread, which on host 0 finishes the checkpoint."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def restore(self, restart_data_at=None, clean=True):
        """Restores the newest whole checkpoint, and returns its step.

        All hosts call it, and host 0 chooses the step: 0 if there is no checkpoint, or
        only that of step 0, which does not set the random states of dropout.

        Args:
            restart_data_at: int, the step of a checkpoint whose position in the data is
                ignored, so that the data starts anew; None for none.
            clean: bool, whether to rename damaged checkpoints and to remove unfinished
                ones.

        Raises:
            OSError: a checkpoint cannot be read, or all are damaged.
            ValueError: the checkpoint has other variables than this run, or a position
                in other data or in another number of parts.
        """
        step, error = -1, None
        if self._host.index == 0:
            try:
                step, damaged = self._choose()
                if clean:
                    self._clean(damaged)
            except (OSError, tf.errors.OpError) as problem:
                error = problem
        step = self._host.gather(-1 if error else step)[0]
        self.has_start = bool(self._host.gather(int(self.has_start))[0])
        if error:
            raise error
        if step < 0:
            raise StorageError(
                f"Process 0 could not choose a checkpoint in {self.directory}; its "
                "output has the reason. Correct that, and start all processes again."
            )
        folder = checkpoint_path(self.directory, step)
        if not step:
            if self.has_start:
                variables = self._groups["model"].items()
                start = {k: v for k, v in variables if not is_random_state(k)}
                groups = {"model": start, "frozen": self._frozen}
                restore_variables(folder, groups, random_states=False)
            return 0
        restore_variables(folder, self._groups)
        self._position = step, None
        if step != restart_data_at:
            self._restore_data(folder, step)
        self._last_step = step
        self.summary = read_json(_summary_path(folder))
        if not isinstance(self.summary, dict):
            self.summary = {}
            damaged = "%s is damaged: seconds and FLOPs count from this step."
            logging.warning(damaged, _summary_path(folder))
        return step

    def _choose(self):
        """Returns the step of the newest whole checkpoint or 0, and damaged steps."""
        steps = [step for step in available_steps(self.directory) if step]
        damaged = []
        for step in reversed(steps):
            try:
                check_whole(checkpoint_path(self.directory, step))
                return step, damaged
            except DamagedError as error:
                logging.error("%s", error)
                damaged.append(step)
        aside = [name for name in self._names() if name.startswith("damaged-")]
        if damaged or aside:
            names = [str(step) for step in sorted(damaged)] + sorted(aside)
            raise StorageError(
                f"All checkpoints in {self.directory} are damaged: "
                f"{shorten(names)}. Put a good copy of one there. To start from "
                "scratch, set another --model_dir, or move them away."
            )
        return 0, []

    def _names(self):
        """Lists the folder of checkpoints."""
        if not tf.io.gfile.isdir(self.directory):
            return []
        return [name.rstrip("/") for name in tf.io.gfile.listdir(self.directory)]

    def _clean(self, damaged):
        """Renames damaged checkpoints, and removes unfinished ones."""
        for step in damaged:
            target = os.path.join(self.directory, f"damaged-{step}")
            if tf.io.gfile.exists(target):
                tf.io.gfile.rmtree(target)
            tf.io.gfile.rename(checkpoint_path(self.directory, step), target)
        self._remove_unfinished()

    def _remove_unfinished(self):
        """On host 0, removes checkpoints that are half written or half removed."""
        for name in self._names() if self._host.index == 0 else ():
            if name.startswith(("writing-", "removing-")):
                with contextlib.suppress(OSError, tf.errors.OpError):
                    tf.io.gfile.rmtree(os.path.join(self.directory, name))

    def _restore_data(self, folder, step):
        """Restores the position in the data. Raises if the data are others."""
        with plain_path(folder) as place:
            reader = tf.train.load_checkpoint(os.path.join(place, "state"))
            saved = reader.get_tensor("data_shapes/.ATTRIBUTES/VARIABLE_VALUE").decode()
            late = reader.has_tensor(_POSITION)
            position = int(reader.get_tensor(_POSITION)) if late else step
        names = tf.io.gfile.listdir(folder)
        parts = num_parts(names)
        here = self._host.shard_info.num_shards
        reason = None
        from_start = late and not parts
        if saved != self._data_shapes or (parts != here and not from_start):
            reason = (
                f" Saved: {saved}, read in {parts} part(s). Here: {self._data_shapes}, "
                f"read in {here} part(s). "
            )
        else:
            try:
                if not from_start:
                    with plain_path(folder) as place:
                        self._data.read(self._data_path(place)).assert_consumed()
            except (
                tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError,
                tf.errors.UnavailableError,
                tf.errors.UnknownError,
            ) as error:
                raise StorageError(
                    f"The checkpoint {folder} cannot be read: {first_line(error)}. "
                    "Run the same command again when its files can be read."
                ) from error
            except (AssertionError, ValueError, tf.errors.OpError) as error:
                if gone := re.search(r"checkpoint: (.*); No such", str(error)):
                    raise MissingFileError(
                        f"The checkpoint {folder} holds a position in {gone[1]}, which "
                        "is not there. Put the file back, or a link to it. Or set "
                        f"--gin.Checkpointing.restart_data_at={step} to keep weights, "
                        "optimizer and step, and start the data anew."
                    ) from error
                reason = f" ({first_line(error)}) "
                if not has_checksums(folder):
                    reason = (
                        " An earlier version of remixer_tf wrote it, whose positions "
                        "this one may not read. "
                    )
        if reason:
            raise UserError(
                f"The checkpoint {folder} holds a position in other data.{reason}"
                "Continue exactly with the task, batch size, lengths, steps_per_call "
                "and division among hosts it was trained with. Or set "
                f"--gin.Checkpointing.restart_data_at={step} to keep weights, "
                "optimizer and step, and start the data anew. Or use another "
                "--model_dir."
            )
        self._position = position, None if from_start else folder
        while position < step:  # It hung at the step.
            superbatch = next(self._data.iterator)
            position += next(iter(superbatch.values())).shape[0]

    def _data_path(self, folder):
        """The path of the position in this host's part of the data."""
        shard = self._host.shard_info
        return os.path.join(folder, f"data-{shard.index}-of-{shard.num_shards}")


def write_weights(model_dir, model, step=0):
    """Writes a checkpoint of a built `keras.Model` only, of a step that has none.

    A run starts from the weights of step 0.
    """
    folder = checkpoint_path(checkpoint_directory(model_dir), step)
    variables = named_variables(model.variables)
    values = {name: saved_value(variable) for name, variable in variables.items()}
    if keras.backend.backend() != "tensorflow":
        values = {name: tf.Variable(value) for name, value in values.items()}
    tf.train.Checkpoint(step=tf.Variable(step, dtype=tf.int64), model=values).write(
        os.path.join(folder, "state")
    )
    write_checksums(folder)


def _summary_path(folder):
    return os.path.join(folder, "summary.json")


def _sync(folder, below=True):
    """Flushes files to the disk, then their names. Object stores need no flush."""
    if "://" in folder:
        return
    paths = [folder]
    if below:
        paths = [
            os.path.join(root, name)
            for root, _, names in os.walk(folder, topdown=False)
            for name in (*names, "")
        ]
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
