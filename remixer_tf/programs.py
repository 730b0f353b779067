"""Compiled programs stay on disk, so that the next process need not compile them.

XLA writes the programs of TensorFlow and of JAX into a folder of the user's own. A
process of TensorFlow reads them through links in a folder that nobody else uses, and
only those whose bytes are as they were written. When it ends, the new ones join the
others.

REMIXER_TF_CACHE names the folder, by default ~/.cache/remixer_tf. If it is empty,
nothing is kept, and on CPUs nothing is compiled that nobody asked for.
"""

import atexit
import contextlib
import functools
import os
import re
import stat
import sys

VARIABLE = "REMIXER_TF_CACHE"
_MOST_BYTES = 2**29  # of each engine's programs; the oldest go first
_NEW = "new."  # the start of a file that is not yet whole
_OF_JAX, _DIGEST = "-cache", ".sha256"  # ends of names
_DAY = 86400  # seconds
_ROOM = 2**28  # bytes; with less the programs are only read
_XLA = '--tf_xla_persistent_cache_directory="{}" --tf_xla_persistent_cache_read_only={}'
_PLACE = "remixer_tf-programs-"  # the start of a name
_OURS = re.compile(" *" + _XLA.format(rf'(?:[^"\\]|\\.)*/{_PLACE}\w+', r"\w+"))
_place = None  # the folder of this process' links


def are_wanted():
    """Whether programs shall be kept: XLA then compiles what writes answers on CPUs."""
    return os.environ.get(VARIABLE) != ""


def make_place():
    """Names TensorFlow, before it is imported, the folder where `find` puts programs.

    It reads TF_XLA_FLAGS once, when it finds its devices. The folder is not that of all
    processes: XLA fails if it cannot write there, and at a file that is not whole. So a
    child makes another one than its parent.
    """
    global _place
    flags = _OURS.sub("", os.environ.get("TF_XLA_FLAGS", ""))
    # What does not begin with "-" names a file of flags.
    named = "persistent_cache_directory" in flags or flags.strip()[:1] not in ("", "-")
    if named or "tensorflow" in sys.modules or not are_wanted():
        return
    import shutil  # late, as others below: the package is imported in a moment
    import tempfile

    try:
        _place = tempfile.mkdtemp(prefix=_PLACE)
        with contextlib.suppress(OSError):  # a file system without locks
            lock(_place)
        full = shutil.disk_usage(_place).free < _ROOM
    except OSError as error:
        _say(error)
        return
    atexit.register(_leave, os.getpid(), _place)
    quoted = re.sub(r'(["\\])', r"\\\1", _place)
    xla = _XLA.format(quoted, str(full).lower())
    os.environ["TF_XLA_FLAGS"] = f"{flags} {xla}".strip()


@functools.cache
def find():
    """Links what earlier processes compiled into the folder that TensorFlow reads.

    Returns the folder of all processes, or None. If it cannot be used, a line says why,
    and all works without. TensorFlow has found its devices, and so read the variable of
    `make_place`; children of other programs shall not.
    """
    _forget_place()
    if _place is None or not are_wanted():
        return None
    try:
        remove_abandoned(os.path.dirname(_place), _PLACE)
        store = _store("tensorflow")
        _link(store, _place)
    except OSError as error:
        _say(error)
        return None
    atexit.register(_join, os.getpid(), store, _place)
    return store


def lock(place):
    """Locks a folder until this process ends, or closes what this returns, an int.

    Raises an OSError if another process has locked it.
    """
    import fcntl

    descriptor = os.open(place, os.O_RDONLY)
    if descriptor < 3:  # the number of a standard stream that is closed
        higher = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(descriptor)
        descriptor = higher
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_abandoned(parent, start):
    """Removes this user's folders of links whose processes were killed.

    Their names have the same `start`. A folder that may not be listed stays as it is.

    No process has locked them. They are a day old: a newer one may be about to be
    locked.
    """
    import shutil
    import time

    try:
        entries = [*os.scandir(parent)]
    except OSError:  # as a folder of temporary files for all users
        return
    for entry in entries:
        if not entry.name.startswith(start):
            continue
        with contextlib.suppress(OSError):  # locked, or another process removes it
            found = entry.stat(follow_symlinks=False)
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _DAY:
                descriptor = lock(entry.path)
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(descriptor)


def _forget_place():
    """Takes what `make_place` wrote out of TF_XLA_FLAGS."""
    flags = _OURS.sub("", os.environ.pop("TF_XLA_FLAGS", ""))
    if flags:
        os.environ["TF_XLA_FLAGS"] = flags


@functools.cache
def find_jax(config):
    """Tells JAX where to keep what it compiles, unless its `config` says so already."""
    if config.jax_compilation_cache_dir is not None or not are_wanted():
        return
    try:
        folder = _store("jax")
        whole = _whole_programs(folder)
    except OSError as error:
        _say(error)
        return
    atexit.register(_note_digests, os.getpid(), folder, whole)
    config.update("jax_compilation_cache_dir", folder)
    if config.jax_compilation_cache_max_size < 0:  # no bound
        config.update("jax_compilation_cache_max_size", _MOST_BYTES)


