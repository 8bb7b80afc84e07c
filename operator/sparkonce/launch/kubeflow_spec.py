"""The documents that are created for an attempt on kubeflow's Spark operator. Pure: from an assignment and a job to JSON.

An application is complete when it is created and never updated but to suspend it: any other edit of a SparkApplication runs it again,
and even an edit of its metadata, while it is being submitted, can submit it twice. So restartPolicy is Never, there is no TTL, and
whatever the Spark operator's webhook would fill in is filled in here, because the webhook may be off.

What a driver needs travels in `sparkConf`, the one way that needs no webhook. The text is plain ASCII without a dollar sign: a JVM in
a C locale garbles the rest of Unicode, and the kubelet expands `$(NAME)` and halves `$$` in environment values.

Refused (LaunchRefused): a template of another kind, an assignment that is too long for one environment variable. A fixed name of the
driver pod and a deploy mode other than cluster never get here: no job with them is valid (`model/spark_application.py`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import LaunchRefused
from sparkonce.launch.kubeflow import (
    API_VERSION,
    DRIVER_CONTAINER,
    KIND,
    NONCE,
    OBJECTS,
    OURS,
    STOPPING,
    THEIRS,
    Role,
    as_list,
    as_map,
    driver_pod_name,
    identity_of,
    labels_of,
    opaque,
)
from sparkonce.model.assignment import ENVIRONMENT, NONCE_ENVIRONMENT, Assignment
from sparkonce.model.fields import as_text
from sparkonce.model.policy import OnDelete
from sparkonce.model.record import SpecBody
from sparkonce.model.spec import API_VERSION as JOB_API_VERSION
from sparkonce.model.spec import KIND as JOB_KIND
from sparkonce.model.spec import IdempotentJob

ASSIGNMENT_LIMIT = 96 * 1024
"""Bytes. Linux takes 128 KiB in one argument or variable (MAX_ARG_STRLEN), and the text is both; the rest is for its name and growth."""
OBJECTS_LIMIT = 1000
"""Objects of one key that an application names: 37 bytes each, of the 256 KiB that all annotations may take."""
DRIVER_ENVIRONMENT = "spark.kubernetes.driverEnv."

_DRIVER_NEEDS = ("idempotencyKey", "operation", "resource", "revision", "outputs", "heartbeatTimeoutSeconds")
_ONLY_THE_JOBS = (
    *("coreLimit", "coreRequest", "memoryLimit", "memoryOverhead", "memoryOverheadFactor", "gpu"),
    *("javaOptions", "lifecycle", "sidecars", "ports"),
)
"""Of a driver: its size, and what stands beside it; a settle run needs neither."""
_SETTLE_COMMAND = 'exec "${PYSPARK_DRIVER_PYTHON:-${PYSPARK_PYTHON:-python3}}" -m sparkonce.driver.settle'
"""In place of the image's entry point; the arguments that Spark adds to the container are the shell's, which ignores them."""

_NOTHING = {"cpu": "0", "memory": "0"}

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Wanting:
    """An IdempotentJob object that wants the result, as it is now."""

    name: str
    namespace: str
    uid: str
    on_delete: OnDelete


def application(
    assignment: Assignment, job: IdempotentJob, objects: Sequence[Wanting], *, namespace: str
) -> dict[str, Any]:
    """The SparkApplication of this attempt. `job` is the launch template (a tunable edit may have changed it since the record's
    own spec); `objects` are all live objects of the key. LaunchRefused."""
    spec = _spec(job)
    conf = spec["sparkConf"] = {**as_map(spec.get("sparkConf")), **_told(assignment)}
    _defaults(spec, conf)
    for role in ("driver", "executor"):
        spec[role]["annotations"] = {**as_map(spec[role].get("annotations")), NONCE: assignment.nonce}
    metadata = _metadata(assignment, assignment.name, namespace, objects, job=job)
    if owners := _owners(assignment, objects, namespace):
        metadata["ownerReferences"] = owners
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def placeholder(assignment: Assignment, *, namespace: str, objects: Sequence[Wanting] = ()) -> Document:
    """Takes the name of an attempt for which no application was ever seen. It carries our nonce and our mark, and nothing of the
    job: whoever resumes it starts no driver, because it names no image."""
    metadata = _metadata(assignment, assignment.name, namespace, objects, role=Role.PLACEHOLDER)
    metadata["annotations"][STOPPING] = assignment.nonce
    spec: Document = {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.1.1",  # the CRD wants one; nothing reads it
        "mainApplicationFile": "local:///placeholder.py",
        "restartPolicy": {"type": "Never"},
        "suspend": True,
        "driver": {"cores": 1, "memory": "512m"},
        "executor": {"cores": 1, "memory": "512m", "instances": 1},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def settle_run(
    assignment: Assignment, job: IdempotentJob, *, namespace: str, objects: Sequence[Wanting] = ()
) -> Document:
    """The application that settles this attempt where its outputs can be reached: the job's image, service account, environment and
    volumes, our entry point. `assignment.run` counts from 1 within the attempt. It has no owners: whoever is deleted, what was done is
    still to be settled. LaunchRefused."""
    spec = _spec(job)
    for name in ("mainClass", "arguments", "deps", "dynamicAllocation", "monitoring", "executor"):
        spec.pop(name, None)
    spec["type"] = "Python"
    spec["mainApplicationFile"] = "local:///sparkonce/driver/settle.py"  # never opened: the command below is what runs
    conf = {name: value for name, value in as_map(spec.get("sparkConf")).items() if _place_of_a_driver(name)}
    spec["sparkConf"] = conf | _told(assignment)
    driver = spec["driver"]
    for name in _ONLY_THE_JOBS:
        driver.pop(name, None)
    annotations = {**as_map(driver.get("annotations")), NONCE: assignment.nonce}
    template = _with_command(driver.get("template"))
    driver.update(cores=1, memory="512m", annotations=annotations, template=template)
    spec["executor"] = {
        "cores": 1,
        "memory": "512m",
        "instances": 1,
    }  # the CRD wants one; without a SparkContext none starts
    metadata = _metadata(assignment, assignment.settle_run_name, namespace, objects, job=job, role=Role.SETTLE)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def suspend_patch(assignment: Assignment, *, uid: str) -> Document:
    """A JSON merge patch: suspends exactly this object (another UID is a conflict) and marks it as ours to stop, in one write."""
    return {"metadata": {"uid": uid, "annotations": {STOPPING: assignment.nonce}}, "spec": {"suspend": True}}


def stub_pod(assignment: Assignment, *, namespace: str, uid: str) -> Document:
    """Keeps the driver pod's name after a stop, so that a submission in flight meets a taken name. It is never scheduled, asks for
    nothing, and is as unprivileged as a namespace may demand: quotas and admission policies let it in. `uid`: of the application, with
    which it goes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": driver_pod_name(assignment.name),
            "namespace": namespace,
            "labels": labels_of(assignment, Role.STUB),
            "annotations": identity_of(assignment),
            "ownerReferences": [{"apiVersion": API_VERSION, "kind": KIND, "name": assignment.name, "uid": uid}],
        },
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": f"{OURS}stub"}],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "stub",
                    "image": "stub",
                    "resources": {"requests": _NOTHING, "limits": _NOTHING},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def assignment_text(assignment: Assignment) -> str:
    """What the driver is told, as its environment carries it. Of the job: its outputs and its heartbeat, with the identity that
    their locations depend on; digests and their secret stay in the ledger. LaunchRefused: it is too long."""
    told = assignment.model_copy(
        update={"spec": SpecBody(job=_for_the_driver(assignment.spec.job), base=assignment.spec.base)}
    )
    text = json.dumps(told.dump(), separators=(",", ":")).replace("$", "\\u0024")
    if len(text) > ASSIGNMENT_LIMIT:
        raise LaunchRefused(
            f"what a driver of {assignment.key} must be told has {len(text):,} bytes, and {ASSIGNMENT_LIMIT:,} fit into its "
            "environment; shorten spec.outputs, or write fewer files in one transaction"
        )
    return text


