"""Rows that a task cannot use: counted by kind and split, and told."""

import collections

_FIRST = 5  # line numbers that a report tells


class BadRows:
    """The bad rows of a task.

    Args:
        task: str, its name.
    """

    def __init__(self, task):
        self._task = task
        self._lines = collections.defaultdict(list)  # (split, kind) -> line numbers

    def add(self, split, kind, line):
        """Counts a row.

        Args:
            split: str.
            kind: str, what is wrong, such as "empty target".
            line: int, its line in the file of the split.
        """
        self._lines[split, kind].append(line)

    def count(self):
        """Returns how many bad rows there are."""
        return sum(map(len, self._lines.values()))

    def report(self, files, rows, handling):
        """Returns the counts by split and kind, with the first few line numbers.

        Args:
            files: dictionary, split -> file.
            rows: int, how many rows there are, the bad ones among them.
            handling: str, what becomes of the bad ones, such as "skipped".
        """
        text = [f"{self._task}: {self.count():,} of {rows:,} rows are {handling}:"]
        for split, file in files.items():
            for (its_split, kind), lines in self._lines.items():
                if its_split == split:
                    first = ", ".join(map(str, sorted(lines)[:_FIRST]))
                    more = ", ..." if len(lines) > _FIRST else ""
                    text.append(
                        f"  {split}, {kind}: {len(lines):,} (line {first}{more} of "
                        f"{file})"
                    )
        return "\n".join(text)
