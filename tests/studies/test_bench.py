"""The comparison of mixers: its plan, its verdicts, and two mixers trained."""

import json
import pathlib

import pytest

from studies import bench, bench_report, runs
from studies.bench_models import (
    CLAIMS,
    FOR_ENCODERS,
    MATCHES,
    REFERENCE,
    SETTINGS,
    Claim,
    contestants,
)
from tests.configuration import test_mixers
from tests.tiny_run import write_text

TINY = [
    "TRAIN_STEPS = 4",
    "WARMUP_STEPS = 1",
    "BATCH_SIZE = 2",
    "D_MODEL = 16",
    "Schedule.steps_per_call = 2",
    "LossEvaluation.max_examples = 4",
]

RESULTS = pathlib.Path(__file__).parents[2] / "docs/results"

pytestmark = pytest.mark.usefixtures("clear_gin")


def made_up(losses, setting="mlm"):
    """Lines of {(mixer, match): losses by seed}."""
    lines = {}
    for (mixer, match), values in losses.items():
        for seed, loss in enumerate(values):
            lines[bench.Cell(setting, mixer, match, seed)] = {
                "metrics": {
                    split: {"loss": loss} for split in SETTINGS[setting].splits
                },
                "parameters": 1000,
                "flops": 2e6 if match == "parameters" else 1e6,
                "steps": 10,
                "cpu_seconds": 60.0,
            }
    return lines


GOOD = {
    (REFERENCE, ""): [2.0, 2.1, 2.2],
    ("gmlp", "parameters"): [1.9, 2.0, 2.1],
    ("gmlp", "flops"): [1.8, 1.9, 2.1],
}


def test_verdicts_by_hand():
    """The interval of three equal differences is a point; of others, within them."""
    assert bench_report.judge([-0.1]) == "open"
    assert bench_report.judge([]) == "open"
    assert bench_report.judge([-0.1, float("nan")]) == "open"
    assert bench_report.judge([-0.1, -0.2, -0.3]) == "supported"
    assert bench_report.judge([0.1, 0.2, 0.3]) == "contradicted"
    assert bench_report.judge([-0.1, -0.2, 0.3]) == "undecided"
    # All draws of a third each would be needed to leave 0.05 out: 1 in 27 has only 0.1.
    assert bench_report.judge([0.01, 0.04, 0.03], near=True) == "supported"
    assert bench_report.judge([0.06, 0.07, 0.08], near=True) == "contradicted"
    assert bench_report.judge([0.0, 0.01, 0.1], near=True) == "undecided"
    assert bench_report.judge([-0.3, -0.2, -0.1], near=True) == "supported"


def test_tests_of_a_claim_have_to_agree():
    assert bench_report.join(["supported", "supported"]) == "supported"
    assert bench_report.join(["supported", "contradicted"]) == "undecided"
    assert bench_report.join(["supported", "undecided"]) == "undecided"
    assert bench_report.join(["supported", "open"]) == "open"


def test_items_of_claims():
    claim = Claim("gMLP is better", "a paper", [("mlm", "gmlp", REFERENCE)])
    lines = made_up(GOOD)
    assert bench_report.item(claim, lines) == (
        "- **Supported**: gMLP is better (a paper).\n"
        "    - mlm (validation), gmlp less attention at equal parameters: -0.1 "
        "(-0.1 to -0.1)\n"
        "    - mlm (validation), gmlp less attention at equal FLOPs: -0.167 "
        "(-0.2 to -0.1)"
    )
    two = {cell: line for cell, line in lines.items() if cell.seed < 2}
    assert "**Supported, so far, by 2 seeds**" in bench_report.item(claim, two)
    one = {cell: line for cell, line in lines.items() if cell.seed < 1}
    assert bench_report.item(claim, one) == (
        "- **Open**: gMLP is better (a paper).\n"
        "    - mlm (validation), gmlp less attention at equal parameters: -0.1\n"
        "    - mlm (validation), gmlp less attention at equal FLOPs: -0.2"
    )
    assert bench_report.item(claim, {}).endswith("No runs.")
    # On gen it is worse.
    lines = made_up(GOOD, "seq2seq")
    for cell, line in lines.items():
        if cell.mixer == "gmlp":
            line["metrics"]["gen"] = {"loss": line["metrics"]["dev"]["loss"] + 0.3}
    claim = Claim("gMLP is better", "a paper", [("seq2seq", "gmlp", REFERENCE)])
    both = bench_report.item(claim, lines)
    assert both.startswith("- **Undecided**")
    assert "seq2seq (dev), gmlp less attention at equal parameters: -0.1" in both
    assert "seq2seq (gen), gmlp less attention at equal parameters: +0.2" in both
    untested = Claim("Cows fly", "a tale", why_not="there are no cows")
    assert bench_report.item(untested, {}) == (
        "- **Not testable at this size**: Cows fly (a tale). Here there are no cows."
    )


