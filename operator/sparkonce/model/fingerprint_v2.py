"""Version 2 of the canonical form of a job: version 1 without the settings that say who asks for the job. Frozen, like version 1.

Left out are the settings and variables of `lineage` and the settings that `spec.ignoredConf` names. One that the template itself refers
to (`$(TRACEPARENT)` in an argument, `${spark.openlineage.parentRunId}` in a setting) becomes part of another value, so it must match.

A job that has none of them has the same digest under both versions. So a record names the oldest version that yields its digest, and
processes of an earlier version can read the records of such jobs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sparkonce.model import fingerprint_v1
from sparkonce.model.application import lineage
from sparkonce.model.application.expansion import FORWARDING
from sparkonce.model.fields import field_classes
from sparkonce.model.fingerprint_v1 import Canonical
from sparkonce.model.spec import IdempotentJob

VERSION = 2


def canonical(job: IdempotentJob, contents: Mapping[str, str]) -> Canonical:
    """The must-match part of a job. Raises: UnknownTemplateKind: no field classes are registered."""
    written = json.dumps(job.spec.template.spec, ensure_ascii=False)
    if any(name in written for name in (*lineage.CONF, *lineage.ENVIRONMENT, *job.spec.ignored_conf)):
        job = _without_caller(job, written)
    return fingerprint_v1.canonical(job, contents)


def _without_caller(job: IdempotentJob, written: str) -> IdempotentJob:
    """The job without what says who asks for it. written: its template's spec."""
    template = job.spec.template
    classes = field_classes(template.api_version, template.kind, version=fingerprint_v1.VERSION)
    variables = {name for name in lineage.ENVIRONMENT if f"$({name})" not in written}
    settings = {*lineage.CONF, *job.spec.ignored_conf}
    settings |= {f"{prefix}{name}" for prefix in FORWARDING.values() for name in variables}
    settings = {name for name in settings if f"${{{name}}}" not in written}
    kept: dict[str, Any] = dict(template.spec)
    if classes.spark_conf:
        kept = _filtered(kept, classes.spark_conf.split("."), settings)
    for path in classes.conf:
        if path.rpartition(".")[2] == "envVars":
            kept = _filtered(kept, path.split("."), variables)
    for path in classes.environment:
        kept = _filtered(kept, path.split("."), variables)
    spec = job.spec.model_copy(update={"template": template.model_copy(update={"spec": kept})})
    return job.model_copy(update={"spec": spec})


def _filtered(fields: Mapping[str, Any], path: list[str], names: Collection[str]) -> dict[str, Any]:
    """A copy without the entries of these names in the map, or list of named entries, at the path."""
    first, *rest = path
    here = fields.get(first)
    if rest:
        return {**fields, first: _filtered(here, rest, names)} if isinstance(here, dict) else dict(fields)
    if isinstance(here, dict):
        return {**fields, first: {name: value for name, value in here.items() if name not in names}}
    if isinstance(here, list):
        left = [each for each in here if not (isinstance(each, dict) and str(each.get("name")) in names)]
        return {**fields, first: left}
    return dict(fields)
