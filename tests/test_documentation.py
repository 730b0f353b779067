"""The documentation names only what exists, and its blocks of code run.

Blocks of shell that need a network, a published checkpoint or hours are checked
against the real parsers of their commands: options, gin files and gin names.
`tests/test_checkpoint_to_answer.py` runs every block of its page.
"""

import ast
import importlib
import inspect
import math
import os
import re
import subprocess
import sys

import gin
import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import load_command, run_command
from remixer_tf.configuration.command_line import parse_command_line
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.decoding import HuggingFaceRules
from remixer_tf.layers import Context, MoE
from remixer_tf.layers.axes import axes_of
from tests.documentation import (
    HEREDOC,
    PAGES,
    ROOT,
    blocks,
    commands,
    statements,
    write_files,
)
from tests.test_checkpoint_to_answer import run as run_line
from tests.tiny_run import TEXTS, TINY, train_run
from tests.weights import numpy_bert, numpy_t5, published

# A configuration for what is bound after that of a run, by the task of the page.
RUN = ["models/t5_1_1_tiny.gin", "runs/own_task.gin"]
PAGES_OF_REFERENCE = sorted(
    {block.page.stem for block in blocks("python") if "reference" in block.page.parts}
)
OWN_MODULES = "my_parts", "my_routers", "my_task"


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


