"""`kubectl sparkonce rerun -f FILE`: applies a job with the annotation that runs it again.

It needs no gateway: kubectl applies the object with the user's own rights, and the operator answers in its status. The annotation is no
part of the file, so that the next `kubectl apply` of it asks for nothing. What the file has of other annotations stays.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence

from sparkonce.attempt import rerun
from sparkonce.cli.kubectl.gateway import GatewayUnavailable, Reach
from sparkonce.cli.options import JobArguments
from sparkonce.errors import InvalidInput
from sparkonce.model.validation import InvalidJob

APPLIES = 60.0
"""Seconds for kubectl: an exec plugin may run first."""


def apply_again(reach: Reach, file: str, reason: str, *, params: Sequence[str] | None = None) -> Iterator[str]:
    """Applies the job of a file, with its parameters filled in, and returns what to print.

    Raises: InvalidInput: nothing was applied. GatewayUnavailable: unknown; the same command again never opens two generations."""
    if not reason:
        raise InvalidInput("--reason TEXT is required beside -f: by it a command that is repeated is known")
    if problem := rerun.problem_of(reason):
        raise InvalidInput(f"--reason becomes {problem.removeprefix('the ')}")
    asked = JobArguments.of(file, params=params)
    job = asked.job()
    if job.metadata.name is None:
        raise InvalidJob([("metadata.name", "is required to apply the job")], source=asked.source)
    document = job.document()
    metadata = document["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), rerun.ANNOTATION: reason}
    place = ["-n", reach.namespace] if reach.namespace else []
    command = reach.kubectl("apply", *place, "-f", "-")
    try:
        done = subprocess.run(
            command, input=json.dumps(document), capture_output=True, text=True, timeout=APPLIES, check=False
        )
    except subprocess.TimeoutExpired:
        raise GatewayUnavailable(f"kubectl said nothing within {APPLIES:g} s; send the same command again") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"it ended with exit code {done.returncode}"
        raise InvalidInput(f"kubectl apply: {said}")
    return iter([*done.stdout.splitlines(), f"asked: {rerun.quoted(reason)}; its status shows the generation"])
