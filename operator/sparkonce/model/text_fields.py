"""Finds fields of a SparkApplication that must be text and hold another value in a template. Pure.

YAML makes a number of `08`, `1.10` or `2026`, and the API server refuses it where its schema says text. Arguments of a process are text, so
a launcher on a laptop would have to format the number again, and would pass `8` or `1.1`, not what was written. So a number, a boolean or
null is refused in both places, before anything is reserved, with the same sentence.

The table holds the text fields in the schema of the Spark operator (the same from 2.4.0 to 2.5.2) and, for the pod template, which that
schema leaves open, in Kubernetes' own; `tests/api/test_spark_operator_versions.py` compares them. Fields that are not in it, such as those
of newer operators, pass.

Recorded jobs of earlier versions may have numbers there. They are read, compared and launched as before (`fields.as_text`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Union

from pydantic import JsonValue

from sparkonce.model.validation import Loc

Shape = Mapping[str, Union[str, "Shape"]]
"""Names of fields with the shape of their values. `x[]`: a list; `x{}`: a map with any keys. Under the empty name, the fields that are
text, or lists or maps of texts."""

_LABEL_SELECTOR: Shape = {"": "matchLabels{}", "matchExpressions[]": {"": "key operator values[]"}}
_NODE_TERM: Shape = {
    "matchExpressions[]": {"": "key operator values[]"},
    "matchFields[]": {"": "key operator values[]"},
}
_POD_TERM: Shape = {
    "": "matchLabelKeys[] mismatchLabelKeys[] namespaces[] topologyKey",
    "labelSelector": _LABEL_SELECTOR,
    "namespaceSelector": _LABEL_SELECTOR,
}
_POD_AFFINITY: Shape = {
    "preferredDuringSchedulingIgnoredDuringExecution[]": {"podAffinityTerm": _POD_TERM},
    "requiredDuringSchedulingIgnoredDuringExecution[]": _POD_TERM,
}
_AFFINITY: Shape = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution[]": {"preference": _NODE_TERM},
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms[]": _NODE_TERM},
    },
    "podAffinity": _POD_AFFINITY,
    "podAntiAffinity": _POD_AFFINITY,
}
_NAMED: Shape = {"": "name"}
_PAIRS: Shape = {"": "name value"}
_DNS: Shape = {"": "nameservers[] searches[]", "options[]": _PAIRS}
_FIELD_REF: Shape = {"": "apiVersion fieldPath"}
_RESOURCE_REF: Shape = {"": "containerName resource"}
_ENV: Shape = {
    "": "name value",
    "valueFrom": {
        "configMapKeyRef": {"": "key name"},
        "fieldRef": _FIELD_REF,
        "resourceFieldRef": _RESOURCE_REF,
        "secretKeyRef": {"": "key name"},
    },
}
_ENV_FROM: Shape = {"": "prefix", "configMapRef": _NAMED, "secretRef": _NAMED}
_HTTP_GET: Shape = {"": "host path scheme", "httpHeaders[]": _PAIRS}
_HANDLER: Shape = {"exec": {"": "command[]"}, "httpGet": _HTTP_GET, "tcpSocket": {"": "host"}}
_LIFECYCLE: Shape = {"postStart": _HANDLER, "preStop": _HANDLER}
_PROBE: Shape = {**_HANDLER, "grpc": {"": "service"}}
_SECURITY: Shape = {
    "appArmorProfile": {"": "localhostProfile type"},
    "seLinuxOptions": {"": "level role type user"},
    "seccompProfile": {"": "localhostProfile type"},
    "windowsOptions": {"": "gmsaCredentialSpec gmsaCredentialSpecName runAsUserName"},
}
_SECURITY_CONTEXT: Shape = {**_SECURITY, "": "procMount", "capabilities": {"": "add[] drop[]"}}
_POD_SECURITY: Shape = {
    **_SECURITY,
    "": "fsGroupChangePolicy seLinuxChangePolicy supplementalGroupsPolicy",
    "sysctls[]": _PAIRS,
}
_MOUNT: Shape = {"": "mountPath mountPropagation name recursiveReadOnly subPath subPathExpr"}
_CONTAINER: Shape = {
    "": "args[] command[] image imagePullPolicy name restartPolicy terminationMessagePath terminationMessagePolicy workingDir",
    "env[]": _ENV,
    "envFrom[]": _ENV_FROM,
    "lifecycle": _LIFECYCLE,
    "livenessProbe": _PROBE,
    "ports[]": {"": "hostIP name protocol"},
    "readinessProbe": _PROBE,
    "resizePolicy[]": {"": "resourceName restartPolicy"},
    "resources": {"claims[]": {"": "name request"}},
    "securityContext": _SECURITY_CONTEXT,
    "startupProbe": _PROBE,
    "volumeDevices[]": {"": "devicePath name"},
    "volumeMounts[]": _MOUNT,
}
_ITEMS: Shape = {"": "name", "items[]": {"": "key path"}}
_DOWNWARD: Shape = {"items[]": {"": "path", "fieldRef": _FIELD_REF, "resourceFieldRef": _RESOURCE_REF}}
_CLAIM: Shape = {
    "metadata": {"": "annotations{} finalizers[] labels{} name namespace"},
    "spec": {
        "": "accessModes[] storageClassName volumeAttributesClassName volumeMode volumeName",
        "dataSource": {"": "apiGroup kind name"},
        "dataSourceRef": {"": "apiGroup kind name namespace"},
        "selector": _LABEL_SELECTOR,
    },
}
_VOLUME: Shape = {
    "": "name",
    "awsElasticBlockStore": {"": "fsType volumeID"},
    "azureDisk": {"": "cachingMode diskName diskURI fsType kind"},
    "azureFile": {"": "secretName shareName"},
    "cephfs": {"": "monitors[] path secretFile user", "secretRef": _NAMED},
    "cinder": {"": "fsType volumeID", "secretRef": _NAMED},
    "configMap": _ITEMS,
    "csi": {"": "driver fsType volumeAttributes{}", "nodePublishSecretRef": _NAMED},
    "downwardAPI": _DOWNWARD,
    "emptyDir": {"": "medium"},
    "ephemeral": {"volumeClaimTemplate": _CLAIM},
    "fc": {"": "fsType targetWWNs[] wwids[]"},
    "flexVolume": {"": "driver fsType options{}", "secretRef": _NAMED},
    "flocker": {"": "datasetName datasetUUID"},
    "gcePersistentDisk": {"": "fsType pdName"},
    "gitRepo": {"": "directory repository revision"},
    "glusterfs": {"": "endpoints path"},
    "hostPath": {"": "path type"},
    "image": {"": "pullPolicy reference"},
    "iscsi": {"": "fsType initiatorName iqn iscsiInterface portals[] targetPortal", "secretRef": _NAMED},
    "nfs": {"": "path server"},
    "persistentVolumeClaim": {"": "claimName"},
    "photonPersistentDisk": {"": "fsType pdID"},
    "portworxVolume": {"": "fsType volumeID"},
    "projected": {
        "sources[]": {
            "clusterTrustBundle": {"": "name path signerName", "labelSelector": _LABEL_SELECTOR},
            "configMap": _ITEMS,
            "downwardAPI": _DOWNWARD,
            "secret": _ITEMS,
            "serviceAccountToken": {"": "audience path"},
        }
    },
    "quobyte": {"": "group registry tenant user volume"},
    "rbd": {"": "fsType image keyring monitors[] pool user", "secretRef": _NAMED},
    "scaleIO": {
        "": "fsType gateway protectionDomain storageMode storagePool system volumeName",
        "secretRef": _NAMED,
    },
    "secret": {"": "secretName", "items[]": {"": "key path"}},
    "storageos": {"": "fsType volumeName volumeNamespace", "secretRef": _NAMED},
    "vsphereVolume": {"": "fsType storagePolicyID storagePolicyName volumePath"},
}
_POD: Shape = {
    "affinity": _AFFINITY,
    "dnsConfig": _DNS,
    "hostAliases[]": {"": "hostnames[] ip"},
    "initContainers[]": _CONTAINER,
    "tolerations[]": {"": "effect key operator value"},
}
_POD_TEMPLATE: Shape = {
    "metadata": {"": "annotations{} finalizers[] generateName labels{} name namespace"},
    "spec": {
        **_POD,
        "": "dnsPolicy hostname nodeName nodeSelector{} preemptionPolicy priorityClassName restartPolicy runtimeClassName schedulerName "
        "serviceAccount serviceAccountName subdomain",
        "containers[]": _CONTAINER,
        "imagePullSecrets[]": _NAMED,
        "os": _NAMED,
        "readinessGates[]": {"": "conditionType"},
        "resourceClaims[]": {"": "name resourceClaimName resourceClaimTemplateName"},
        "schedulingGates[]": _NAMED,
        "securityContext": _POD_SECURITY,
        "topologySpreadConstraints[]": {
            "": "matchLabelKeys[] nodeAffinityPolicy nodeTaintsPolicy topologyKey whenUnsatisfiable",
            "labelSelector": _LABEL_SELECTOR,
        },
        "volumes[]": _VOLUME,
    },
}
_ROLE = (
    "annotations{} coreLimit coreRequest envVars{} image javaOptions labels{} memory memoryLimit memoryOverhead nodeSelector{} "
    "priorityClassName schedulerName serviceAccount"
)
_EXECUTOR: Shape = {
    **_POD,
    "": _ROLE,
    "configMaps[]": {"": "name path"},
    "env[]": _ENV,
    "envFrom[]": _ENV_FROM,
    "envSecretKeyRefs{}": {"": "key name"},
    "gpu": _NAMED,
    "lifecycle": _LIFECYCLE,
    "podSecurityContext": _POD_SECURITY,
    "ports[]": {"": "name protocol"},
    "secrets[]": {"": "name path secretType"},
    "securityContext": _SECURITY_CONTEXT,
    "sidecars[]": _CONTAINER,
    "template": _POD_TEMPLATE,
    "volumeMounts[]": _MOUNT,
}
_DRIVER: Shape = {**_EXECUTOR, "": f"{_ROLE} kubernetesMaster podName serviceAnnotations{{}} serviceLabels{{}}"}
_INGRESS_TLS: Shape = {"": "hosts[] secretName"}
SPARK_APPLICATION: Shape = {
    "": "arguments[] batchScheduler hadoopConf{} hadoopConfigMap image imagePullPolicy imagePullSecrets[] mainApplicationFile mainClass "
    "memoryOverheadFactor mode nodeSelector{} proxyUser pythonVersion sparkConf{} sparkConfigMap sparkVersion type",
    "batchSchedulerOptions": {"": "priorityClassName queue"},
    "deps": {"": "archives[] excludePackages[] files[] jars[] packages[] pyFiles[] repositories[]"},
    "driver": _DRIVER,
    "driverIngressOptions[]": {
        "": "ingressAnnotations{} ingressURLFormat serviceAnnotations{} serviceLabels{} servicePortName serviceType",
        "ingressTLS[]": _INGRESS_TLS,
    },
    "executor": _EXECUTOR,
    "monitoring": {
        "": "metricsProperties metricsPropertiesFile",
        "prometheus": {"": "configFile configuration jmxExporterJar portName"},
    },
    "restartPolicy": {"": "type"},
    "sparkUIOptions": {
        "": "ingressAnnotations{} serviceAnnotations{} serviceLabels{} servicePortName serviceType",
        "ingressTLS[]": _INGRESS_TLS,
    },
    "volumes[]": _VOLUME,
}
"""Below the `spec` of a SparkApplication."""

_ABSENT: frozenset[Loc] = frozenset({(), ("driver",), ("executor",)})
"""Places where null means "not given": the launcher leaves the field out."""


def not_text(spec: Mapping[str, JsonValue]) -> Iterator[tuple[Loc, str]]:
    """Numbers, booleans and nulls of a SparkApplication's spec where text is wanted, each with its path below the spec."""
    return _below((), spec, SPARK_APPLICATION)