def code_of(heading, page):
    """The first Python of a section of a page."""
    section = (ROOT / page).read_text(encoding="utf-8").split(heading)[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture
def in_folder(tmp_path, monkeypatch, clear_gin):
    """An empty current folder, whose modules can be imported and are then forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _forget_own_modules()  # Tests of other files have modules of these names.
    yield tmp_path
    gin.clear_config()
    _forget_own_modules()


def _forget_own_modules():
    for module in OWN_MODULES:
        sys.modules.pop(module, None)
        for name in list(gin.config._REGISTRY._selector_map):
            if name.startswith(f"{module}."):
                gin.config._REGISTRY.pop(name)


def publish(folder):
    """Writes a tiny checkpoint in the layout of Hugging Face's flan-t5-small."""
    published.write_hugging_face(folder, numpy_t5.made_up_weights(), **published.NEW)
    train_vocabulary(TEXTS, str(folder / "spiece.model"), model_type="word")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_every_block_says_its_language():
    languages = {"sh", "python", "gin", "text"}
    assert not [x for x in blocks("") if x.page.parts[0] != "SECURITY.md"]
    for page in PAGES:
        found = re.findall(r"^```(\w+)$", (ROOT / page).read_text(), re.M)
        assert set(found) <= languages


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_of_shell_take_their_options(block, in_folder):
    result = subprocess.run(["bash", "-n", "-c", block.code], capture_output=True)
    assert result.returncode == 0, result.stderr
    write_files(block.page, in_folder)
    for name, arguments in commands(block):
        command = load_command(name)
        options = parse_command_line(arguments, name, command.add_arguments, name)
        if getattr(options, "gin_file", None) or getattr(options, "gin_bindings", None):
            check_gin(options)
    for words in statements(block):
        if words[0] == "make":
            target = re.compile(rf"^{words[-1]}:", re.M)
            assert target.search((ROOT / "Makefile").read_text()), words
        others = {"remixer_tf", *sys.stdlib_module_names}
        if words[:2] == ["python", "-m"] and words[2].split(".")[0] not in others:
            file = ROOT.joinpath(*words[2].split(".")).with_suffix(".py")
            source = "".join(x.read_text() for x in (file, *file.parent.glob("*.py")))
            for option in re.findall(r"--[\w-]+", " ".join(words[3:])):
                assert f'"{option}"' in source or option.startswith("--gin"), option


def check_gin(options):
    """Reads the gin files and bindings of a command, with a run's in their place."""
    if "my_run.gin" in options.gin_file:  # tests/configuration/test_own_parts.py
        return
    files = []
    for file in options.gin_file or RUN:
        files += RUN if file.endswith("operative_config.gin") else [file]
    folder = str(ROOT / "gin")
    assert all(os.path.exists(f) or os.path.exists(f"{folder}/{f}") for f in files)
    configuration.read(files, options.gin_bindings, complete=False)


@pytest.mark.parametrize("block", blocks("gin"), ids=str)
def test_gin_is_read(block, in_folder):
    write_files(block.page, in_folder)
    (in_folder / "block.gin").write_text(block.code)
    own = "include" in block.code
    configuration.read([*([] if own else RUN), "block.gin"], [], complete=False)


@pytest.mark.slow
def test_the_readmes_python(in_folder, capsys):
    publish(in_folder / "flan-t5-small")
    first, second = blocks("python", "README.md")
    assert len(first.code.splitlines()) <= 13
    names = {}
    exec(first.code, names)
    assert "remixer_small" in capsys.readouterr().out
    assert names["model"].built and names["run"].model.built
    names = {"__name__": "my_parts"}
    exec(second.code, names)
    rt.testing.check_sublayer(names["Scale"])


@pytest.mark.slower
def test_ten_lines_on_the_first_page(in_folder):
    publish(in_folder / "flan-t5-small")
    (block,) = blocks("python", "docs/index.md")
    assert len([line for line in block.code.splitlines() if line]) == 10
    exec(block.code, {})


@pytest.mark.slow
def test_from_transformers(in_folder):
    publish(in_folder / "flan-t5-small")
    (block,) = blocks("python", "docs/guides/from_transformers.md")
    exec(block.code, {})
    table = (ROOT / block.page).read_text().split("## Calls")[1].split("\n## ")[0]
    rows = [row.split(" | ")[-1] for row in table.splitlines() if " | " in row]
    known = inspect.getsource(HuggingFaceRules)
    known += "".join(
        path.read_text() for path in (ROOT / "remixer_tf" / "loaded").glob("*.py")
    )
    for name in re.findall(r"(\w+)=", " ".join(rows)):
        assert name in known or name == "d_model", name


@pytest.mark.slower
def test_a_published_classifier(in_folder):
    kind = "BertForSequenceClassification"
    folder = in_folder / "bert-mnli"
    folder.mkdir()
    numpy_bert.write(folder, kind, numpy_bert.made_up_weights(kind))
    (block,) = blocks("python", "docs/guides/published_weights.md")
    exec(block.code, {})


@pytest.mark.slower
def test_python_guide(in_folder, bytes_run):
    rows = "inputs\ttargets\na cat\ta\na dog\tb\n"
    (in_folder / "train.tsv").write_text(rows)
    (in_folder / "dev.tsv").write_text(rows.replace("cat", "cow").replace("dog", "pig"))
    (in_folder / "FOLDER").symlink_to(bytes_run)
    names = {}
    guide = blocks("python", "docs/guides/python.md")
    for block in guide:
        exec(block.code, names)
    assert (in_folder / "NEW_FOLDER").exists()
    # The third block loads what Keras saved, where nothing else was imported.
    assert "load_model" in guide[2].code and (in_folder / "gmlp.keras").exists()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    code = [sys.executable, "-c", guide[2].code]
    subprocess.run(code, check=True, env=environment)


def test_a_model_from_its_parts():
    names = {}
    exec(code_of("## A model from its parts", "docs/guides/python.md"), names)
    assert names["logits"].shape == (8, 24, 1000)
    # Tokens at random, of 998: nothing is known yet, and one step changes little.
    before = float(names["loss"])
    assert before == pytest.approx(math.log(1000), rel=0.2)
    logits = names["model"](names["batch"])
    sums = names["objective"].sums(logits, names["batch"])
    after = float(sums["objective"] / sums["weight"])
    assert after != before and after == pytest.approx(before, rel=0.1)


def test_a_configuration_is_a_value():
    exec(code_of("## A configuration is a value", "docs/architecture.md"), {})


def test_a_task_in_python(in_folder):
    for split in ("train", "test"):
        (in_folder / f"{split}.txt").write_text("21\n")
    exec(code_of("## A task in Python", "docs/guides/own_task.md"), {})
    task = seqio.get_mixture_or_task("my_task")
    (example,) = task.get_dataset(split="test", shuffle=False).as_numpy_iterator()
    vocabulary = task.output_features["targets"].vocabulary
    assert example["inputs_pretokenized"] == b"double 21"
    assert example["targets"].tolist() == [*vocabulary.encode("2121"), 1]
    seqio.TaskRegistry.remove("my_task")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF_REFERENCE)
def test_examples_of_the_reference(page, clear_gin):
    names = {}
    for block in blocks("python", f"docs/reference/{page}.md"):
        exec(block.code, names)


