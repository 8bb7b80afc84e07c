"""Builds the Kubernetes objects of an attempt on the Kubeflow Spark operator. Pure: from an assignment and a job to JSON.

An application is complete when it is created and never updated except to suspend it: any other edit of a SparkApplication runs it again,
and even an edit of its metadata during submission can submit it twice. So restartPolicy is Never, there is no TTL, and the defaults of the
Spark operator's webhook are set here, because the webhook may be disabled.

The driver's assignment is passed in `sparkConf`, the only way that needs no webhook. The text is ASCII without dollar signs: a JVM in a C
locale garbles other characters, and the kubelet expands `$(NAME)` and halves `$$` in environment values.

Refused (LaunchRefused): a template of another kind, an assignment that is too long for one environment variable, a main file that
spark-submit would read as an option. A fixed name of the driver pod and deploy modes other than cluster are invalid in a job already
(`model/fields.py`); what else contradicts the attempt is refused in new jobs and left out of the applications of recorded ones
(`model/reserved.py`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import LaunchRefused
from sparkonce.launch.kubeflow.labels import (
    API_VERSION,
    DRIVER_CONTAINER,
    KIND,
    NONCE,
    OBJECTS,
    PODS_SINCE,
    STOPPING,
    TEMPLATE,
    Role,
    as_list,
    as_map,
    driver_pod_name,
    identity_of,
    labels_of,
    opaque,
)
from sparkonce.model.application import utf8
from sparkonce.model.application.deployers import on_applications
from sparkonce.model.application.expansion import FORWARDING, variable_names
from sparkonce.model.fields import as_text
from sparkonce.model.record import (
    CAPTURING,
    ENVIRONMENT,
    NONCE_ENVIRONMENT,
    PYTHON_ENVIRONMENT,
    TOKEN_ENVIRONMENT,
    Assignment,
    SpecBody,
    gateway_audience,
)
from sparkonce.model.reserved import (
    OPTION,
    OURS,
    PER_ATTEMPT_LABELS,
    is_option,
    reserved_name,
    without_deployers,
    without_reserved,
)
from sparkonce.model.spec import API_VERSION as JOB_API_VERSION
from sparkonce.model.spec import KIND as JOB_KIND
from sparkonce.model.spec import IdempotentJob, OnDelete

ASSIGNMENT_LIMIT = 96 * 1024
"""Bytes. Linux allows 128 KiB per argument or variable (MAX_ARG_STRLEN), and the text is both; the rest is for its name and growth."""
OBJECTS_LIMIT = 1000
"""Maximum number of objects that an application names: 37 bytes each, of the 256 KiB that all annotations may take."""
TOKEN_SECONDS = 3600
"""Lifetime of a driver's token for the gateway. The kubelet renews it when a fifth is left, and an API server may be away that long."""
TOKEN_VOLUME, TOKEN_FOLDER, TOKEN_NAME = "sparkonce-token", "/var/run/secrets/sparkonce.dev", "token"
DRIVER_ENVIRONMENT = "spark.kubernetes.driverEnv."

NOT_FOR_DRIVERS = {
    "template": "the driver runs it; its kind alone is sent",
    "bind": "a bound application is not ours to start",
    **dict.fromkeys(
        ("keyFrom", "tunableArguments", "ignoredConf"), "key and fingerprint are computed before an attempt exists"
    ),
    **dict.fromkeys(("onDuplicate", "onMismatch", "onFinalized", "onResultChanged"), "answers to later requests"),
    **dict.fromkeys(("onUnknown", "retry"), "decided once the attempt has ended"),
    **dict.fromkeys(
        ("startTimeoutSeconds", "activeDeadlineSeconds", "stopTimeoutSeconds", "lingerSeconds"),
        "the owner watches them",
    ),
    **dict.fromkeys(("onDelete", "suspend"), "the operator acts on them"),
    **dict.fromkeys(("retention", "applicationTTL", "ttlSecondsAfterFinished"), "they begin when the job is finalized"),
}
"""Fields of `spec` that a driver's assignment leaves out, each with the reason. Every other one is sent, so that a driver never ignores a
field which it was not given; jobs that do not use a new field can still run in images that do not know it."""
_ONLY_THE_JOBS = (
    *("coreLimit", "coreRequest", "memoryLimit", "memoryOverhead", "memoryOverheadFactor", "gpu"),
    *("javaOptions", "lifecycle", "sidecars", "ports"),
)
"""Driver fields that a settle run does not need: resources, and what runs beside the driver."""
_SETTLE_COMMAND = 'exec "${PYSPARK_DRIVER_PYTHON:-${PYSPARK_PYTHON:-python3}}" -m sparkonce.driver.settle'
"""Replaces the image's entry point; the shell ignores the arguments that Spark adds to the container."""

_NOTHING = {"cpu": "0", "memory": "0"}

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Wanting:
    """A live IdempotentJob object that waits for the result."""

    name: str
    namespace: str
    uid: str
    on_delete: OnDelete