def _for_the_driver(job: Mapping[str, Any]) -> Document:
    spec, metadata = as_map(job.get("spec")), as_map(job.get("metadata"))
    template = as_map(spec.get("template"))
    kind = {name: template[name] for name in ("apiVersion", "kind") if name in template}
    return {
        **{name: job[name] for name in ("apiVersion", "kind") if name in job},
        "metadata": {name: metadata[name] for name in ("name", "generateName", "namespace") if name in metadata},
        "spec": {
            **{name: spec[name] for name in _DRIVER_NEEDS if name in spec},
            "template": {**kind, "spec": {}},
        },
    }


def _told(assignment: Assignment) -> dict[str, str]:
    """Spark configuration that becomes the driver's environment, and what a job's own code may look up."""
    return {
        "spark.sparkonce.install": assignment.install,
        "spark.sparkonce.realm": assignment.realm,
        "spark.sparkonce.key": assignment.key,
        "spark.sparkonce.keyHash": assignment.key_hash,
        "spark.sparkonce.generation": str(assignment.generation),
        "spark.sparkonce.attempt": str(assignment.attempt),
        "spark.sparkonce.fingerprint": assignment.fingerprint,
        f"{DRIVER_ENVIRONMENT}{ENVIRONMENT}": assignment_text(assignment),
        f"{DRIVER_ENVIRONMENT}{NONCE_ENVIRONMENT}": assignment.nonce,
    }


