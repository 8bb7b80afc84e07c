#!/usr/bin/env python3
"""Replaces spark-submit without a JVM: skips its options and executes the main file with PYSPARK_PYTHON.

It is configured by SPARKONCE_SPARK_SUBMIT. Everything around it (the wrapper, the attempt's folder, environment, locks, signals) is real.
It exits at an unknown option, so that a new option of ours is not silently taken for the main file.
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