def application(
    assignment: Assignment,
    job: IdempotentJob,
    objects: Sequence[Wanting],
    *,
    namespace: str,
    pods_since: str | None = None,
) -> dict[str, Any]:
    """The SparkApplication of this attempt.

    job: the job to launch, with tunable edits made since it was granted. objects: all live objects of the key. pods_since: resourceVersion
    of pods, read before this call.

    Raises:
        LaunchRefused: the template's kind, or the length of the assignment.
    """
    spec = _spec(job)
    conf = spec["sparkConf"] = {
        **as_map(spec.get("sparkConf")),
        **_locale(spec, "driver", "executor"),
        **_told(assignment),
    }
    if job.spec.captured:
        conf.update(_capturing(conf))
    _defaults(spec, conf)
    for role in ("driver", "executor"):
        spec[role]["annotations"] = {**as_map(spec[role].get("annotations")), NONCE: assignment.nonce}
    if assignment.gateway:
        _give_token(spec["driver"], assignment)
    metadata = _metadata(assignment, assignment.name, namespace, objects, job=job)
    since = {PODS_SINCE: pods_since} if pods_since else {}
    metadata["annotations"] |= {TEMPLATE: assignment.spec.template_digest, **since}
    if owners := _owners(assignment, objects, namespace):
        metadata["ownerReferences"] = owners
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def only_ours(unknown: Sequence[str], job: IdempotentJob) -> bool:
    """Whether of an application's fields that an API server does not know none is the job's. CRDs without `driver.template` drop it, and
    with it the projected token, which the driver then does without (`_give_token`)."""
    return set(unknown) == {"spec.driver.template"} and not as_map(job.spec.template.spec.get("driver")).get("template")


