#!/usr/bin/env python3
"""Stands in for spark-submit where no JVM is wanted: skips its options and becomes the main file, run by PYSPARK_PYTHON.

Named by SPARKONCE_SPARK_SUBMIT. Everything around it (the wrapper, the attempt's folder, environment, locks, signals) is the real one.
An option that it does not know ends it: a new option of ours must not silently be taken for the main file.
"""

from __future__ import annotations

import os
import sys

WITH_VALUE = {
    "--archives",
    "--class",
    "--conf",
    "--driver-class-path",
    "--exclude-packages",
    "--files",
    "--jars",
    "--master",
    "--name",
    "--packages",
    "--py-files",
    "--repositories",
}


def main_file(arguments: list[str]) -> list[str]:
    """The main file and its arguments."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        if rest[0] not in WITH_VALUE:
            sys.exit(f"fake_submit: {rest[0]} is not an option that it knows")
        del rest[:2]
    if not rest:
        sys.exit("fake_submit: no main file")
    return rest


if __name__ == "__main__":
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    os.execv(python, [python, *main_file(sys.argv[1:])])