def test_page_of_made_up_runs(tmp_path):
    path = tmp_path / "bench.md"
    path.write_text(f"# Mixers\n\nProse.\n\n{bench_report.MARK}\nold\n")
    cells = bench.plan(3, "mlm-(attention|gmlp)")
    bench_report.write_page(tmp_path, made_up(GOOD), cells)
    page = path.read_text()
    assert page.startswith(f"# Mixers\n\nProse.\n\n{bench_report.MARK}\n## Results\n")
    assert "old" not in page
    assert "9 of 9 runs are there: 3 of 3 with seed 0, 3 of 3 with seed 1" in page
    assert "They took 9 minutes of CPU time." in page
    assert "| attention | 3 | 10 | 2.1 | 0.1 | 2 to 2.2 |" in page
    assert (
        "| gmlp | 3 | 10 | 2 | 0.1 | 1.9 to 2.1 | -0.1 | -0.1 to -0.1 | 3 | 1,000 |"
        in page
    )
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_that_of_the_results():
    """`--report` was run after the last runs."""
    text = (RESULTS / "bench.md").read_text(encoding="utf-8")
    lines = bench.read_lines(RESULTS)
    expected = bench_report.page(lines, bench.plan(bench_report.SEEDS))
    assert text.partition(bench_report.MARK)[2] == f"\n{expected}"
    for cell, line in lines.items():
        reference = lines[bench.Cell(cell.setting, REFERENCE, "", 0)]
        match = cell.match or "parameters"
        assert line[match] == pytest.approx(reference[match], rel=5e-3)


def test_plan_has_a_seed_of_all_before_the_next():
    cells = bench.plan(2)
    assert len(cells) == len(set(cells)) and len(cells) % 2 == 0
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    names = {(cell.setting, cell.mixer, cell.match) for cell in cells}
    for setting in SETTINGS:
        assert (setting, REFERENCE, "") in names
        for match in MATCHES:
            assert (setting, "gmlp", match) in names
    assert {m for s, m, _ in names if s == "mlm"} - {
        m for s, m, _ in names if s == "lm"
    } == {*FOR_ENCODERS}
    assert {*FOR_ENCODERS} == {*test_mixers.FOR_ENCODERS}
    assert [c.name for c in bench.plan(1, "^mlm-(attention|fnet)")] == [
        "mlm-attention",
        "mlm-fnet-parameters",
        "mlm-fnet-flops",
    ]


def test_claims_are_about_contestants():
    for claim in CLAIMS:
        assert bool(claim.pairs) != bool(claim.why_not)
        for setting, first, second in claim.pairs:
            assert {first, second} <= {*contestants(setting)}


def a_line(**changes):
    cell = {"setting": "lm", "mixer": "tnn", "match": "flops", "seed": 0}
    size = {"width": 9, "parameters": 10, "flops": 11}
    known = {"gin": [], "settings": "12", "data": ["34"]}
    result = {"metrics": {"validation": {"loss": 2.0}}, "steps": 5, "cpu_seconds": 6.0}
    return {**cell, **size, **known, **result, **changes}


def write_lines(folder, *lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "bench.jsonl").write_text(text)


@pytest.mark.parametrize(
    "changes",
    [
        # Of one setting:
        {"mixer": "spatial", "steps": 6},
        {"mixer": "spatial", "data": ["56"]},
        # Of one contestant, whose seed alone may change:
        {"settings": "56"},
        {"width": 8},
        {"parameters": 11},
        {"flops": 12},
    ],
)
def test_lines_that_do_not_belong_in_one_table(changes, tmp_path):
    write_lines(tmp_path, a_line(), a_line(seed=1, **changes))
    with pytest.raises(ValueError, match="line 2: .* cannot stand in a table with"):
        bench.read_lines(tmp_path)


def test_lines_that_belong_in_one_table(tmp_path):
    other = a_line(mixer="spatial", width=8, parameters=9, flops=8, settings="56")
    write_lines(tmp_path, a_line(), a_line(seed=1), other, a_line(setting="mlm"))
    assert len(bench.read_lines(tmp_path)) == 4


def test_a_run_that_is_there_twice(tmp_path):
    write_lines(tmp_path, a_line(), a_line(metrics={"validation": {"loss": 9.0}}))
    with pytest.raises(ValueError, match="line 2, is the second of lm-tnn-flops, seed"):
        bench.read_lines(tmp_path)