def placeholder(assignment: Assignment, *, namespace: str, objects: Sequence[Wanting] = ()) -> Document:
    """A suspended application that takes the name of an attempt whose application was never seen. It has our nonce and stop mark but
    nothing of the job: resuming it starts no driver, because it names no image."""
    metadata = _metadata(assignment, assignment.name, namespace, objects, role=Role.PLACEHOLDER)
    metadata["annotations"][STOPPING] = assignment.nonce
    spec: Document = {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.1.1",  # required by the CRD; nothing reads it
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
    volumes, our entry point. `assignment.run` counts from 1 within the attempt. It has no owners: an attempt must be settled even after
    its objects are deleted. Errors as `application`."""
    spec = _spec(job)
    for name in ("mainClass", "arguments", "deps", "dynamicAllocation", "monitoring", "executor"):
        spec.pop(name, None)
    spec["type"] = "Python"
    spec["mainApplicationFile"] = "local:///sparkonce/driver/settle.py"  # never opened: the command below is what runs
    conf = {name: value for name, value in as_map(spec.get("sparkConf")).items() if _place_of_a_driver(name)}
    spec["sparkConf"] = conf | _locale(spec, "driver") | _told(assignment)
    driver = spec["driver"]
    for name in _ONLY_THE_JOBS:
        driver.pop(name, None)
    annotations = {**as_map(driver.get("annotations")), NONCE: assignment.nonce}
    template = _with_command(driver.get("template"))
    driver.update(cores=1, memory="512m", annotations=annotations, template=template)
    if assignment.gateway:
        _give_token(driver, assignment)
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
    """A pod that holds the driver pod's name after a stop, so that a submission in flight finds it taken. It is never scheduled, requests
    no resources, and is as unprivileged as a namespace may demand, so that quotas and admission policies accept it. uid: the application,
    which owns it."""
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
    """The assignment as the driver's environment carries it. Of the job it contains all but `NOT_FOR_DRIVERS`; digests and their
    secret stay in the ledger.

    Raises:
        LaunchRefused: it is too long.
    """
    told = assignment.model_copy(
        update={"spec": SpecBody(job=_for_the_driver(assignment.spec.job), base=assignment.spec.base)}
    )
    text = json.dumps(told.dump(), separators=(",", ":")).replace("$", "\\u0024")
    if len(text) > ASSIGNMENT_LIMIT:
        raise LaunchRefused(
            f"the assignment of a driver of {assignment.key} has {len(text):,} bytes, and {ASSIGNMENT_LIMIT:,} fit into its "
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
            **{name: value for name, value in spec.items() if name not in NOT_FOR_DRIVERS},
            "template": {**kind, "spec": {}},
        },
    }


def _locale(spec: Mapping[str, Any], *roles: str) -> dict[str, str]:
    """Spark configuration that makes text UTF-8 in pods of these roles, whatever their image says, except for what the job itself sets."""
    return {
        f"{FORWARDING[role]}{name}": value
        for role in roles
        for name, value in utf8.pinned(variable_names(spec, role)).items()
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


def _capturing(conf: Mapping[str, Any]) -> dict[str, str]:
    """Spark configuration by which the driver's script is captured: our program as its Python, which goes on in the job's own one."""
    own = conf.get("spark.pyspark.driver.python") or conf.get("spark.pyspark.python")
    named = {f"{DRIVER_ENVIRONMENT}{PYTHON_ENVIRONMENT}": as_text(own)} if own else {}
    return {"spark.pyspark.driver.python": CAPTURING, **named}


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
    """Owner references: all live objects of the key or none, since with some the application would be collected while others wait for it.

    None for an opaque job (collection frees the name), if an object says Detach, if one is in another namespace (the API server treats such
    an owner as absent and collects the application at once), or if there are too many.
    """
    kept = any(each.on_delete is OnDelete.DETACH or each.namespace != namespace for each in objects)
    by_uid = {each.uid: each for each in objects}
    if opaque(assignment) or kept or len(by_uid) > OBJECTS_LIMIT:
        return []
    return [
        {"apiVersion": JOB_API_VERSION, "kind": JOB_KIND, "name": each.name, "uid": uid} for uid, each in by_uid.items()
    ]


def _spec(job: IdempotentJob) -> Document:
    """The template's spec for the API server: text where YAML parsed numbers, no nulls, nothing that could run it twice."""
    template = job.spec.template
    if (template.api_version, template.kind) != (API_VERSION, KIND):
        raise LaunchRefused(
            f"spec.template is a {template.kind} of {template.api_version}, which this launcher cannot create; "
            f"make it a {KIND} of {API_VERSION}"
        )
    if is_option(template.spec.get("mainApplicationFile")):
        raise LaunchRefused(f"spec.template.spec.mainApplicationFile: {OPTION}")
    spec = _as_the_crd_has_it(without_deployers(without_reserved(copy.deepcopy(template.spec))))
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


def _as_the_crd_has_it(spec: Mapping[str, Any]) -> Document:
    made = _with_texts(spec)
    if "arguments" in made:
        made["arguments"] = _scalars(made["arguments"])
    if "deps" in made:
        made["deps"] = {name: _scalars(each) for name, each in as_map(made["deps"]).items() if each is not None}
    for role in ("driver", "executor"):
        pod = _with_texts(as_map(made.get(role)))
        if "env" in pod:
            pod["env"] = [
                {**each, "value": _scalar(each["value"])} if isinstance(each, dict) and "value" in each else each
                for each in as_list(pod["env"])
            ]
        made[role] = pod
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
    """Converts scalars to text; other values stay, for the API server to refuse."""
    return as_text(value) if isinstance(value, bool | int | float) else value


def _scalars(values: Any) -> Any:
    return [_scalar(each) for each in values] if isinstance(values, list) else values


def _free(given: Mapping[str, Any]) -> Document:
    """The job's labels or annotations that its applications carry: not ours, nor those of deployment tools, which would prune them."""
    kept = (name for name in given if on_applications(name) and name not in PER_ATTEMPT_LABELS)
    return {name: given[name] for name in kept if not reserved_name(name)}


def _defaults(spec: Document, conf: Mapping[str, str]) -> None:
    """Sets the defaults of the Spark operator's webhook where neither field nor configuration is set (api/v1beta2/defaults.go)."""
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
    """Whether a setting says where or as whom a driver runs. Its size, and what Spark does in it, concern the job only."""
    sizes = (
        "spark.kubernetes.driver.request.",
        "spark.kubernetes.driver.limit.",
        "spark.kubernetes.memoryOverheadFactor",
    )
    return name.startswith(("spark.kubernetes.", "spark.pyspark.")) and not name.startswith(
        (*sizes, "spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile")
    )


def _give_token(driver: Document, assignment: Assignment) -> None:
    """Projects a token for the gateway into the driver's container, by its pod template, which needs no webhook.

    Variable and volume come together: a Spark operator that drops the template leaves a pod that has neither, and its driver then uses
    the pod's own token, which the gateway accepts from such pods alone.
    """
    template: Document = dict(as_map(driver.get("template")))
    pod = template["spec"] = dict(as_map(template.get("spec")))
    token = {"audience": gateway_audience(assignment.install), "expirationSeconds": TOKEN_SECONDS, "path": TOKEN_NAME}
    volume = {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}
    pod["volumes"] = [*_others(pod.get("volumes"), TOKEN_VOLUME), volume]
    containers = [dict(as_map(each)) for each in as_list(pod.get("containers"))] or [{"name": DRIVER_CONTAINER}]
    ours = next(
        (each for each in containers if each.get("name") == DRIVER_CONTAINER), containers[0]
    )  # as Spark chooses
    variable = {"name": TOKEN_ENVIRONMENT, "value": f"{TOKEN_FOLDER}/{TOKEN_NAME}"}
    ours["env"] = [*_others(ours.get("env"), TOKEN_ENVIRONMENT), variable]
    mount = {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True}
    ours["volumeMounts"] = [*_others(ours.get("volumeMounts"), TOKEN_VOLUME), mount]
    pod["containers"] = containers
    driver["template"] = template


def _others(named: Any, name: str) -> list[Any]:
    return [each for each in as_list(named) if as_map(each).get("name") != name]


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