def test_tests_run_the_python_of_every_page():
    """A new page with Python needs a test; these pages have one."""
    pages = {
        str(block.page).removeprefix("docs/").removesuffix(".md")
        for block in blocks("python")
        if "reference" not in block.page.parts
    }
    tested = """README adapters architecture answering_and_exporting
        checkpoint_to_answer from_transformers harness index layouts litert_and_onnx
        mixtures own_parts own_task published_weights python serving"""
    assert {page.removeprefix("guides/") for page in pages} == set(tested.split())


def test_every_public_name_has_types():
    """`make lint` checks that type checkers read them, see tests/typed."""
    public = {getattr(rt, name) for name in rt._HOMES}
    for module in map(rt.__getattr__, rt._MODULES):
        public |= {getattr(module, name) for name in module.__all__}
    # `rt.load` makes a LoadedRun.
    functions = [x.__init__ if inspect.isclass(x) else x for x in public]
    functions.remove(rt.LoadedRun.__init__)
    methods = filter(inspect.isfunction, vars(rt.LoadedRun).values())
    functions += [x for x in methods if not x.__name__.startswith("_")]
    of_layers = "build", "call", "init_cache", "decode_step", "prefill"
    layers = [x for x in public if inspect.isclass(x) and issubclass(x, keras.Layer)]
    functions += [
        getattr(x, name) for x in layers for name in of_layers if hasattr(x, name)
    ]
    for part in functions:
        if not getattr(part, "__module__", "").startswith("remixer_tf"):
            continue  # of Keras, or of a NamedTuple
        signature = inspect.signature(part)
        types = {x.name: x.annotation for x in signature.parameters.values()}
        if part.__name__ in of_layers:
            types["return"] = signature.return_annotation
        bare = {name for name, x in types.items() if x is inspect.Parameter.empty}
        assert bare <= {"self"}, f"{part.__qualname__} has no types of {bare}"


def test_every_public_name_has_an_example():
    """In its own docstring, or in a block of README or docs."""
    code = "\n".join(block.code for block in blocks("python"))
    shown = set(re.findall(r"\w+", code))
    public = {name: getattr(rt, name) for name in rt._HOMES}
    for module in map(rt.__getattr__, rt._MODULES):
        public |= {name: getattr(module, name) for name in module.__all__}
    own = {name for name, x in public.items() if ">>>" in (x.__doc__ or "")}
    assert sorted(public.keys() - shown - own) == ["best_span"]  # by gin alone
    for name, method in inspect.getmembers(rt.LoadedRun, inspect.isfunction):
        assert name.startswith("_") or ">>>" in method.__doc__, name


@pytest.mark.parametrize(
    ("name", "layer"), [("remixer", "RemixerBlock"), ("gmlp", "GatedMLP")]
)
def test_the_recipe_of_a_layer_names_its_files(name, layer):
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    recipe = text.split("**A layer in the tree.**")[1].split("\n\n")[0]
    files = re.findall(r"`([\w/<>]+\.\w+)`", recipe)
    found = [x for x in files if (ROOT / x.replace("<name>", name)).is_file()]
    assert len(found) == 5
    for file in found:
        assert layer in (ROOT / file.replace("<name>", name)).read_text(), file


def test_no_other_module_names_a_layer():
    """A list of classes outside remixer_tf/layers would grow with each new layer."""
    bases = {rt.layers.Sublayer, rt.layers.PositionWise}
    parts = (getattr(rt.layers, name) for name in rt.layers.__all__)
    classes = {x for x in parts if inspect.isclass(x)} - bases
    names = {x.__name__ for x in classes if issubclass(x, rt.layers.Sublayer)}
    assert "RemixerBlock" in names
    paths = {*ROOT.glob("remixer_tf/**/*.py"), *ROOT.glob("tasks/**/*.py")}
    for folder in ("layers", "weights"):
        paths -= {*ROOT.glob(f"remixer_tf/{folder}/*.py")}
    paths -= {ROOT / "remixer_tf/configuration/old_names.py"}
    for path in paths:
        text = path.read_text()
        if names.isdisjoint(re.findall(r"\w+", text)):  # Most texts name none.
            continue
        for node in ast.walk(ast.parse(text)):
            said = (getattr(node, x, None) for x in ("id", "attr", "name", "value"))
            found = names.intersection(x for x in said if isinstance(x, str))
            assert not found, f"{path}:{node.lineno} names {found}"


