"""`remixer_tf presets` and `remixer_tf tasks`."""

import pytest

from remixer_tf.commands import run_command
from remixer_tf.data.pipeline import get_task
from remixer_tf.errors import UserError
from remixer_tf.named_models import presets

pytestmark = pytest.mark.usefixtures("clear_gin")


def test_presets_are_those_of_python(capsys):
    run_command("presets", ["remixer*"])
    assert capsys.readouterr().out == f"{presets('remixer*')!r}\n"
    with pytest.raises(UserError, match="Nearest: remixer_small.*`remixer_tf presets`"):
        run_command("presets", ["remixr_smal"])
    with pytest.raises(UserError, match=r"remixer_tf.presets\(\) lists all"):
        presets("zzz")


def test_tasks_are_listed_with_ones_own(capsys, tmp_path, monkeypatch):
    module = "import seqio\nfrom tests.data.toy_tasks import toy_task\n"
    task = "seqio.TaskRegistry.add_provider('sheep', toy_task({}, name='sheep'))\n"
    (tmp_path / "sheep_tasks.py").write_text(module + task)
    monkeypatch.syspath_prepend(tmp_path)
    run_command("tasks", ["--module_import=sheep_tasks"])
    names = capsys.readouterr().out.splitlines()
    assert {"cogs", "mini_cogs", "sheep"} <= {*names} and names == sorted(names)
    run_command("tasks", ["mini*"])
    assert capsys.readouterr().out == "mini_cogs\n"
    with pytest.raises(UserError, match="Nearest: mini_cogs"):
        run_command("tasks", ["minicogs"])
    with pytest.raises(UserError, match="no task 'zzz'. `remixer_tf tasks` lists all"):
        run_command("tasks", ["zzz"])
    with pytest.raises(UserError, match="'zzz'. `remixer_tf tasks` lists all"):
        get_task("zzz")
