"""The start of a command imports no libraries that Keras could do without."""

import subprocess
import sys

import pytest

CODE = """
import sys
sys.argv = ["remixer_tf", "--version"]
from remixer_tf.__main__ import main
main()
import importlib.util
import keras
optional = {"matplotlib", "pandas", "sklearn"}
assert not optional & set(sys.modules), optional & set(sys.modules)
for name in optional:  # A user's task may import them.
    importlib.util.find_spec(name)
"""


@pytest.mark.slow
def test_keras_is_imported_without_libraries_that_no_command_needs():
    subprocess.run([sys.executable, "-c", CODE], check=True)