@pytest.mark.slow
def test_runs_of_other_settings_are_not_resumed(tmp_path):
    """Gin, a gin file's content, and the text each decide."""
    own = tmp_path / "own.gin"
    own.write_text("D_MODEL = 16\n")
    text = runs.text_files(write_text(tmp_path / "text"))
    data = dict.fromkeys(SETTINGS, text)
    cell, gin = bench.Cell("lm", "tnn", "flops", 0), [str(own)]
    line = a_line(**bench._known(cell, gin, text))

    def check(*more):
        bench._check([], {cell: line}, [*gin, *more], data)

    check()
    with pytest.raises(
        ValueError, match="that ran with other settings, by .*Set another"
    ):
        check("TRAIN_STEPS = 3")
    with pytest.raises(ValueError, match="sets a macro that nothing uses"):
        check("TRIAN_STEPS = 3")
    own.write_text("# Another text.\nD_MODEL = 16\n")
    check()
    own.write_text("D_MODEL = 8\n")
    with pytest.raises(
        ValueError, match="that ran with other settings, by .*Set another"
    ):
        check()
    own.write_text("D_MODEL = 16\n")
    (tmp_path / "text" / "more.txt").write_text("more")
    runs.data_of.cache_clear()
    with pytest.raises(ValueError, match="that ran with another --text. Set another -"):
        check()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--text=TEXT", "--variants=mlm-fnett"],
            "matches no name. Nearest: mlm-fnet-",
        ),
        (["--text=TEXT", "--variants=("], "is a regular expression: missing )"),
        (["--text=OUTPUT"], "has no *.txt, *.txt.gz, *.jsonl, *.jsonl.gz in it or bel"),
        (["--text=TEXT", "--seeds=0"], "--seeds: expected 1, 2, ... Received: '0'"),
        (
            ["--text=TEXT", "--workers=-1"],
            "--workers: expected 1, 2, ... Received: '-1'",
        ),
        (["--text=TEXT", "--output=/dev/null"], "--output=/dev/null cannot be written"),
        (["--report"], "has no bench.jsonl with runs. Name the folder that"),
        ([], "--text names the folder of text files to train on."),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    arguments, words, tmp_path, capsys
):
    output, text = tmp_path / "output", write_text(tmp_path / "text")
    given = [f"--output={output}", *arguments]
    given = [
        x.replace("TEXT", str(text)).replace("=OUTPUT", f"={output}") for x in given
    ]
    with pytest.raises((ValueError, SystemExit)) as error:
        bench.main(given)
    of_argparse = isinstance(error.value, SystemExit)
    message = capsys.readouterr().err if of_argparse else str(error.value)
    assert words in message and (of_argparse or "\n" not in message)
    assert not output.exists()


@pytest.mark.parametrize(
    "end",
    [
        "{",
        '{"setting": "lm"}\n',
        "[]\n",
        json.dumps(a_line(seed="0")) + "\n",
        json.dumps(a_line(setting="lmm")) + "\n",
        json.dumps(a_line(mixer="tnnn")) + "\n",
        json.dumps(a_line(match="")) + "\n",
        json.dumps(a_line(metrics={})) + "\n",
        json.dumps(a_line(metrics={"validation": {"loss": None}})) + "\n",
        json.dumps(a_line(steps="5")) + "\n",
        json.dumps({k: v for k, v in a_line().items() if k != "data"}) + "\n",
        None,
    ],
)
def test_a_line_that_is_not_whole(end, tmp_path):
    """One without its end too, to which the next line would be written."""
    lines = [json.dumps(a_line()), json.dumps(a_line(seed=1))]
    text = "\n".join(lines) if end is None else lines[0] + "\n" + end
    (tmp_path / "bench.jsonl").write_text(text)
    with pytest.raises(ValueError, match="line 2, is no whole line .* Remove it: its"):
        bench.read_lines(tmp_path)


@pytest.mark.slower
def test_a_run_that_fails_is_one_line(tmp_path, capfd):
    text = write_text(tmp_path / "text")
    given = f"--output={tmp_path}", f"--text={text}", "--seeds=1", "--variants=mlm-att"
    with pytest.raises(
        ValueError, match="1 runs failed, .*: mlm-attention, seed 0. Run"
    ):
        bench.main([*given, "--gin=TRAIN_STEPS = 3"])
    shown = capfd.readouterr().err
    message = "The run mlm-attention failed: total_steps must be more than warmup_steps"
    assert f"error: {message}" in shown and "Traceback" not in shown
    assert (tmp_path / "bench.jsonl").read_text() == ""


@pytest.mark.slower
def test_two_mixers(tmp_path):
    """Both matches of FNet, in this process, which has TensorFlow already."""
    text = write_text(tmp_path / "text")
    data = runs.text_files(text)
    lines = []
    for cell in bench.plan(1, "mlm-(attention|fnet)"):
        lines.append(bench.measure(cell, None, TINY, data))
    attention, parameters, flops = lines
    assert parameters["parameters"] == pytest.approx(attention["parameters"], rel=5e-3)
    assert flops["flops"] == pytest.approx(attention["flops"], rel=5e-3)
    assert parameters["width"] > attention["width"]  # FNet's mixing has no weights.
    assert all(3 < x["metrics"]["validation"]["loss"] < 8 for x in lines)
    again = bench.measure(bench.Cell("mlm", "fnet", "flops", 0), flops, TINY, data)
    assert again["metrics"] == flops["metrics"]