def _metadata(
    assignment: Assignment,
    name: str,
    namespace: str,
    objects: Sequence[Wanting],
    *,
    job: IdempotentJob | None = None,
    role: Role | None = None,
) -> Document:
    given = job.spec.template.metadata if job is not None else None
    uids = list(dict.fromkeys(each.uid for each in objects))
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**_free(given.labels if given else {}), **labels_of(assignment, role)},
        "annotations": {
            **_free(given.annotations if given else {}),
            **identity_of(assignment),
            OBJECTS: ",".join(uids[:OBJECTS_LIMIT]),
        },
    }


def _owners(assignment: Assignment, objects: Sequence[Wanting], namespace: str) -> list[Document]:
    """All live objects of the key, or none: with some of them the application would be collected while others still want it.

    None for an opaque job (a collected name is a freed name), where an object says Detach, where one is in another namespace (to
    the API server such an owner does not exist, and the application would be collected at once), or where there are too many.
    """
    kept = any(each.on_delete is OnDelete.DETACH or each.namespace != namespace for each in objects)
    by_uid = {each.uid: each for each in objects}
    if opaque(assignment) or kept or len(by_uid) > OBJECTS_LIMIT:
        return []
    return [
        {"apiVersion": JOB_API_VERSION, "kind": JOB_KIND, "name": each.name, "uid": uid} for uid, each in by_uid.items()
    ]


def _spec(job: IdempotentJob) -> Document:
    """The template's spec as the API server takes it: text where YAML saw numbers, no nulls, nothing that could run it twice."""
    template = job.spec.template
    if (template.api_version, template.kind) != (API_VERSION, KIND):
        raise LaunchRefused(
            f"spec.template is a {template.kind} of {template.api_version}, which this launcher cannot create; "
            f"make it a {KIND} of {API_VERSION}"
        )
    spec = _as_the_crd_has_it(copy.deepcopy(template.spec))
    for name in ("timeToLiveSeconds", "suspend"):
        spec.pop(name, None)
    spec["mode"] = "cluster"
    spec["restartPolicy"] = {"type": "Never"}
    return spec


_SIZES = ("memory", "memoryLimit", "memoryOverhead", "memoryOverheadFactor", "coreLimit", "coreRequest")
_TEXTS = frozenset({"sparkVersion", "image", "pythonVersion", "javaOptions", *_SIZES})
_TEXT_MAPS = frozenset(
    {"sparkConf", "hadoopConf", "nodeSelector", "envVars"}
    | {"labels", "annotations", "serviceLabels", "serviceAnnotations"}
)
_RESERVED_MAPS = {"labels", "annotations"}


