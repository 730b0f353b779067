"""Tables for a terminal, in Markdown or as CSV."""

import csv

FORMATS = ("text", "markdown", "csv")
_WIDEST = 60  # letters of a cell in a line; longer text has several lines


def write_table(file, format, title, header, rows, labels=1, fold=False):
    """Writes a table of str in a format of `FORMATS` to a text file; CSV has no title.

    Nothing is cut: a table of text is as wide as it has to be, or with `fold` as the
    terminal, with cells of several lines. The first `labels` columns are aligned to the
    left. The others are numbers. A row that is None draws a line in a table of text.
    """
    if format == "text":
        _write_text(file, title, header, rows, labels, fold)
        return
    rows = [row for row in rows if row is not None]
    if format == "csv":
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
        return
    if title:
        file.write(f"\n{title}\n\n")
    file.write(markdown(header, rows, labels) + "\n")


def markdown(header, rows=(), labels=None):
    r"""Returns a table in Markdown, a str.

    Columns after the first `labels` are aligned to the right; None for no such column.

    Examples:
        >>> print(markdown(["model", "loss"], [["t5", 0.5], ["a|b", 2]], labels=1))
        | model | loss |
        | --- | ---: |
        | t5 | 0.5 |
        | a&#124;b | 2 |
    """
    labels = len(header) if labels is None else labels
    rule = ["---"] * labels + ["---:"] * (len(header) - labels)
    return "\n".join(map(markdown_row, (header, rule, *rows)))


def markdown_row(cells):
    """Returns one line of a table in Markdown, of any values."""
    # Not \|, which a backslash before it would undo.
    texts = (str(cell).replace("|", "&#124;").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(texts)} |"


def aligned(rows, justify=str.ljust):
    """Returns the lines of rows of str, whose columns are as wide as they have to be.

    Examples:
        >>> aligned([["model", "loss"], ["t5", "0.5"]])
        ['model  loss', 't5     0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justify, row, widths)).rstrip() for row in rows]


def _write_text(file, title, header, rows, labels, fold):
    import rich.console  # late, as all that is slow to import
    import rich.table

    table = rich.table.Table(title=title or None)
    for i, heading in enumerate(header):
        # A word a line keeps columns narrow.
        justify = "left" if i < labels else "right"
        heading = heading.replace(" ", "\n")
        table.add_column(heading, justify=justify, overflow="fold", max_width=_WIDEST)
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    # Without markup, since gin's lists look like rich's.
    width = None if fold else (_WIDEST + 3) * len(header) + 1
    console = rich.console.Console(file=file, width=width, markup=False, emoji=False)
    console.print(table)
