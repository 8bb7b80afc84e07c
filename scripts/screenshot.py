"""Makes docs/images/keys-explain.svg: the real output of `sparkonce keys explain` for a held key.

A job with two outputs runs on an empty ledger; its script writes one of them and fails, and the job allows one attempt. The key is held,
since neither "succeeded" nor "failed" would be true. No JVM is needed: spark-submit is replaced as in the tests.

    PYTHONPATH=tests .venv/bin/python scripts/screenshot.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "docs" / "images" / "keys-explain.svg"
WIDTH = 108
KEY = "load-flights/flights/2013-01@1"
JOB = """
apiVersion: sparkonce.dev/v1alpha1
kind: IdempotentJob
metadata: {name: load-flights}
spec:
  operation: load-flights
  resource: flights/2013-01
  template:
    apiVersion: sparkoperator.k8s.io/v1beta2
    kind: SparkApplication
    spec: {type: Python, mainApplicationFile: load.py}
  outputs:
    - {name: flights, slotLog: {path: lake/flights}}
    - {name: delays, slotLog: {path: lake/delays}}
  retry: {maxAttempts: 1}
"""
SCRIPT = """
import sys
from harness.arrow_stage import arrow_stage, table_of
from sparkonce.driver.current import current

current(stager=arrow_stage).write(table_of(*range(27004)), "flights")
sys.exit("column dep_delay is missing")
"""


def explained(folder: Path) -> str:
    """Runs the job and returns the output of `keys explain` for its key."""
    (folder / "job.yaml").write_text(JOB)
    (folder / "load.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        "SPARKONCE_SPARK_SUBMIT": str(ROOT / "tests" / "harness" / "fake_submit.py"),
        "SPARKONCE_STORE": str(folder / "ledger.db"),
        "COLUMNS": str(WIDTH),
    }

    def sparkonce(*arguments: str) -> str:
        command = [sys.executable, "-m", "sparkonce", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout

    sparkonce("run", "job.yaml")
    return sparkonce("keys", "explain", KEY)


def svg(text: str) -> str:
    """The text as a picture of a terminal; the same text gives the same bytes."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (f"sparkonce keys explain {KEY}", "bold")))
    for line in text.splitlines():
        label = re.match(r"\w+(?: \w+)* +", line)
        assert label is not None, f"not a row of the table: {line!r}"
        indent = " " * label.end()
        first, *others = textwrap.wrap(line[label.end() :], WIDTH - label.end())
        console.print(Text.assemble((label[0], "cyan"), first))
        for other in others:
            console.print(Text(indent + other))
    picture = console.export_svg(title="sparkonce", unique_id="keys-explain")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # a picture in a README may not load fonts
    return re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        text = explained(Path(folder))
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+", "/home/me", text)
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    IMAGE.write_text(svg(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
