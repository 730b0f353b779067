"""Folders that appear whole, or not at all."""

import contextlib
import os
import shutil


@contextlib.contextmanager
def whole_folder(path):
    """Writes a folder: it appears when the block ends without an error.

    Args:
        path: str, of a folder that is empty or not there.

    Yields:
        str, the folder to write into.

    Raises:
        OSError: it cannot be written.
    """
    temporary = f"{os.path.abspath(path)}.writing-{os.getpid()}"
    try:
        os.makedirs(temporary)
        yield temporary
        os.rename(temporary, path)
    except OSError as error:
        raise OSError(f"Cannot write {path}: {error.strerror}.") from error
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary)
