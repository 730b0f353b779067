"""A run says which version wrote it, and one of a newer version is refused."""

import gin
import pytest

import remixer_tf
from remixer_tf import configuration
from remixer_tf.checkpoints.versions import check_run_version, check_version
from remixer_tf.errors import UserError


def test_a_configuration_says_its_version_first(tmp_path, clear_gin):
    configuration.parse_gin(["models/t5_1_1_tiny.gin"], [], complete=False)
    text = configuration.configuration_str()
    version = remixer_tf.__version__
    assert text.splitlines()[0] == f"# Written by remixer_tf {version}."
    path = tmp_path / "operative_config.gin"
    path.write_text(text)
    check_run_version(str(tmp_path))
    path.write_text(text.replace(version, "0.10.0", 1))
    with pytest.raises(UserError, match=f"by remixer_tf 0.10.0, and this is {version}"):
        remixer_tf.load(str(tmp_path))
    path.write_text("# Another comment.\n")  # as those before had it
    check_run_version(str(tmp_path))
    gin.clear_config()


@pytest.mark.parametrize("version", [None, "0.0.9", remixer_tf.__version__])
def test_this_and_older_versions_are_read(version):
    check_version(version, "RUN")
