"""Tables for a terminal, in Markdown or as CSV."""

import csv

import rich.console
import rich.table

FORMATS = ("text", "markdown", "csv")
_WIDEST = 60  # letters of a cell in a line; longer text has several lines


def write_table(file, format, title, header, rows, labels=1):
    """Writes a table of str in a format of `FORMATS` to a text file; CSV has no title.

    Nothing is cut: a table of text is as wide as it has to be. The first `labels`
    columns are aligned to the left. The others are numbers.
    """
    if format == "csv":
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
        return
    if format == "markdown":
        if title:
            file.write(f"\n{title}\n\n")
        rule = ["---"] * labels + ["---:"] * (len(header) - labels)
        for row in (header, rule, *rows):
            cells = (cell.replace("|", "\\|") for cell in row)
            file.write(f"| {' | '.join(cells)} |\n")
        return
    table = rich.table.Table(title=title or None)
    for i, heading in enumerate(header):
        # A word a line keeps columns narrow.
        justify = "left" if i < labels else "right"
        heading = heading.replace(" ", "\n")
        table.add_column(heading, justify=justify, overflow="fold", max_width=_WIDEST)
    for row in rows:
        table.add_row(*row)
    # Without markup, since gin's lists look like rich's.
    width = (_WIDEST + 3) * len(header) + 1
    console = rich.console.Console(file=file, width=width, markup=False, emoji=False)
    console.print(table)
