"""A SparkApplication on a laptop: the fields that take effect, and the warning about all others."""

from __future__ import annotations

from typing import Any

import pytest

from harness.manifests import job, template
from sparkonce.launch.submit import LocalTemplate
from sparkonce.model.validation import InvalidJob, Loc


def test_what_a_laptop_can_honour_is_read() -> None:
    """Command, configuration, environment and dependencies are read with their types, and as text where Spark takes text."""
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
    """Exactly the given fields that have no effect on a laptop are listed."""
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
    """The file's ending decides if no type is given."""
    assert LocalTemplate.of(job({template("mainApplicationFile"): file, template("type"): None})).type == kind


def test_a_template_without_an_application_cannot_run_here() -> None:
    """The error names the field, before anything starts."""
    with pytest.raises(InvalidJob, match=r"j\.yaml: spec\.template\.spec\.mainApplicationFile: is required"):
        LocalTemplate.of(job({template("mainApplicationFile"): None}), source="j.yaml")


def local_with(**spec: Any) -> LocalTemplate:
    changes: dict[Loc, Any] = {template(name): value for name, value in spec.items()}
    return LocalTemplate.of(job({**changes, ("spec", "tunableArguments"): []}))


def named(**values: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def test_values_and_arguments_are_expanded_as_on_a_cluster() -> None:
    """An entry can refer to earlier ones, arguments to all; `$$` is `$`, unknown names are kept, and nothing is expanded twice."""
    entries = named(
        EARLY="$(LATE)", BASE="/tank", OUT="$(BASE)/trips", PRICE="$$5", KEPT="$(NOPE)", TWICE="$$(BASE)", LATE="x"
    )
    local = local_with(driver={"env": [*entries, {"name": "BASE", "value": "$(BASE)/2"}, *named(COPY="$(TWICE)")]},
                       arguments=["$(OUT)", "$(BASE)", "$$(OUT)", "$(NOPE)", "$(LATE)", 1])  # fmt: skip
    assert local.env == {
        "EARLY": "$(LATE)",
        "BASE": "/tank/2",
        "OUT": "/tank/trips",
        "PRICE": "$5",
        "KEPT": "$(NOPE)",
        "TWICE": "$(BASE)",
        "LATE": "x",
        "COPY": "$(BASE)",
    }
    assert local.arguments == ("/tank/trips", "/tank/2", "$(OUT)", "$(NOPE)", "x", "1")
    assert local.unknown == ()


def test_executors_and_forwarded_settings_are_expanded_too() -> None:
    """Settings that become a container's environment are expanded; other settings are files on a cluster, and are not."""
    conf = {"spark.executorEnv.A": "$$1", "spark.kubernetes.driverEnv.B": "$$2", "spark.example.c": "$$3"}
    local = local_with(
        sparkConf=conf, executor={"env": named(D="$(A)4"), "envVars": {"E": "$$5"}}, driver={"env": named(F="$(B)")}
    )
    assert local.conf == {
        "spark.executorEnv.A": "$1",
        "spark.executorEnv.D": "$14",
        "spark.executorEnv.E": "$5",
        "spark.example.c": "$$3",
    }
    assert local.env == {"B": "$2", "F": "$2"}
    assert not [path for path in local.skipped if "driverEnv" in path]


@pytest.mark.parametrize(
    ("driver", "source"),
    [
        ({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}, "valueFrom"),
        ({"envFrom": [{"configMapRef": {"name": "a"}}]}, "driver.envFrom"),
        ({"envSecretKeyRefs": {"X": {"name": "a", "key": "b"}}}, "driver.envSecretKeyRefs"),
        ({"template": {"spec": {"containers": [{"name": "c", "env": named(X="1")}]}}}, "driver.template"),
    ],
)
def test_a_reference_that_only_a_cluster_resolves_is_named(driver: dict[str, Any], source: str) -> None:
    """It would stay text here but become a value on a cluster: the field is named, with both remedies."""
    local = local_with(driver=driver, arguments=["--x", "$(X)"])
    ((path, said),) = local.unknown
    assert path == "spec.template.spec.arguments[1]"
    assert said.startswith(
        f"refers to $(X), whose value on a cluster comes from {source}; write the value itself, or $$(X)"
    )
    assert local.arguments == ("--x", "$(X)")


def test_references_among_variables_without_an_order_are_named() -> None:
    """The order of `envVars` in a pod is not defined, and Spark's own variables exist only on a cluster."""
    local = local_with(driver={"envVars": {"A": "1", "B": "$(A)"}, "env": named(C="$(A)", D="$(SPARK_USER)")})
    assert [path for path, _ in local.unknown] == [
        "spec.template.spec.driver.envVars.B",
        "spec.template.spec.driver.env[1].value",
    ]
    assert local.env["C"] == "1"


@pytest.mark.parametrize("file", ["$(DIR)/job.py", "a$$b.py"])
def test_a_main_file_is_expanded_on_a_cluster_alone(file: str) -> None:
    """On a cluster the name is an argument of the container, and expanded; here the file is opened, so its name must not have
    references."""
    (unknown,) = local_with(mainApplicationFile=file).unknown
    assert unknown[0] == "spec.template.spec.mainApplicationFile"