def test_a_layer_of_your_own(in_folder):
    page = "docs/guides/own_parts.md"
    write_files(page, in_folder)
    _, steps, facts, checks = blocks("python", page)
    exec(checks.code, {})
    names = {"__name__": "mine"}
    exec(steps.code, names)
    rt.testing.check_sublayer(names["MeanSoFar"], causal=True, packs=False)
    exec(facts.code, names)
    layer = names["Rows"](max_length=3)
    layer.build((None, 3, 4))
    assert layer(np.ones((2, 3, 4)), context=Context()).shape == (2, 3, 4)


@pytest.mark.slower
def test_the_guide_to_adapters(in_folder):
    first, second = blocks("python", "docs/guides/adapters.md")
    train_run("base", "bytes", "--gin.train.evaluations=[]")
    gin.clear_config()
    (in_folder / "train.tsv").write_text("inputs\ttargets\nA cat\tthe dog\n" * 40)
    names = {}
    exec(first.code.replace("steps=1000", "steps=2"), names)
    assert not any("lora" in v.path for v in rt.load("whole").model.variables)
    model = rt.create("remixer_tiny", vocab_size=64, max_length=8)
    spec = model.batch_spec(2, {"inputs": 8, "targets": 8})
    batches = {k: np.ones(x.shape, "int32") for k, x in spec.items()}
    code = second.code.replace('("remixer_tiny")', '("remixer_tiny", max_length=8)')
    exec(code, {"rt": rt, "batches": batches})
    assert (in_folder / "merged.keras").exists()


@pytest.mark.slow
def test_the_readmes_shell(in_folder, monkeypatch):
    """From a table to an export, with two steps in place of a thousand."""
    (block,) = (x for x in blocks("sh", "README.md") if "doubles" in x.code)
    write_files(block.page, in_folder)
    gin_file = in_folder / "doubles.gin"
    short = "TRAIN_STEPS = 2\nWARMUP_STEPS = 1"
    gin_file.write_text(gin_file.read_text().replace("TRAIN_STEPS = 1000", short))
    for line in HEREDOC.sub("", block.code).splitlines():
        run_line(line, monkeypatch)
    assert (in_folder / "doubles/export/2/saved_model.pb").exists()


@pytest.mark.slower
def test_exported_models_answer(in_folder, monkeypatch):
    """The blocks that ask a SavedModel, LiteRT and ONNX Runtime, on a tiny run."""
    run = in_folder / "cogs_remixer"
    train_vocabulary(TEXTS, str(in_folder / "words.model"), model_type="word")
    files = ["--gin_file=models/remixer_tiny.gin", "--gin_file=runs/mini_cogs.gin"]
    more = ["--gin.VOCABULARY_FILE=words.model", *TINY]
    lengths = "--gin.FEATURE_LENGTHS={'inputs': 8, 'targets': 20}"
    run_command("train", [f"--model_dir={run}", *files, *more, lengths])
    for kind in ("savedmodel", "litert", "onnx"):
        option = [] if kind == "savedmodel" else [f"--format={kind}"]
        gin.clear_config()
        run_command("export", [f"--model_dir={run}", *option])
        folder = run / ("export" if kind == "savedmodel" else kind)
        (folder / "8000").symlink_to(folder / "1")
    names = {}
    for page in ("answering_and_exporting", "litert_and_onnx"):
        for block in blocks("python", f"docs/guides/{page}.md"):
            exec(block.code, names)
    assert names["answers"]["scores"].shape == (1,)
    assert len(names["outputs"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("tiny_run", ["words"], indirect=True)
def test_the_harness_in_python(in_folder, tiny_run):
    page = "docs/guides/harness.md"
    write_files(page, in_folder)
    (in_folder / "quickstart").mkdir()
    (in_folder / "quickstart/t5_1_1_tiny").symlink_to(tiny_run)
    names = {}
    exec(blocks("python", page)[0].code, names)
    assert "roles" in names["results"]["results"]


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
    assert listed("docs/index.md", "- **Start**", "| to | read |") == guides
    assert listed("README.md", "## Guides", "- **About**") == guides


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