def _say(error):
    from remixer_tf import console  # late: it is not needed to import the package

    console.say(
        "compiled programs are not kept, which costs seconds at each start "
        f"({error}). {VARIABLE} names a folder of yours, or is empty.",
        "warning",
        sys.stderr,
    )


def cache_folder():
    """Returns the folder that REMIXER_TF_CACHE names, or None if nothing is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    folder = os.environ.get(VARIABLE, os.path.join(home, "remixer_tf"))
    # Links and later working directories need the whole path.
    return os.path.abspath(os.path.expanduser(folder)) if folder else None


def _store(engine):
    """Makes the folder of an engine's programs, for machines like this one."""
    folder = _own(cache_folder())
    return _own(os.path.join(_own(os.path.join(folder, _machine())), engine))


def _own(folder):
    """Makes a folder that nobody else may write to, and returns its path.

    Raises an OSError if there is one that others may write to.
    """
    from remixer_tf.errors import StorageError

    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.geteuid():
        raise StorageError(f"{folder} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise StorageError(f"others may write to {folder}: chmod go-w")
    return folder


def processor():
    """Returns the line of what the processor can do, "flags : ..."; "" if unknown."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        return next((line for line in file if line.startswith("flags")), "")
    return ""


def _machine():
    """Returns a name of what a program needs: versions, options and the processor."""
    import hashlib
    import platform
    from importlib import metadata

    known = [platform.machine(), os.environ.get("XLA_FLAGS", "")]
    for name in ("tensorflow", "jax"):
        with contextlib.suppress(metadata.PackageNotFoundError):  # JAX may be missing.
            known.append(f"{name} {metadata.version(name)}")
    known.append(processor())
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _link(store, place):
    """Links the whole programs of `store` into `place`.

    A program is a file NAME.DIGEST. Damaged ones are removed, the older of two with one
    name, and the oldest while there are too many. Another process may remove a file
    first.
    """
    left = _MOST_BYTES
    for path in newest_first(store):
        name, _, digest = os.path.basename(path).rpartition(".")
        link = os.path.join(place, name)
        with contextlib.suppress(FileNotFoundError):
            left -= os.path.getsize(path)
            if left < 0 or os.path.lexists(link) or _digest(path) != digest:
                os.remove(path)
            else:
                os.symlink(path, link)


def newest_first(store):
    """Returns the paths of a folder's files."""
    ages = {}
    for entry in os.scandir(store):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_file():
                ages[entry.path] = entry.stat().st_mtime
    return sorted(ages, key=ages.get, reverse=True)


def _digest(path):
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _join(owner, store, place):
    """Copies the programs of a folder that are no links to `store`."""
    import shutil

    if os.getpid() != owner:  # a child that was forked
        return
    try:
        for name in os.listdir(place):
            path = os.path.join(place, name)
            if not os.path.islink(path):
                kept = os.path.join(store, f"{name}.{_digest(path)}")
                _put(kept, functools.partial(shutil.copyfile, path))
    except OSError as error:  # a full disk, or a folder that has gone
        _say(error)


def _put(path, write):
    """Writes a file that is whole or not there; `write` takes another path."""
    new = os.path.join(os.path.dirname(path), f"{_NEW}{os.getpid()}")
    try:
        write(new)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise


def _whole_programs(folder):
    """Returns the paths of JAX's programs in a folder, after removing damaged ones.

    JAX writes a program in its place, and never again. `_note_digests` adds a file with
    the digest of each new one. A process that was killed leaves none: what it
    made goes a day later.
    """
    import time

    whole = set()
    for path in newest_first(folder):
        with contextlib.suppress(FileNotFoundError):  # Another process removes it too.
            if path.endswith(_OF_JAX):
                try:
                    with open(path + _DIGEST) as file:
                        stays = file.read() == _digest(path)
                except FileNotFoundError:
                    stays = time.time() - os.path.getmtime(path) < _DAY
                if stays:
                    whole.add(path)
                else:
                    os.remove(path)
            elif not os.path.exists(path.removesuffix(_DIGEST)):
                os.remove(path)
    return whole


def _note_digests(owner, folder, before):
    """Writes the digests of the programs of JAX that were not there before."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):  # a full disk, or a folder that has gone
        for path in {*newest_first(folder)} - before:
            if path.endswith(_OF_JAX):
                _put(path + _DIGEST, functools.partial(_write, _digest(path)))


def _write(text, path):
    with open(path, "w") as file:
        file.write(text)


def _leave(owner, place):
    import shutil

    if os.getpid() == owner:
        shutil.rmtree(place, ignore_errors=True)
