"""The Python of docs/guides/serving.md asks a server of a tiny run."""

import pytest

from tests.documentation import blocks
from tests.server.conftest import listening, of_run


@pytest.mark.slow
def test_the_client_of_the_guide(bytes_run):
    (block,) = blocks("python", "docs/guides/serving.md")
    with listening([of_run("tiny", bytes_run, sizes=(1, 4))]) as url:
        names = {}
        exec(block.code.replace("http://localhost:8000", url), names)
    assert len(names["likely"]) == 2 and isinstance(names["answer"], str)
