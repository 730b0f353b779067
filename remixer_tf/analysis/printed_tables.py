"""Tables for a terminal, in Markdown or as CSV."""

import csv

import rich.console
import rich.table

FORMATS = ("text", "markdown", "csv")
_WIDTH = 200  # columns of text, more than a terminal may have


def write_table(file, format, title, header, rows, labels=1):
    """Writes a table of str in a format of `FORMATS` to a text file; CSV has no title.

    The first `labels` columns are aligned to the left. The others are numbers.
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
        table.add_column(heading.replace(" ", "\n"), justify=justify)
    for row in rows:
        table.add_row(*row)
    # Without markup, since gin's lists look like rich's.
    console = rich.console.Console(file=file, width=_WIDTH, markup=False, emoji=False)
    console.print(table)