def _as_the_crd_has_it(spec: Mapping[str, Any]) -> Document:
    made = _with_texts(spec)
    if "arguments" in made:
        made["arguments"] = _scalars(made["arguments"])
    if "deps" in made:
        made["deps"] = {name: _scalars(each) for name, each in as_map(made["deps"]).items() if each is not None}
    for role in ("driver", "executor"):
        pod = _with_texts(as_map(made.get(role)))
        for name in _RESERVED_MAPS & set(pod):
            pod[name] = _free(as_map(pod[name]))
        if "env" in pod:
            pod["env"] = [
                {**each, "value": _scalar(each["value"])} if isinstance(each, dict) and "value" in each else each
                for each in as_list(pod["env"])
            ]
        made[role] = pod
    if "sparkConf" in made:
        made["sparkConf"] = {name: value for name, value in made["sparkConf"].items() if not _forges_a_label(name)}
    return made


def _with_texts(part: Mapping[str, Any]) -> Document:
    made: Document = {}
    for name, value in part.items():
        if value is None:
            continue
        if name in _TEXTS:
            made[name] = _scalar(value)
        elif name in _TEXT_MAPS:
            made[name] = {key: _scalar(each) for key, each in as_map(value).items() if each is not None}
        else:
            made[name] = value
    return made


def _scalar(value: Any) -> Any:
    """What is no scalar stays as it is, for the API server to refuse by its own rules."""
    return as_text(value) if isinstance(value, bool | int | float) else value


def _scalars(values: Any) -> Any:
    return [_scalar(each) for each in values] if isinstance(values, list) else values


def _free(given: Mapping[str, Any]) -> Document:
    """Labels and annotations that are a user's to set."""
    return {name: value for name, value in given.items() if not name.startswith((OURS, THEIRS))}


def _forges_a_label(name: str) -> bool:
    parts = name.split(".", 4)  # spark.kubernetes.driver.label.<name>
    return (
        len(parts) == 5
        and parts[:2] == ["spark", "kubernetes"]
        and parts[3] in {"label", "annotation"}
        and parts[4].startswith((OURS, THEIRS))
    )


def _defaults(spec: Document, conf: Mapping[str, str]) -> None:
    """What the Spark operator's webhook fills in where neither the field nor the configuration says it (api/v1beta2/defaults.go)."""
    spec.setdefault("type", "Scala")
    for role in ("driver", "executor"):
        for name, value in (("cores", 1), ("memory", "1g")):
            if f"spark.{role}.{name}" not in conf:
                spec[role].setdefault(name, value)
    allocation = (
        as_map(spec.get("dynamicAllocation")).get("enabled") or conf.get("spark.dynamicAllocation.enabled") == "true"
    )
    if not allocation and not conf.get("spark.executor.instances"):
        spec["executor"].setdefault("instances", 1)


def _place_of_a_driver(name: str) -> bool:
    """Configuration that says where and as whom a driver runs; how large, and what Spark does in it, is the job's alone."""
    sizes = (
        "spark.kubernetes.driver.request.",
        "spark.kubernetes.driver.limit.",
        "spark.kubernetes.memoryOverheadFactor",
    )
    return name.startswith(("spark.kubernetes.", "spark.pyspark.")) and not name.startswith(
        (*sizes, "spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile")
    )


def _with_command(template: Any) -> Document:
    """The driver's pod template with our command in Spark's container, and no container beside it that could keep the pod alive."""
    made: Document = dict(as_map(template))
    pod = dict(as_map(made.get("spec")))
    drivers = [each for each in as_list(pod.get("containers")) if as_map(each).get("name") == DRIVER_CONTAINER]
    container: Document = dict(as_map(drivers[0])) if drivers else {"name": DRIVER_CONTAINER}
    container.pop("args", None)
    container.pop("resources", None)
    container["command"] = ["/bin/sh", "-c", _SETTLE_COMMAND]
    pod["containers"] = [container]
    made["spec"] = pod
    return made