def sentence(value: float | None) -> str:
    """The refusal of a number, a boolean or null."""
    return f"must be text, not {'empty' if value is None else json.dumps(value)}; put it in quotes"


def _below(loc: Loc, value: JsonValue | Mapping[str, JsonValue], shape: Shape) -> Iterator[tuple[Loc, str]]:
    if not isinstance(value, Mapping):
        return
    for name, below in _fields(shape):
        bare = name.rstrip("[]{}")
        if bare not in value:
            continue
        given = value[bare]
        if name == bare and given is None and (below is None) and loc in _ABSENT:
            continue
        for at, each in _entries((*loc, bare), given, name.removeprefix(bare)):
            if below is not None:
                yield from _below(at, each, below)
            elif each is None or isinstance(each, bool | int | float):
                yield at, sentence(each)


def _fields(shape: Shape) -> Iterator[tuple[str, Shape | None]]:
    """Names with the shape below them; None: text."""
    for name, below in shape.items():
        if isinstance(below, str):
            yield from ((word, None) for word in below.split())
        else:
            yield name, below


def _entries(loc: Loc, value: JsonValue, kind: str) -> Iterator[tuple[Loc, JsonValue]]:
    """The value itself, or the entries of a list or map of such. Another kind of value is skipped: it is refused elsewhere."""
    if not kind:
        yield loc, value
    elif kind == "[]" and isinstance(value, list):
        yield from (((*loc, index), each) for index, each in enumerate(value))
    elif kind == "{}" and isinstance(value, dict):
        yield from (((*loc, name), each) for name, each in value.items())


def paths() -> Iterator[str]:
    """Every path of the table, as `driver.env[].value`."""
    return _paths("", SPARK_APPLICATION)


def _paths(above: str, shape: Shape) -> Iterator[str]:
    for name, below in _fields(shape):
        if below is None:
            yield f"{above}{name}"
        else:
            yield from _paths(f"{above}{name}.", below)
