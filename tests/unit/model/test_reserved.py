"""What a new template must not contain: exactly the settings and fields that contradict the attempt."""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from harness.manifests import changed, document, job, template
from sparkonce.model import manifest, reserved
from sparkonce.model.entrance import check_template
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob, Loc

PAGE = Path(__file__).resolve().parents[3] / "docs" / "templates.md"


def conf(name: str) -> Loc:
    return template("sparkConf", name)


OTHER = "other"
ATTACKS: list[tuple[Loc, Any]] = [
    *(
        (conf(name), OTHER)
        for name in (
            "spark.kubernetes.namespace",
            "spark.kubernetes.context",
            "spark.master",
            "spark.submit.deployMode",
            "spark.kubernetes.driver.master",
            "spark.kubernetes.driver.resourceNamePrefix",
            "spark.kubernetes.executor.podNamePrefix",
            "spark.app.id",
            "spark.kubernetes.driver.podTemplateFile",
            "spark.kubernetes.executor.podTemplateFile",
            "spark.kubernetes.driver.podTemplateContainerName",
            "spark.kubernetes.executor.podTemplateContainerName",
            "spark.kubernetes.driver.pod.featureSteps",
            "spark.kubernetes.executor.pod.excludedFeatureSteps",
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "spark.kubernetes.authenticate.executor.serviceAccountName",
            "spark.kubernetes.authenticate.submission.oauthToken",
            "spark.kubernetes.authenticate.driver.clientKeyFile",
            "spark.kubernetes.authenticate.caCertFile",
            "spark.kubernetes.trust.certificates",
            "spark.kubernetes.file.upload.path",
            "spark.kubernetes.kerberos.krb5.path",
            "spark.kubernetes.submission.waitAppCompletion",
            "spark.kubernetes.driver.label.sparkonce.dev/key",
            "spark.kubernetes.driver.label.sparkoperator.k8s.io/app-name",
            "spark.kubernetes.executor.label.sparkoperator.k8s.io/app-name",
            "spark.kubernetes.executor.annotation.sparkonce.dev/nonce",
            "spark.kubernetes.driver.service.label.sparkonce.dev/key",
            "spark.kubernetes.namespace=other#",
            "spark.kubernetes.namespace ",
        )
    ),
    (conf("spark.kubernetes.namespace"), ""),
    (conf("spark.kubernetes.submission.waitAppCompletion"), "true"),
    (conf("spark.kubernetes.executor.decommissionLabel"), "sparkoperator.k8s.io/app-name"),
    (template("driver", "kubernetesMaster"), "https://elsewhere:6443"),
    (template("driver", "labels", "sparkonce.dev/key"), OTHER),
    (template("executor", "annotations", "sparkonce.dev/nonce"), OTHER),
    (template("driver", "serviceLabels", "sparkoperator.k8s.io/app-name"), OTHER),
    (template("driver", "template", "metadata", "name"), OTHER),
    (template("driver", "template", "metadata", "namespace"), OTHER),
    (template("executor", "template", "metadata", "ownerReferences"), [{"uid": "x"}]),
    (template("executor", "template", "metadata", "labels", "sparkoperator.k8s.io/app-name"), OTHER),
    (template("driver", "template", "spec", "serviceAccountName"), OTHER),
    (template("executor", "template", "spec", "serviceAccount"), OTHER),
    (template("mainApplicationFile"), "--conf=spark.kubernetes.namespace=other"),
    (("spec", "template", "metadata", "labels", "sparkonce.dev/key"), OTHER),
    (("spec", "template", "metadata", "annotations", "sparkonce.dev/nonce"), OTHER),
]
"""Each as a tenant would write it: the field and its value."""


