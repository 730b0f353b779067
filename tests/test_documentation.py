"""What the documentation names is there."""

import importlib
import math
import pathlib
import re

import pytest
import seqio
import tensorflow as tf

from remixer_tf.layers import Context, MoE
from remixer_tf.layers.axes import axes_of

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
    )
)


def exists(name):
    """Whether a dotted name is a module, or something that a module defines."""
    parts = name.split(".")
    if parts[0] in ("benchmarks", "studies"):  # Commands, which change their process.
        return ROOT.joinpath(*parts).with_suffix(".py").exists()
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        except ImportError:  # what an extra needs, which is not installed
            return True
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_names_and_links(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    packages = "remixer_tf|benchmarks|studies|tests"
    names = set(re.findall(rf"\b(?:{packages})(?:\.[a-z_]\w*)+", text))
    # What stands after a package's name and is no module: a file or a host.
    names = {name for name in names if not name.endswith((".gin", ".git", ".whl"))}
    assert [name for name in sorted(names) if not exists(name)] == []
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    assert [x for x in links if not (ROOT / page).parent.joinpath(x).exists()] == []
    # Files of this repository in backticks, such as `gin/runs/train.gin`.
    files = re.findall(rf"`((?:gin|tasks|{packages})/[\w./-]+)`", text)
    assert [x for x in files if not (ROOT / x).exists()] == []


def code_of(heading, page="README.md"):
    """The first Python of a section of a page."""
    section = (ROOT / page).read_text(encoding="utf-8").split(heading)[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def test_a_model_in_python():
    names = {}
    exec(code_of("## A model in Python"), names)
    assert names["logits"].shape == (8, 24, 1000)
    # Tokens at random, of 998: nothing is known yet, and one step changes little.
    before = float(names["loss"])
    assert before == pytest.approx(math.log(1000), rel=0.2)
    sums = names["objective"](names["model"](names["batch"]), names["batch"])
    after = float(sums["objective"] / sums["weight"])
    assert after != before and after == pytest.approx(before, rel=0.1)


def test_a_task_of_your_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("21\n")
    exec(code_of("### A task of your own"), {})
    task = seqio.get_mixture_or_task("my_task")
    (example,) = task.get_dataset(split="test", shuffle=False).as_numpy_iterator()
    vocabulary = task.output_features["targets"].vocabulary
    assert example["inputs_pretokenized"] == b"double 21"
    assert example["targets"].tolist() == [*vocabulary.encode("2121"), 1]
    seqio.TaskRegistry.remove("my_task")


def test_a_router_of_your_own():
    names = {}
    code = code_of("## A router of one's own", "docs/guides/mixtures.md")
    exec(code.replace("@gin.register\n", ""), names)
    layer = MoE(4, 16, names["SigmoidRouter"])
    layer.build((None, None, 8))
    x = tf.random.normal((2, 6, 8))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x, context=Context(), training=True))
    gradient = tape.gradient(loss, layer.router.kernel.value)
    assert float(tf.reduce_max(tf.abs(gradient))) > 0


def test_a_layer_of_your_own_on_a_mesh():
    names = {}
    exec(code_of("## A layer of one's own", "docs/guides/layouts.md"), names)
    layer = names["Linear"]()
    layer.build((None, None, 8))
    assert axes_of(layer.kernel) == ("d_model", None)
    assert layer(tf.ones((2, 3, 8)), context=Context()).shape == (2, 3, 8)


def test_every_list_of_guides_has_them_all_in_one_order():
    def listed(page, beginning, end):
        text = (ROOT / page).read_text(encoding="utf-8")
        text = text.split(beginning)[1].split(end)[0]
        return re.findall(r"guides/(\w+)\.md", text)

    guides = listed("mkdocs.yml", "  - Guides:", "  - Results:")
    assert sorted(guides) == sorted(x.stem for x in ROOT.glob("docs/guides/*.md"))
    assert listed("docs/index.md", "# remixer_tf", "| to | read |") == guides
    assert listed("README.md", "## Guides and reference", "\n## ") == guides


def test_every_page_of_results_is_listed():
    pages = {x.name for x in ROOT.glob("docs/results/*.md")} - {"index.md"}
    index = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == pages
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"results/(\w+\.md)", navigation)) - {"index.md"} == pages


def test_every_package_has_a_page():
    folders = {path.parent.name for path in ROOT.glob("remixer_tf/*/__init__.py")}
    pages = {path.stem for path in ROOT.glob("docs/reference/*.md")}
    assert pages == folders | {"run", "tasks", "testing"}


def test_from_python(tmp_path, monkeypatch, clear_gin):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code_of("## From Python"), names)
    assert names["model"].compiled
    text = (ROOT / "docs/guides/python.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert (tmp_path / "gmlp.keras").exists() and names["model"].built
