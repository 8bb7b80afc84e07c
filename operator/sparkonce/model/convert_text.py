"""Writes a converted job as YAML that keeps the comments and the order of the application's file if possible.

The template's lines are taken from the file, indented anew, without those of dropped fields. The result is read again and used only if it
equals the conversion; otherwise (flow style, anchors defined elsewhere) the plain form is written, and the caller is told. A YAML library
that keeps comments was rejected: it would read numbers and dates differently from kubectl.

A job that a schedule sends becomes a template in a ConfigMap, with the tick as a parameter, beside the CronJob whose pods fill it in and
send it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkonce.model.convert import TICK, TICK_NAME, Converted, Schedule
from sparkonce.model.document.reader import read
from sparkonce.model.manifest import dump, render
from sparkonce.model.spec import API_VERSION
from sparkonce.model.validation import InvalidJob, Loc

INDENT = 6
"""Columns of a field of `spec.template.spec`."""
_IDLE = re.compile(r"\s*(#.*)?$")


def written(converted: Converted, text: str, *, lines: Mapping[Loc, int], source: str) -> tuple[str, bool]:
    """The manifest's text, and whether the file's own lines were kept."""
    head = [f"# From {converted.name} in {source}:", *(f"# - {note}" for note in converted.notes)]
    above = "\n".join(" ".join(line.split()) for line in head) + "\n"
    kept = _kept(converted, text, lines)
    if kept is not None:
        return above + kept, True
    return above + dump(converted.document), "#" not in text


def _kept(converted: Converted, text: str, lines: Mapping[Loc, int]) -> str | None:
    job: Mapping[str, Any] = converted.document
    template = {name: value for name, value in job["spec"]["template"].items() if name != "spec"}
    outer = {**job, "spec": {**{k: v for k, v in job["spec"].items() if k != "template"}, "template": template}}
    rows = text.splitlines()
    fields = [loc for loc in lines if loc[:-1] == converted.template]
    if not fields:
        return None
    first, end = min(lines[loc] for loc in fields), _end(converted.template, lines, len(rows))
    gone: set[int] = set()
    for loc in converted.dropped:
        gone |= _range(loc, rows, lines)
    block = [(number, rows[number - 1]) for number in range(lines[converted.template] + 1, end)]
    own = len(rows[first - 1]) - len(rows[first - 1].lstrip())
    shifted = [_shifted(row, INDENT - own) for number, row in block if number not in gone]
    tried = dump(outer) + "    spec:\n" + "\n".join(shifted).rstrip() + "\n"
    try:
        same = read(tried, source="").data == job
    except InvalidJob:
        return None
    return tried if same else None


def _end(loc: Loc, lines: Mapping[Loc, int], last: int) -> int:
    """The line after the field: that of the next one not below it."""
    after = [line for other, line in lines.items() if line > lines[loc] and other[: len(loc)] != loc]
    return min(after, default=last + 1)


def _range(loc: Loc, rows: list[str], lines: Mapping[Loc, int]) -> set[int]:
    """Lines of the field with the comments directly above it; comments below it belong to the next field."""
    begin, end = lines[loc], _end(loc, lines, len(rows))
    while end - 1 > begin and _IDLE.match(rows[end - 2]):
        end -= 1
    column = len(rows[begin - 1]) - len(rows[begin - 1].lstrip())
    while rows[begin - 2].startswith(" " * column + "#") and begin > 1:
        begin -= 1
    return set(range(begin, end))


def _shifted(row: str, by: int) -> str:
    if not row.strip():
        return ""
    if by >= 0:
        return " " * by + row
    free = len(row) - len(row.lstrip())
    return row[min(-by, free) :]


SEND = """\
# Sends the job of one tick. Kubernetes names the Job of a tick by its time, in minutes since 1970, also when the Job is recreated; a Job
# that a person makes (kubectl create job --from=cronjob/...) counts as the tick of its name.
tick=$JOB
minutes=${JOB#%s-}
case $minutes in
[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]) tick=$(date -u -d "@$((minutes * 60))" +%%Y-%%m-%%dT%%H:%%MZ) ;;
esac
exec sparkonce send /etc/sparkonce/job.yaml --namespace "$NAMESPACE" --param "name=$JOB" --param "tick=$tick"
"""
RETRIES = 20
"""Times a pod that could not send is started again: more than an hour, since pauses grow to five minutes."""
_REFERENCE = re.compile(r"\$\$\{|\$\{(?=params\.)")


def cron_job(converted: Converted, schedule: Schedule, manifest: str, *, image: str) -> str:
    """The CronJob that sends a job for each tick, and what it needs: the job as a template, a service account and its rights.

    manifest: the job as `written` returned it. image: one that has `sparkonce send`.

    Raises: InvalidJob: the template cannot be filled in as it is."""
    lines = manifest.split("\n")
    comments = [line for line in lines if line.startswith("#")]
    text = "\n".join(line for line in lines if not line.startswith("#"))
    template = _REFERENCE.sub(lambda found: f"${found[0]}", text)  # text that looks like a parameter but is not one
    template = template.replace(TICK, "${params.tick}").replace(TICK_NAME, "${params.name}")
    filled = render(template, params={"tick": TICK, "name": TICK_NAME}, source="")
    if read(filled, source="").data != converted.document:
        raise InvalidJob(
            [("spec.template", "cannot be made a template of each tick; send its jobs by a program of your own")]
        )
    name, others = schedule.name, f"{schedule.name}-tick"
    metadata = {"namespace": schedule.namespace}
    files = {"job.yaml": template, "send.sh": SEND % name}
    data = "".join(f"  {file}: |\n{_indented(content)}" for file, content in files.items())
    config = (
        dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": others, **metadata}}) + f"data:\n{data}"
    )
    documents = ["\n".join(comments) + "\n" + config]
    documents += map(dump, [*_rights(others, metadata), _cron_job(schedule, others, metadata, image)])
    return "---\n".join(documents)


def _indented(content: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in content.removesuffix("\n").split("\n"))


def _rights(name: str, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    group = API_VERSION.partition("/")[0]
    rule = {"apiGroups": [group], "resources": ["idempotentjobs"], "verbs": ["create", "get"]}
    rbac, there = "rbac.authorization.k8s.io", {"name": name, **metadata}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(there)},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": dict(there), "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": dict(there),
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, **metadata}],
        },
    ]


def _cron_job(schedule: Schedule, account: str, metadata: Mapping[str, Any], image: str) -> dict[str, Any]:
    def from_pod(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    container = {
        "name": "send",
        "image": image,
        "command": ["sh", "-e", "/etc/sparkonce/send.sh"],
        "env": [
            {"name": "JOB", "valueFrom": from_pod("metadata.labels['batch.kubernetes.io/job-name']")},
            {"name": "NAMESPACE", "valueFrom": from_pod("metadata.namespace")},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "job", "mountPath": "/etc/sparkonce", "readOnly": True}],
    }
    pod = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": account,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "job", "configMap": {"name": account}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": schedule.name, **metadata},
        "spec": {
            "schedule": schedule.cron,
            **({"timeZone": schedule.time_zone} if schedule.time_zone else {}),
            **({"suspend": True} if schedule.suspend else {}),
            "jobTemplate": {"spec": {"backoffLimit": RETRIES, "template": {"spec": pod}}},
        },
    }