@pytest.mark.parametrize(("loc", "value"), ATTACKS, ids=[f"{loc[-1]}={value}"[:60] for loc, value in ATTACKS])
def test_what_contradicts_the_attempt_is_refused_in_a_new_job_alone(loc: Loc, value: Any) -> None:
    """A job file with it is refused with the field's path, its line and the remedy; a recorded spec with it can still be read."""
    text = manifest.dump(changed(document(), {loc: value}))
    with pytest.raises(InvalidJob) as refused:
        manifest.load(text, params={}, source="job.yaml")
    (problem,) = refused.value.problems
    assert str(loc[-1]) in problem.path
    assert problem.path.startswith("spec.template.")
    assert re.search(r"must (be absent|not contain|not begin).*; (remove|write) ", problem.message), problem.message
    assert refused.value.lines[0] is not None
    assert "\n" not in str(refused.value)
    IdempotentJob.of(changed(document(), {loc: value}))


PASSING: list[tuple[Loc, Any]] = [
    (conf("spark.app.name"), "flights"),
    (conf("spark.kubernetes.driver.master"), "local[2]"),
    (conf("spark.kubernetes.driver.master"), "local[*]"),
    (template("driver", "kubernetesMaster"), "local"),
    (conf("spark.kubernetes.submission.waitAppCompletion"), "false"),
    (conf("spark.kubernetes.driver.label.team"), "air"),
    (conf("spark.kubernetes.executor.decommissionLabel"), "leaving"),
    (conf("spark.kubernetes.driver.volumes.hostPath.x.options.path"), "/"),
    (template("driver", "securityContext"), {"privileged": True}),
    (template("driver", "template"), {"metadata": {"labels": {"team": "air"}}, "spec": {"nodeName": "n"}}),
    (template("driver", "template"), "no map"),
    (template("driver", "serviceAccount"), "other"),
]


@pytest.mark.parametrize(("loc", "value"), PASSING, ids=[f"{loc[-1]}={value}"[:60] for loc, value in PASSING])
def test_what_does_not_contradict_the_attempt_passes(loc: Loc, value: Any) -> None:
    """Pods are the job's own concern: images, host paths, labels and accounts of its namespace are not checked."""
    check_template(job({loc: value}))


def test_every_contradiction_is_told() -> None:
    """Two contradictions are two problems of one error."""
    with pytest.raises(InvalidJob) as refused:
        check_template(job({conf("spark.master"): "x", template("driver", "labels", "sparkonce.dev/key"): "y"}))
    assert [problem.path for problem in refused.value.problems] == [
        'spec.template.spec.sparkConf["spark.master"]',
        'spec.template.spec.driver.labels["sparkonce.dev/key"]',
    ]


def test_a_job_that_only_follows_is_not_checked() -> None:
    """A job with spec.bind launches nothing, and the application that it follows may be written in any way."""
    bound: dict[Loc, Any] = {("spec", "bind"): {"application": "a", "uid": "u"}, ("spec", "outputs"): []}
    check_template(job({**bound, conf("spark.kubernetes.namespace"): "etl"}))


# --- the tables


def listed(title: str) -> set[str]:
    """The names in the first column of a section's table on the page."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_the_page_has_every_entry() -> None:
    """docs/templates.md lists exactly the settings, fields and maps of labels that are refused, and marks those that are kept."""
    assert listed("Settings in `sparkConf`") == {each.name for each in reserved.CONF}
    assert listed("Fields") == {each.name for each in reserved.FIELDS}
    text = PAGE.read_text(encoding="utf-8")
    section = text.split("\n## Labels and annotations\n")[1].split("\n## ")[0].split("in the settings")[1]
    named = set(re.findall(r"`([^`]+)`", section))
    ours = {f"{prefix}*" for prefix in reserved.LABELLING_CONF}
    assert named == {*ours, *reserved.LABELLING_VALUES, *reserved.LABELLING_FIELDS}
    for each in (*reserved.CONF, *reserved.FIELDS):
        (row,) = re.findall(rf"^\| `{re.escape(each.name)}` \|.*$", text, re.MULTILINE)
        assert ("(*kept*)" in row) is each.kept


def test_the_pages_policy_is_yaml_that_kubernetes_takes() -> None:
    """The admission policy on the page parses, and its binding names it."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    policy, binding = yaml.safe_load_all(block)
    assert (policy["kind"], binding["kind"]) == ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert all(each["expression"] and each["message"] for each in policy["spec"]["validations"])


