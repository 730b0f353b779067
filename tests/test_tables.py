"""Tables as text, in Markdown and as CSV."""

import io

import pytest

from remixer_tf.tables import aligned, markdown, write_table


def test_nothing_of_a_table_is_cut():
    values = [f"[{', '.join(f'@layer_{i}_{j}' for j in range(30))}]" for i in range(20)]
    header = ["binding", *(f"a run with rate {i}" for i in range(20))]
    file = io.StringIO()
    write_table(file, "text", "What differs", header, [["SUBLAYERS", *values]])
    lines = [x.split("│") for x in file.getvalue().splitlines() if "│" in x]
    joined = ["".join(map(str.strip, x)) for x in zip(*lines, strict=True)][2:-1]
    joined, values = ([x.replace(" ", "") for x in texts] for texts in (joined, values))
    assert joined == values


def test_every_row_of_markdown_is_a_line_with_its_cells():
    rows = [["a|b", 2], ["c\nd", None]]
    assert markdown(["name", "value"], rows, labels=1).splitlines() == [
        "| name | value |",
        "| --- | ---: |",
        "| a&#124;b | 2 |",
        "| c d | None |",
    ]
    assert markdown(["name"]) == "| name |\n| --- |"


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("csv", "name,loss\na,1\nb,2\n"),
        ("markdown", "\nT\n\n| name | loss |\n| --- | ---: |\n| a | 1 |\n| b | 2 |\n"),
    ],
)
def test_a_line_between_rows_is_for_text_alone(format, expected):
    shown = {}
    for kind in (format, "text"):
        file = io.StringIO()
        write_table(file, kind, "T", ["name", "loss"], [["a", "1"], None, ["b", "2"]])
        shown[kind] = file.getvalue()
    assert shown[format] == expected
    lines = shown["text"].splitlines()
    assert ["│ a" in lines[-4], "─" in lines[-3], "│ b" in lines[-2]] == [True] * 3


def test_columns_as_wide_as_they_have_to_be():
    rows = [["BoolQ", "CB"], ["71.2", "80.1/90.0"]]
    assert aligned(rows) == ["BoolQ  CB", "71.2   80.1/90.0"]
    assert aligned(rows, str.rjust) == ["BoolQ         CB", " 71.2  80.1/90.0"]
