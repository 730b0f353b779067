"""Tables for a terminal, or in Markdown."""

import rich.console
import rich.table

FORMATS = ("text", "markdown", "csv")  # csv is each table's own matter
_WIDTH = 200  # of the terminal that a text table may need


def write_table(file, format, title, header, rows, labels=1):
    """Writes one table.

    Args:
        file: a text file to write to.
        format: "text" or "markdown".
        title: str, "" for none.
        header: list of str.
        rows: list of lists of str.
        labels: int, the columns that are aligned to the left; the others are numbers.
    """
    (_write_text if format == "text" else _write_markdown)(
        file, title, header, rows, labels
    )


def _write_text(file, title, header, rows, labels):
    table = rich.table.Table(title=title or None)
    for i, heading in enumerate(header):
        # A word a line keeps columns narrow.
        justify = "left" if i < labels else "right"
        table.add_column(heading.replace(" ", "\n"), justify=justify)
    for row in rows:
        table.add_row(*row)
    # Cells are as they are: gin's lists look like rich's markup.
    console = rich.console.Console(file=file, width=_WIDTH, markup=False, emoji=False)
    console.print(table)


def _write_markdown(file, title, header, rows, labels):
    if title:
        file.write(f"\n{title}\n\n")
    rule = ["---"] * labels + ["---:"] * (len(header) - labels)
    for row in (header, rule, *rows):
        cells = (cell.replace("|", "\\|") for cell in row)
        file.write(f"| {' | '.join(cells)} |\n")
