"""Files and folders that appear whole or not at all, and the processes that write."""

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import time

import tensorflow as tf

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.errors import ExistingFileError, StorageError, UserError

_ABANDONED_SECONDS = 24 * 3600


def write_whole(path, content):
    """Writes a file of text or bytes, local or gs://, as `whole_file` does.

    Raises OSError if it cannot be written.
    """
    try:
        with whole_file(path) as place, tf.io.gfile.GFile(place, "wb") as file:
            file.write(content)
    except (OSError, tf.errors.OpError) as error:
        raise StorageError(f"Cannot write {path}: {_reason(error)}") from error


def _reason(error):
    """Returns why something could not be written, a str."""
    return getattr(error, "strerror", None) or first_line(error)


def _mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def _set_mode(path, mode):
    if _mode(path) != mode:  # Some file systems know one mode alone.
        os.chmod(path, mode)


def copy_file(source, target):
    """Copies the content of a file, local or gs://; permissions are a new file's."""
    with (
        tf.io.gfile.GFile(source, "rb") as file,
        tf.io.gfile.GFile(target, "wb") as copy,
    ):
        while part := file.read(2**24):
            copy.write(part)


def write_json(path, value):
    """Writes a JSON file as `write_whole` does; for numbers see `finite`."""
    write_whole(path, json.dumps(finite(value), indent=2) + "\n")


def finite(value):
    """Returns a value for JSON, which has no NaN or infinity: None in their place."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path):
    """Returns what a JSON file holds; None if it is missing or damaged."""
    try:
        with tf.io.gfile.GFile(path) as file:
            return json.loads(file.read())
    except (tf.errors.NotFoundError, ValueError, RecursionError):
        return None


@contextlib.contextmanager
def whole_file(path):
    """Yields a name to write a file by. It gets its own when the block ends well.

    Otherwise a file that was there stays as it is. A reader sees the old or the new
    one, with the old one's permissions. `path` is local or gs://. A device, such as
    /dev/stdout, is written itself.
    """
    path, local = os.fspath(path), "://" not in os.fspath(path)
    if local:
        if os.path.islink(path):
            path = os.path.realpath(path)  # The link stays.
        if os.path.exists(path) and not os.path.isfile(path):
            yield path
            return
    temporary, mode = temporary_name(path), None
    try:
        if local and os.path.exists(path):
            mode = _mode(path)  # Perhaps nobody may write to it.
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
        yield temporary
        if mode is not None:
            _set_mode(temporary, mode)
        if local:
            os.replace(temporary, path)
        else:
            tf.io.gfile.rename(temporary, path, overwrite=True)
    finally:
        _remove(temporary)


@contextlib.contextmanager
def whole_folder(path):
    """Yields a folder to write into. It gets its name when the block ends well.

    `path` is a str, local or gs://, of a folder that is empty or missing. Raises
    OSError if it cannot be written.
    """
    path = path.rstrip("/")
    temporary = temporary_name(path)
    with without_empty_folders(os.path.dirname(path)):
        try:
            tf.io.gfile.makedirs(temporary)
            yield temporary
            _open_files(temporary)
            tf.io.gfile.rename(temporary, path, overwrite=True)
        except UserError:  # It says itself what cannot be read or written.
            raise
        except (OSError, tf.errors.OpError) as error:
            raise StorageError(f"Cannot write {path}: {_reason(error)}") from error
        finally:
            _remove(temporary)


@contextlib.contextmanager
def without_empty_folders(path):
    """Runs a block that may make a folder and those above it, where they are missing.

    After an error it removes the new ones that are empty. Stores, such as gs://, have
    none.
    """
    new, folder = [], os.path.abspath(path)
    while "://" not in path and not os.path.exists(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in new:
                os.rmdir(folder)  # Raises if something is there.
        raise


def _open_files(folder):
    """Gives the files of a local folder the permissions that the umask allows.

    Some libraries write private files, or copy the permissions of what they copy.
    """
    if "://" in folder:
        return
    with tempfile.TemporaryDirectory(dir=folder) as place:
        probe = os.path.join(place, "probe")
        open(probe, "w").close()
        mode = _mode(probe)
    for root, _, names in os.walk(folder):
        for name in names:
            _set_mode(os.path.join(root, name), mode)


def temporary_name(path):
    """Returns a name for a file or folder until it is whole.

    Once a minute it removes what killed processes left half written in its folder.
    """
    _remove_abandoned_at(os.path.dirname(path), time.monotonic() // 60)
    return f"{path}.writing-{machine() or '0' * 8}-{os.getpid()}"


@functools.lru_cache
def _remove_abandoned_at(parent, minute):
    """To list a folder of 10,000 files takes longer than to write one there."""
    remove_abandoned(parent)


def remove_abandoned(parent):
    """Removes half written files and folders in `parent` whose writers are gone.

    A writer on this machine is gone if its process is. One on another machine is gone
    if it wrote nothing for a day. Object stores have no such folders. A folder that may
    not be listed stays as it is.
    """
    if "://" in parent:
        return
    try:
        names = os.listdir(parent or ".")
    except OSError:  # missing, or a folder of others, as on shared disks
        return
    for name in names:
        match = re.search(r"\.writing-([0-9a-f]{8})-(\d+)$", name)
        if not match:
            continue
        path = os.path.join(parent, name)
        if match[1] == machine():
            gone = describe(int(match[2])) is None
        else:
            gone = _now(parent) - _newest(path) > _ABANDONED_SECONDS
        if gone:
            _remove(path)


def _remove(path):
    """Removes a file or folder if it is there and may be removed."""
    with contextlib.suppress(OSError, tf.errors.OpError):
        if "://" in path:
            folder = tf.io.gfile.isdir(path)
            (tf.io.gfile.rmtree if folder else tf.io.gfile.remove)(path)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def check_absent(folder):
    """Raises FileExistsError if there is a file or a folder of that name."""
    if tf.io.gfile.exists(folder):
        raise ExistingFileError(
            f"There is {folder} already, and nothing replaces it. Choose another "
            "folder, or another checkpoint with --step; or remove it if it is an old "
            "export."
        )


def _now(folder):
    """Returns the time by the clock of a folder's file system, in seconds.

    It stamps files of all machines. Their own clocks differ, and jump.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder or ".") as file:
            return os.stat(file.name).st_mtime
    except OSError:  # Nothing can be removed there either.
        return 0.0


def _newest(path):
    """Returns the time of the last write to a file or into a folder, in seconds."""
    times, paths = [0.0], [path]
    for root, folders, names in os.walk(path):
        paths += [os.path.join(root, name) for name in (*folders, *names)]
    for place in paths:
        with contextlib.suppress(OSError):
            times.append(os.path.getmtime(place))
    return max(times)


def describe(pid):
    """Returns a dictionary for JSON that identifies a process of this machine.

    Its keys are `host`, `machine`, `pid` and `started`. None if the process is gone.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # Another user's process.
    started = None
    with contextlib.suppress(OSError):
        # The name may hold spaces. After it come the state and, as the 20th, the time.
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[0] == "Z":
            return None
        started = fields[19]
    host = socket.gethostname()
    return {"host": host, "machine": machine(), "pid": pid, "started": started}


@functools.cache
def machine():
    """Returns 8 hexadecimal digits for the system that numbers this process, or None.

    Containers may share a host's name, but they number their own processes.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            name = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return hashlib.sha256(name.encode()).hexdigest()[:8]
