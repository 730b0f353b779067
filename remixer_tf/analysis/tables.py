"""Tables for a terminal, or in Markdown."""

import rich.console
import rich.table

FORMATS = ("text", "markdown", "csv")  # csv is each table's own matter
_WIDTH = 200  # of the terminal that a text table may need


def write_table(file, format, title, header, rows, labels=1):
    """Writes a table to a text file as "text" or "markdown".

    Args:
        file, format, title: what to write to, how, and a str, "" for no title.
        header, rows: list of str, and list of such lists.
        labels: int, the columns that are aligned to the left; the others are numbers.
    """
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
    # Cells are as they are: gin's lists look like rich's markup.
    console = rich.console.Console(file=file, width=_WIDTH, markup=False, emoji=False)
    console.print(table)
