"""Follows a folder of CSV files into a lane: `python examples/taps/tap.py LANDING TABLE`. TABLE may be a topic: `kafka://HOST:PORT/TOPIC`.

Every row is in the table once, however often this program is killed and started again. The position is a file and a line of it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import sparkonce


def rows_after(
    landing: Path, position: dict[str, object] | None
) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """The rows of all files, in the order of the files' names, from a position on; each with its own position."""
    done = position or {"file": "", "line": 0}
    for path in sorted(landing.glob("*.csv")):
        if path.name < str(done["file"]):
            continue
        with path.open(newline="") as file:
            for line, row in enumerate(csv.DictReader(file), 1):
                if path.name != done["file"] or line > int(str(done["line"])):
                    yield {**row, "delay": int(row["delay"])}, {"file": path.name, "line": line}


def main(landing: Path, table: str) -> None:
    with sparkonce.writer(table, name="departures", linger=0.5) as writer:
        print(f"goes on after {writer.position}")
        for row, position in rows_after(landing, writer.position):
            writer.append(row, position=position)
    print(f"has written up to {writer.position}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