JUDGED_HARMLESS = """
allocation.batch.delay allocation.batch.size allocation.driver.readinessTimeout allocation.executor.timeout allocation.maxPendingPods
allocation.maxPendingPodsPerRp allocation.maximum allocation.pods.allocator appKillPodDeletionGracePeriod configMap.maxSize
container.image container.image.pullPolicy container.image.pullSecrets decommission.script driver.annotateExitException
driver.annotation. driver.connectionTimeout driver.container.image driver.label. driver.limit.cores driver.node.selector.
driver.ownPersistentVolumeClaim driver.request.cores driver.requestTimeout driver.reusePersistentVolumeClaim driver.scheduler.name
driver.secretKeyRef. driver.secrets. driver.service.annotation. driver.service.deleteOnTermination driver.service.ipFamilies
driver.service.ipFamilyPolicy driver.service.label. driver.volumes. driver.waitToReusePersistentVolumeClaim driverEnv.
dynamicAllocation.deleteGracePeriod executor.annotation. executor.apiPollingInterval executor.checkAllContainers
executor.container.image executor.decommissionLabel executor.decommissionLabelValue executor.deleteOnTermination
executor.deletedExecutorsCacheTimeout executor.disableConfigMap executor.enableApiPolling executor.enableApiWatcher
executor.enablePollingWithResourceVersion executor.eventProcessingInterval executor.hadoopConfigMapName executor.label.
executor.limit.cores executor.minTasksPerExecutorBeforeRolling executor.missingPodDetectDelta executor.node.selector.
executor.request.cores executor.rollInterval executor.rollPolicy executor.scheduler.name executor.secretKeyRef. executor.secrets.
executor.terminationGracePeriodSeconds executor.useDriverPodIP executor.volumes. executorSnapshotsSubscribersShutdownGracePeriod
hadoop.configMapName kerberos.krb5.configMapName kerberos.tokenSecret.itemKey kerberos.tokenSecret.name
legacy.useReadWriteOnceAccessMode local.dirs.tmpfs memoryOverheadFactor node.selector. report.interval resource.type scheduler.name
submission.connectionTimeout submission.requestTimeout submitInDriver
"""
"""Settings below `spark.kubernetes.` that do not change the attempt's name, namespace, owner, labels, account or submitter."""


def test_every_kubernetes_setting_of_this_spark_was_judged() -> None:
    """Each `spark.kubernetes.*` setting of the installed Spark is refused, or listed here as harmless; a new version of Spark brings new
    ones."""
    refused = {name for name in settings_of_spark() if any(each.names(name) for each in reserved.CONF)}
    harmless = {f"spark.kubernetes.{name}" for name in JUDGED_HARMLESS.split()}
    prefixes = {"spark.kubernetes.authenticate"}  # no setting, but the beginning of their names
    assert settings_of_spark() - refused - prefixes == harmless
    assert len(refused) > 15


def settings_of_spark() -> set[str]:
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        texts = {
            text for name in classes.namelist() if name.endswith(".class") for text in constants(classes.read(name))
        }
    return {text for text in texts if re.fullmatch(r"spark\.kubernetes\.[A-Za-z0-9.]+", text)}


def constants(compiled: bytes) -> list[str]:
    """Texts of a class file's constant pool (Java Virtual Machine Specification, 4.4)."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
    (entries,) = struct.unpack(">H", compiled[8:10])
    at, index, found = 10, 1, []
    while index < entries:
        tag = compiled[at]
        at += 1
        if tag == 1:
            (length,) = struct.unpack(">H", compiled[at : at + 2])
            found.append(compiled[at + 2 : at + 2 + length].decode("utf-8", "replace"))
            at += 2 + length
        else:
            at += sizes[tag]
            index += tag in (5, 6)  # long and double take two entries
        index += 1
    return found
