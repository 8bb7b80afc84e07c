"""Settings and variables that say who asked for a run: lineage and trace context that a scheduler sets anew for every try.

They link the run to its caller and do not change what the application computes, so the second try of a scheduler's task is a duplicate and
gets the first one's result. The application receives them unchanged; only the fingerprint leaves them out (`fingerprint_v2`).

Exact names, each with its source. Settings of the same tools that say *where* lineage is sent (`spark.openlineage.transport.*`) or how it
is named (`spark.openlineage.namespace`) are the job's own and must match, and so is W3C `BAGGAGE`, which carries values of the application.
A name that is missing here refuses a duplicate, and `spec.ignoredConf` adds it; a name too many would replay another job's result.

Frozen, because fingerprints in ledgers were made with it: a further name belongs to a further version of the fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping

_OPENLINEAGE = "https://openlineage.io/docs/integrations/spark/configuration/spark_conf"
_ROOT = "https://openlineage.io/docs/integrations/spark/configuration/airflow"
_TRACE_CONTEXT = "https://opentelemetry.io/docs/specs/otel/context/env-carriers/"

CONF: Mapping[str, str] = {
    "spark.openlineage.parentJobNamespace": _OPENLINEAGE,
    "spark.openlineage.parentJobName": _OPENLINEAGE,
    "spark.openlineage.parentRunId": _OPENLINEAGE,
    "spark.openlineage.rootParentJobNamespace": _ROOT,
    "spark.openlineage.rootParentJobName": _ROOT,
    "spark.openlineage.rootParentRunId": _ROOT,
}
"""Names in `sparkConf` -> where they are documented."""

ENVIRONMENT: Mapping[str, str] = {"TRACEPARENT": _TRACE_CONTEXT, "TRACESTATE": _TRACE_CONTEXT}
"""Environment variables of driver and executors -> where they are documented."""
