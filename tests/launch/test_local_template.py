"""A SparkApplication on a laptop: the fields that are used, and the warning about all others."""

from __future__ import annotations

import pytest

from harness.manifests import job, template
from sparkonce.launch.submit import LocalTemplate
from sparkonce.model.validation import InvalidJob


def test_what_a_laptop_can_honour_is_read() -> None:
    """Command, configuration, environment and dependencies are typed, and text where Spark takes text."""
    local = LocalTemplate.of(
        job(
            {
                template("arguments", 1): 1,
                template("sparkConf", "spark.ui.enabled"): False,
                template("hadoopConf"): {"fs.s3a.connection.maximum": 10},
                template("driver", "envVars"): {"TZ": "CET", "N": 3},
                template("driver", "javaOptions"): "-Duser.timezone=UTC",
                template("executor", "env"): [{"name": "TZ", "value": "UTC"}],
                template("mainClass"): "org.example.Main",
            }
        )
    )
    assert (local.type, local.main_file, local.main_class) == ("Python", "flights.py", "org.example.Main")
    assert local.arguments == ("--month", "1", "--threads", "4", "--strict")
    assert local.env == {"TZ": "UTC", "N": "3"}
    assert local.conf == {
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.executorEnv.TZ": "UTC",
        "spark.hadoop.fs.s3a.connection.maximum": "10",
        "spark.sql.shuffle.partitions": "8",
        "spark.executor.memory": "2g",
        "spark.ui.enabled": "false",
    }
    assert (local.py_files, local.packages, local.jars) == (("lib.py",), ("org.example:parser:1.0",), ())


def test_what_only_a_cluster_has_is_named() -> None:
    """Every field that is given and does nothing here is in the list, and only those."""
    local = LocalTemplate.of(
        job(
            {
                template("restartPolicy"): {"type": "Never"},
                template("imagePullSecrets"): [],
                template("sparkConf", "spark.kubernetes.namespace"): "etl",
                template("sparkConf", "spark.master"): "yarn",
                template("executor", "env"): [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                template("fieldOfTomorrow"): 1,
            }
        )
    )
    below = "spec.template.spec."
    assert sorted(path.removeprefix(below) for path in local.skipped) == sorted(
        [
            "sparkVersion",
            "image",
            "volumes",
            "fieldOfTomorrow",
            "driver.cores",
            "driver.memory",
            "driver.serviceAccount",
            "driver.volumeMounts",
            "driver.env.TOKEN",
            "executor.cores",
            "executor.instances",
            "executor.memory",
            "executor.labels",
            "executor.env.A",
            'sparkConf["spark.kubernetes.namespace"]',
            'sparkConf["spark.master"]',
        ]
    )
    assert "spark.master" not in local.conf
    assert "TOKEN" not in local.env


@pytest.mark.parametrize(("file", "kind"), [("a.py", "Python"), ("a.jar", "Java")])
def test_the_type_follows_from_the_file(file: str, kind: str) -> None:
    """Where it is not said."""
    assert LocalTemplate.of(job({template("mainApplicationFile"): file, template("type"): None})).type == kind


def test_a_template_without_an_application_cannot_run_here() -> None:
    """The error comes before anything starts, with the field's path."""
    with pytest.raises(InvalidJob, match=r"j\.yaml: spec\.template\.spec\.mainApplicationFile: is required"):
        LocalTemplate.of(job({template("mainApplicationFile"): None}), source="j.yaml")
