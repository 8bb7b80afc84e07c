"""What this machine has to run Spark with: Java and spark-submit.

Looked at before a job is *started*, never for a replay: a missing Java would otherwise use up the attempts of the key, and its failure
would be replayed for days. Java's version is asked of Java itself, because a path says nothing; that is the one place that runs it.
Whoever names a spark-submit of their own (SPARKONCE_SPARK_SUBMIT) has seen to its Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sparkonce.errors import InvalidInput
from sparkonce.launch.submit import SUBMIT_ENVIRONMENT, spark_submit

JAVA = 17
"""The oldest that Spark 4 runs on."""
JAVA_ANSWERS = 20.0
"""Seconds that `java -version` may take: a cold JVM on a busy laptop needs two."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    path: str | None
    version: int | None
    said: str
    """What is there, or what is wrong; one line."""

    @property
    def fits(self) -> bool:
        return self.version is not None and self.version >= JAVA


def java() -> Java:
    """The Java that spark-submit would take: JAVA_HOME's, else the first on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        return Java(None, None, "no java is on PATH and JAVA_HOME is not set")
    whose = f"{path} (from JAVA_HOME)" if home else path
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, errors="replace", timeout=JAVA_ANSWERS, check=False
        )
    except OSError as problem:
        return Java(path, None, f"{whose} cannot be started ({problem.strerror})")
    except subprocess.TimeoutExpired:
        return Java(path, None, f"{whose} does not answer within {JAVA_ANSWERS:.0f} s")
    said = (done.stderr or done.stdout).strip()
    found = _VERSION.search(said)
    if done.returncode != 0 or found is None:
        return Java(
            path, None, f"{whose} fails (exit code {done.returncode}): {' '.join(said.split())[:120]}".rstrip(": ")
        )
    version = int(found[1])
    return Java(path, version, f"Java {version} at {whose}")


def check_spark() -> None:
    """InvalidInput: a job cannot be started here, and why; nothing was written."""
    spark_submit()
    if SUBMIT_ENVIRONMENT in os.environ:
        return
    found = java()
    if not found.fits:
        raise InvalidInput(
            f"Spark cannot start here: {found.said}; install Java {JAVA} or later, or set JAVA_HOME (`sparkonce doctor` tells more)"
        )
