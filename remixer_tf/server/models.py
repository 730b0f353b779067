"""The models of a server, by name: loaded, warmed up, and replaced by newer ones."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from remixer_tf.errors import MissingFileError, UserError, nearest
from remixer_tf.server.batching import Thread
from remixer_tf.server.limits import Refusal, invalid, try_later

EXPORT_FILE = "saved_model.pb"  # of a SavedModel


def is_saved_model(folder):
    """Returns whether a folder is a SavedModel."""
    return os.path.isfile(os.path.join(folder, EXPORT_FILE))


def find_export(folder, is_export):
    """Returns the folder of an export: this one, or its highest number; None if none.

    `is_export` is a function of a folder: `is_saved_model`, or the `is_export` of
    LiteRT and ONNX.
    """
    numbers = []
    if os.path.isdir(folder):
        numbers = [name for name in os.listdir(folder) if name.isdecimal()]
    numbers.sort(key=int, reverse=True)
    folders = [folder, *(os.path.join(folder, number) for number in numbers)]
    return next(filter(is_export, folders), None)


def newest_export(folder, is_export):
    """Returns what `find_export` does. Raises a UserError if there is none."""
    if found := find_export(folder, is_export):
        return found
    if not os.path.isdir(folder):
        raise MissingFileError(f"there is no folder {folder}.")
    raise UserError(
        f"{folder} is no export, and no numbered folder in it is one. Make one: "
        "remixer_tf export --model_dir=RUN"
    )


def export_version(folder):
    """Returns the version of the export in a folder: its number, or "1"."""
    name = os.path.basename(os.path.abspath(folder))
    return name if name.isdecimal() else "1"


class Source(NamedTuple):
    """Where a model comes from.

    Attributes:
        name: str, as requests name it.
        load: function of a `Thread`, called in it, which returns the `Served`.
        newest: function that returns the newest version, a str; None if it is one.
    """

    name: str
    load: Callable
    newest: Callable | None = None


class Models:
    """Loads models one after the other, and finds them by name.

    Args:
        sources: list of `Source`s of different names.
        say: function of a line for the log.
    """

    def __init__(self, sources, say):
        self._sources, self._say = sources, say
        self._ready, self._threads = {}, []
        self.observer = lambda name: lambda rows, seconds, error: None

    def ready(self):
        """Returns the `Served` models that answer, a list."""
        return [*self._ready.values()]

    def all_ready(self):
        """Returns whether all models answer."""
        return len(self._ready) == len(self._sources)

    def names(self):
        """Returns the names of all models, loaded or not."""
        return [source.name for source in self._sources]

    def get(self, name=None):
        """Returns a model by its name; None is the only one. Raises a `Refusal`."""
        names = self.names()
        if name is None and len(names) == 1:
            (name,) = names
        if name is None:
            raise invalid(f"Name one of the models: {', '.join(names)}.")
        if name not in names:
            raise Refusal(
                404,
                f"There is no model {name!r:.80}.{nearest(name, names)} There are: "
                f"{', '.join(names)}.",
            )
        if name not in self._ready:
            raise try_later(503, f"The model {name} is being loaded.", 5)
        return self._ready[name]

    def are_busy(self):
        """Returns whether a model is being loaded or computes."""
        return any(thread.busy for thread in self._threads)

    def are_compiling(self):
        """Returns whether a model that answers still gets faster."""
        return any(served.is_compiling for served in self.ready())

    async def load(self):
        """Loads all models. A mistake of the user's is raised."""
        for source in self._sources:
            self._ready[source.name] = await self._load(source)

    async def _load(self, source):
        thread = Thread(source.name)
        self._threads = [x for x in self._threads if x.is_alive()] + [thread]
        try:
            served = await thread.call(source.load, thread)
            await thread.call(served.warm_up, self._say)
        except BaseException:
            thread.stop()
            raise
        served.open(self.observer(source.name))
        return served

    async def watch(self, period):
        """Takes newer versions, looking for them every `period` seconds, for ever.

        One that cannot be loaded may still be being written. It is tried again after a
        period, and then after twice as long each time.
        """
        failed = {}  # name and version: when it is tried again, and the next pause
        while True:
            await asyncio.sleep(period)
            for source in self._sources:
                if source.newest is None or source.name not in self._ready:
                    continue
                old = self._ready[source.name]
                key = source.name, None
                try:
                    version = await asyncio.to_thread(source.newest)
                    failed.pop(key, None)
                    key = source.name, version
                    again, _ = failed.get(key, (0, 0))
                    if version == old.version or time.monotonic() < again:
                        continue
                    new = await self._load(source)
                except Exception as error:
                    if key not in failed:
                        known = isinstance(error, (UserError, OSError))
                        why = error if known else type(error).__name__
                        self._say(f"{source.name}: no newer version is taken: {why}")
                    _, pause = failed.get(key, (0, period))
                    failed[key] = time.monotonic() + pause, 2 * pause
                    continue
                self._ready[source.name] = new
                self._say(f"{source.name}: version {new.version} answers now")
                # Requests that have begun still ask it.
                asyncio.get_running_loop().call_later(2 * old.limits.timeout, old.close)
