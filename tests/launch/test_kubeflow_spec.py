"""Documents for kubeflow's Spark operator: golden, complete at creation, and unable to run anything twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.kubeflow_scene import ASSIGNMENT, JOB, NAMESPACE, UID, assignment_of, job_of, wanting
from sparkonce.driver import current as attempt
from sparkonce.errors import LaunchRefused
from sparkonce.launch.kubeflow.labels import OBJECTS, nonce_of
from sparkonce.launch.kubeflow.speaker import has_token
from sparkonce.launch.kubeflow.spec import (
    ASSIGNMENT_LIMIT,
    NOT_FOR_DRIVERS,
    OBJECTS_LIMIT,
    Wanting,
    application,
    assignment_text,
    placeholder,
    settle_run,
    stub_pod,
    suspend_patch,
)
from sparkonce.model.record import Intent, SpecBody, gateway_audience
from sparkonce.model.spec import IdempotentJob, JobSpec, OnDelete
from sparkonce.model.validation import InvalidJob

GOLDEN = Path(__file__).parent / "golden"
DRIVER_ENVIRONMENT = "spark.kubernetes.driverEnv.SPARKONCE_ASSIGNMENT"
RICH = job_of(
    "orders",
    metadata={
        "labels": {"team": "sales", "sparkonce.dev/key": "forged"},
        "annotations": {"note": "kept", "sparkonce.dev/nonce": "forged"},
    },
    template={
        "sparkVersion": 4.1,
        "arguments": ["--day", 1, True],
        "mainClass": None,
        "sparkConf": {
            "spark.sql.shuffle.partitions": 8,
            "spark.kubernetes.driver.label.sparkonce.dev/attempt": "9",
            "spark.kubernetes.driver.label.team": "sales",
            "spark.speculation": False,
            "spark.local.dir": None,
        },
        "restartPolicy": {"type": "Never"},
        "driver": {
            "memory": "4g",
            "coreLimit": 2,
            "serviceAccount": "loader",
            "labels": {"sparkoperator.k8s.io/app-name": "forged", "app": "load"},
            "env": [{"name": "DAY", "value": 1}],
            "sidecars": [{"name": "proxy", "image": "proxy"}],
        },
        "executor": {"instances": 3, "nodeSelector": {"pool": 7}},
    },
)
OBJECTS_OF_IT = [wanting("a"), wanting("b"), wanting("a")]
DOCUMENTS = {
    "application": lambda: application(assignment_of(RICH), RICH, OBJECTS_OF_IT, namespace=NAMESPACE),
    "placeholder": lambda: placeholder(ASSIGNMENT, namespace=NAMESPACE, objects=[wanting("a")]),
    "settle": lambda: settle_run(
        assignment_of(RICH).model_copy(
            update={"run": 1, "settle": Intent(token=3, slots={"orders": {"state": "committed"}})}
        ),
        RICH,
        namespace=NAMESPACE,
    ),
    "stub": lambda: stub_pod(ASSIGNMENT, namespace=NAMESPACE, uid=UID),
}


def told(document: dict[str, Any]) -> str:
    return str(document["spec"]["sparkConf"][DRIVER_ENVIRONMENT])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_golden_documents(name: str) -> None:
    """A change of a golden file is a change of the applications created in clusters."""
    assert DOCUMENTS[name]() == json.loads((GOLDEN / f"kubeflow_{name}.json").read_text())


def test_the_name_is_the_attempts_and_of_no_other() -> None:
    """The name is a DNS label with generation and attempt, and for a settle run its number."""
    made = application(ASSIGNMENT, JOB, [], namespace=NAMESPACE)["metadata"]["name"]
    assert made == "so-0123456789abcdef0123-g2-a3"
    assert placeholder(ASSIGNMENT, namespace=NAMESPACE)["metadata"]["name"] == made
    assert (
        settle_run(ASSIGNMENT.model_copy(update={"run": 2}), JOB, namespace=NAMESPACE)["metadata"]["name"]
        == f"{made}-s2"
    )


def test_what_the_driver_is_told_is_enough_to_write_and_no_more() -> None:
    """The assignment reads back with the same outputs, heartbeat and nonce, but without digests, their secret and the template."""
    job = job_of(
        "orders", "totals", heartbeatTimeoutSeconds=7, tunableArguments=["--n"], template={"arguments": ["--n", "1"]}
    )
    assignment = assignment_of(job)
    back = attempt.assignment_of(told(application(assignment, job, [], namespace=NAMESPACE)))
    again = IdempotentJob.of(back.spec.job)

    assert back.model_copy(update={"spec": assignment.spec}) == assignment
    assert again.resolved_outputs == job.resolved_outputs
    assert again.spec.heartbeat_timeout() == 7
    assert (back.spec.secret, back.spec.digests, again.spec.template.spec) == ("", {}, {})


def test_each_field_of_a_spec_is_sent_to_drivers_or_left_out_for_a_reason() -> None:
    """A new field of the model is in neither list and fails here: it was once dropped in silence."""
    sent = {"idempotencyKey", "operation", "resource", "revision"}  # output locations depend on them
    sent |= {"outputs", "series", "stream", "capture"}  # what it writes, and what it may write
    sent |= {"heartbeatTimeoutSeconds"}
    fields = [str(field.alias) for field in JobSpec.model_fields.values()]
    assert sorted([*sent, *NOT_FOR_DRIVERS]) == sorted(fields)
    assignment = ASSIGNMENT.model_copy(update={"spec": SpecBody(job={"spec": dict.fromkeys(fields, 1)}, base="")})
    assert set(json.loads(assignment_text(assignment))["spec"]["job"]["spec"]) == {*sent, "template"}


def test_what_a_driver_checks_while_it_writes_is_sent_along() -> None:
    """Its series, what its streams and its captured script may do: without them it would write what the job forbids."""
    delta = {"name": "orders", "delta": {"path": "s3://t/orders"}}
    specs: tuple[dict[str, Any], ...] = (
        {"outputs": [delta], "series": {"name": "daily", "position": "1"}},
        {"outputs": [delta], "stream": {"restart": True}},
        {"outputs": [{**delta, "capture": True}], "capture": {"undeclared": "Warn"}},
    )
    for spec in specs:
        job = job_of("orders", **spec)
        again = IdempotentJob.of(attempt.assignment_of(assignment_text(assignment_of(job))).spec.job)
        sent = {name: getattr(again.spec, name) for name in ("outputs", "series", "stream", "capture")}
        assert sent == {name: getattr(job.spec, name) for name in sent}


def test_a_captured_script_runs_under_our_program_and_its_fields_stay() -> None:
    """The driver's Python is ours, which goes on in the one that the job names; main file and arguments are as written. A settle run, whose
    main file is no script, has the job's Python."""
    template = {
        "mainApplicationFile": "s3a://b/script.py",
        "arguments": ["1"],
        "sparkConf": {"spark.pyspark.python": "/opt/py"},
    }
    captured = job_of(
        "orders", template=template, outputs=[{"name": "a", "slotLog": {"path": "s3://t/a"}, "capture": True}]
    )
    spec = application(assignment_of(captured), captured, [], namespace=NAMESPACE)["spec"]
    conf = spec["sparkConf"]
    assert (spec["mainApplicationFile"], spec["arguments"]) == ("s3a://b/script.py", ["1"])
    assert (conf["spark.pyspark.driver.python"], conf["spark.pyspark.python"]) == ("sparkonce-driver", "/opt/py")
    assert conf["spark.kubernetes.driverEnv.SPARKONCE_DRIVER_PYTHON"] == "/opt/py"
    settles = settle_run(assignment_of(captured).model_copy(update={"run": 1}), captured, namespace=NAMESPACE)["spec"][
        "sparkConf"
    ]
    assert "sparkonce-driver" not in settles.values()
    plain = job_of("orders", template=template)
    assert (
        "spark.pyspark.driver.python"
        not in application(assignment_of(plain), plain, [], namespace=NAMESPACE)["spec"]["sparkConf"]
    )


def test_an_output_that_depends_on_the_revision_is_where_it_was() -> None:
    """The parts that the output's location is built from are sent along."""
    spec: dict[str, Any] = {"idempotencyKey": None, "operation": "load", "resource": "flights", "revision": "r7"}
    job = job_of("o", folder="s3://t/{revision}", **spec)
    back = attempt.assignment_of(assignment_text(assignment_of(job)))
    assert [each.location for each in IdempotentJob.of(back.spec.job).resolved_outputs] == ["s3://t/r7/o"]


@given(st.text(max_size=40))
def test_any_text_survives_the_way_to_the_driver(text: str) -> None:
    """It is sent as one line of ASCII without dollar signs, which neither a JVM's locale nor the kubelet's expansion of `$(NAME)` can
    change."""
    text = text.encode("utf-8", "replace").decode()
    sent = assignment_text(ASSIGNMENT.model_copy(update={"key": f"$(PATH)$${text}"}))
    assert sent.isascii() and sent.isprintable() and "$" not in sent
    assert attempt.assignment_of(sent).key == f"$(PATH)$${text}"


def test_a_spec_too_large_for_an_environment_is_refused_in_one_sentence() -> None:
    """Beyond the limit nothing is created; a large template does not count towards it."""
    intent = Intent(token=3, slots={"orders": {"files": ["x" * ASSIGNMENT_LIMIT]}})
    with pytest.raises(LaunchRefused, match="fit into its environment; shorten") as refused:
        settle_run(ASSIGNMENT.model_copy(update={"run": 1, "settle": intent}), JOB, namespace=NAMESPACE)
    assert "\n" not in str(refused.value)

    large = job_of("orders", template={"arguments": ["x" * ASSIGNMENT_LIMIT]})
    assert len(told(application(assignment_of(large), large, [], namespace=NAMESPACE))) < 2000


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"driver": {"podName": "mine"}}, "driver.podName"),
        ({"sparkConf": {"spark.kubernetes.driver.pod.name": "mine"}}, "driver.pod.name"),
        ({"mode": "client"}, "mode: must be cluster"),
    ],
)
def test_what_could_let_two_drivers_in_is_no_job(template: dict[str, Any], field: str) -> None:
    """The Spark operator excludes a second driver by the driver pod's name, so a job that sets its own name or mode is refused."""
    with pytest.raises(InvalidJob, match=field):
        job_of("orders", template=template)


def test_a_recorded_spec_is_launched_without_what_contradicts_the_attempt() -> None:
    """The next attempt and the settle run of a job recorded by an earlier version run in their own namespace, with the account that the job
    names."""
    account = "spark.kubernetes.authenticate.driver.serviceAccountName"
    job = job_of(
        "orders",
        template={
            "sparkConf": {
                "spark.kubernetes.namespace": "other",
                "spark.kubernetes.namespace=other#": "",
                "spark.kubernetes.authenticate.driver.clientKeyFile": "/var/run/secrets/token",
                "spark.kubernetes.driver.master": "local[2]",
                account: "loader",
            },
            "driver": {
                "kubernetesMaster": "https://elsewhere",
                "template": {
                    "metadata": {"namespace": "other", "labels": {"sparkonce.dev/key": "forged", "team": "sales"}},
                    "spec": {"serviceAccountName": "loader"},
                },
                "serviceLabels": {"sparkoperator.k8s.io/app-name": "forged"},
            },
        },
    )
    attempt, settle = (
        make["spec"]
        for make in (
            application(assignment_of(job), job, [], namespace=NAMESPACE),
            settle_run(assignment_of(job).model_copy(update={"run": 1}), job, namespace=NAMESPACE),
        )
    )
    for spec in (attempt, settle):
        given = {name for name in spec["sparkConf"] if name.startswith("spark.kubernetes.") and "Env." not in name}
        assert given == {"spark.kubernetes.driver.master", account}
        assert "kubernetesMaster" not in spec["driver"]
        assert spec["driver"]["template"]["metadata"] == {"labels": {"team": "sales"}}
        assert spec["driver"]["template"]["spec"]["serviceAccountName"] == "loader"
        assert spec["driver"]["serviceLabels"] == {}


def test_applications_and_their_pods_have_no_marks_of_deployment_tools() -> None:
    """A tool that prunes by its marks would delete a running attempt. People's labels, and those that select pods, are passed on."""
    marks = {"argocd.argoproj.io/instance": "apps", "kueue.x-k8s.io/prebuilt-workload-name": "w"}
    both = {**marks, "app.kubernetes.io/instance": "apps", "team": "sales"}
    pods = {"argocd.argoproj.io/instance": "apps", "app.kubernetes.io/instance": "apps", "team": "sales"}
    template = {
        "sparkConf": {f"spark.kubernetes.executor.label.{name}": value for name, value in pods.items()},
        "driver": {"labels": pods, "template": {"metadata": {"annotations": pods}}},
    }
    job = job_of("orders", metadata={"labels": both, "annotations": both}, template=template)
    made = application(assignment_of(job), job, [wanting("a")], namespace=NAMESPACE)
    for kind in ("labels", "annotations"):
        given = {name for name in made["metadata"][kind] if not name.startswith("sparkonce.dev/")}
        assert given == {"team"}
    left = {"app.kubernetes.io/instance": "apps", "team": "sales"}
    assert made["spec"]["driver"]["labels"] == left
    assert made["spec"]["driver"]["template"]["metadata"]["annotations"] == left
    labels = {name for name in made["spec"]["sparkConf"] if ".executor.label." in name}
    assert labels == {f"spark.kubernetes.executor.label.{name}" for name in left}
    assert job.spec.template.metadata.labels == both


def test_pods_are_given_a_utf8_locale_unless_the_job_sets_its_own() -> None:
    """An image without a locale garbles arguments. A settle run has no executors, and a locale that the job sets is not overridden."""
    driver, executor = "spark.kubernetes.driverEnv.", "spark.executorEnv."

    def locale(document: dict[str, Any]) -> dict[str, str]:
        conf = document["spec"]["sparkConf"]
        return {name: conf[name] for name in conf if name.rpartition(".")[2] in ("LC_ALL", "LC_CTYPE", "PYTHONUTF8")}

    def of(**template: Any) -> dict[str, str]:
        job = job_of("orders", template=template)
        return locale(application(assignment_of(job), job, [], namespace=NAMESPACE))

    pinned = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    both = {f"{prefix}{name}": value for prefix in (driver, executor) for name, value in pinned.items()}
    assert of() == both
    settle = settle_run(assignment_of(JOB).model_copy(update={"run": 1}), JOB, namespace=NAMESPACE)
    assert locale(settle) == {f"{driver}{name}": value for name, value in pinned.items()}
    without = {name: value for name, value in both.items() if name != f"{driver}LC_ALL"}
    entry = {"name": "LANG", "value": "de_DE.UTF-8"}
    assert of(driver={"env": [entry]}) == of(driver={"envVars": {"LANG": "de_DE.UTF-8"}}) == without
    assert of(driver={"template": {"spec": {"containers": [{"env": [entry]}]}}}) == without
    assert of(sparkConf={f"{driver}LC_ALL": "de_DE.UTF-8"}) == {**both, f"{driver}LC_ALL": "de_DE.UTF-8"}


def test_a_main_file_that_is_an_option_is_never_launched() -> None:
    """spark-submit would take it, and the arguments after it, for its own options."""
    job = job_of("orders", template={"mainApplicationFile": "--conf=spark.kubernetes.namespace=other"})
    with pytest.raises(LaunchRefused, match=r"^spec.template.spec.mainApplicationFile: must not begin with '-'"):
        application(assignment_of(job), job, [], namespace=NAMESPACE)


def test_executors_carry_the_nonce() -> None:
    """When an attempt is stopped, its pods are identified by a value that cannot be guessed; the user's own annotations are kept."""
    job = job_of("orders", template={"executor": {"annotations": {"team": "loads"}}})
    made = application(ASSIGNMENT, job, [], namespace=NAMESPACE)["spec"]
    assert made["driver"]["annotations"] == {"sparkonce.dev/nonce": ASSIGNMENT.nonce}
    assert made["executor"]["annotations"] == {"sparkonce.dev/nonce": ASSIGNMENT.nonce, "team": "loads"}


@pytest.mark.parametrize(
    ("job", "objects", "owned"),
    [
        (JOB, [wanting("a"), wanting("b"), wanting("a")], 2),
        (JOB, [], 0),
        (JOB, [wanting("a"), wanting("b", on_delete=OnDelete.DETACH)], 0),
        (JOB, [wanting("a"), wanting("b", namespace="elsewhere")], 0),
        (JOB, [wanting(str(n)) for n in range(OBJECTS_LIMIT + 1)], 0),
        (job_of(), [wanting("a")], 0),
    ],
    ids=["all", "none live", "detach", "another namespace", "too many", "opaque"],
)
def test_owners_are_all_objects_of_the_key_or_none(job: IdempotentJob, objects: list[Wanting], owned: int) -> None:
    """An application is garbage-collected only when no object wants it any more; the annotation names the objects in any case."""
    metadata = application(assignment_of(job), job, objects, namespace=NAMESPACE)["metadata"]
    assert len(metadata.get("ownerReferences", [])) == owned
    assert len([uid for uid in metadata["annotations"][OBJECTS].split(",") if uid]) == min(
        len({o.uid for o in objects}), OBJECTS_LIMIT
    )


def test_placeholders_and_settle_runs_have_no_owners() -> None:
    """Garbage collection would free the name, and settling must finish whichever object is deleted."""
    objects = [wanting("a")]
    settle = settle_run(ASSIGNMENT.model_copy(update={"run": 1}), JOB, namespace=NAMESPACE, objects=objects)
    for made in (placeholder(ASSIGNMENT, namespace=NAMESPACE, objects=objects), settle):
        assert "ownerReferences" not in made["metadata"]
        assert nonce_of(made, ASSIGNMENT) == ASSIGNMENT.nonce


def test_a_settle_run_replaces_what_runs_and_keeps_where_it_runs() -> None:
    """Image, account, pull secrets, volumes and environment are the job's; its code, sizes and sidecars are left out."""
    template = {
        "arguments": ["--day", "1"],
        "deps": {"packages": ["g:a:1"]},
        "imagePullSecrets": ["pull"],
        "volumes": [{"name": "keys"}],
        "sparkConf": {"spark.jars.packages": "g:b:1", "spark.kubernetes.driver.secrets.keys": "/keys"},
        "driver": {
            "serviceAccount": "loader",
            "memory": "64g",
            "coreRequest": "8",
            "envVars": {"REGION": "x"},
            "template": {
                "spec": {
                    "priorityClassName": "high",
                    "containers": [
                        {"name": "proxy"},
                        {"name": "spark-kubernetes-driver", "args": ["x"], "env": [{"name": "A", "value": "b"}]},
                    ],
                }
            },
        },
    }
    job = job_of("orders", template=template)
    spec = settle_run(assignment_of(job).model_copy(update={"run": 1}), job, namespace=NAMESPACE)["spec"]
    driver, pod = spec["driver"], spec["driver"]["template"]["spec"]

    assert (spec["image"], spec["imagePullSecrets"], spec["volumes"]) == (
        "localhost/jobs:1",
        ["pull"],
        [{"name": "keys"}],
    )
    assert (driver["serviceAccount"], driver["envVars"], pod["priorityClassName"]) == (
        "loader",
        {"REGION": "x"},
        "high",
    )
    (container,) = pod["containers"]
    assert container["command"][-1].endswith("-m sparkonce.driver.settle")
    assert (container["env"], "args" in container) == ([{"name": "A", "value": "b"}], False)
    assert not {"arguments", "deps", "mainClass"} & set(spec)
    assert (driver["memory"], "coreRequest" in driver) == ("512m", False)
    assert (
        "spark.kubernetes.driver.secrets.keys" in spec["sparkConf"] and "spark.jars.packages" not in spec["sparkConf"]
    )


@pytest.mark.parametrize(
    ("template", "instances", "cores"),
    [
        ({}, 1, 1),
        ({"sparkConf": {"spark.executor.instances": 4, "spark.driver.cores": 2}}, None, None),
        ({"dynamicAllocation": {"enabled": True}}, None, 1),
        ({"executor": {"instances": 5}, "driver": {"cores": 3}}, 5, 3),
    ],
)
def test_defaults_of_the_webhook_are_filled_in(
    template: dict[str, Any], instances: int | None, cores: int | None
) -> None:
    """The Spark operator's webhook may be off; values that the job sets, in either place, are kept."""
    job = job_of("orders", template=template)
    spec = application(assignment_of(job), job, [], namespace=NAMESPACE)["spec"]
    assert (spec["executor"].get("instances"), spec["driver"].get("cores")) == (instances, cores)
    assert (spec["mode"], spec["driver"]["memory"], spec["executor"]["memory"]) == ("cluster", "1g", "1g")


def test_a_document_shares_nothing_with_the_job() -> None:
    """A later change of the document does not change the job or its next attempt."""
    job = job_of("orders", template={"volumes": [{"name": "keys"}], "driver": {"template": {"spec": {"x": [1]}}}})
    made = application(assignment_of(job), job, [], namespace=NAMESPACE)
    settle = settle_run(assignment_of(job).model_copy(update={"run": 1}), job, namespace=NAMESPACE)
    before = job.document()
    made["spec"]["volumes"][0]["name"] = "changed"
    settle["spec"]["driver"]["template"]["spec"]["x"].append(2)
    assert job.document() == before


def test_a_suspend_patch_touches_one_object_only() -> None:
    """Suspension and mark are one write, with the UID as precondition: another object under the name gives a conflict."""
    assert suspend_patch(ASSIGNMENT, uid=UID) == {
        "metadata": {"uid": UID, "annotations": {"sparkonce.dev/stopping": "nonce-3"}},
        "spec": {"suspend": True},
    }


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
names = st.sampled_from(["spark.a", "b", "sparkonce.dev/key", "sparkoperator.k8s.io/app-name"])
texts = st.dictionaries(names, scalars, max_size=4)
pods = st.fixed_dictionaries(
    {},
    optional={
        "labels": texts,
        "envVars": texts,
        "nodeSelector": texts,
        "memory": scalars,
        "cores": st.integers(),
        "env": st.none(),
    },
)
templates = st.fixed_dictionaries(
    {},
    optional={
        "sparkConf": texts,
        "hadoopConf": texts,
        "arguments": st.lists(st.integers() | st.text(max_size=5)),
        "driver": pods,
        "executor": pods,
        "suspend": st.none() | st.just(False),
        "restartPolicy": st.none() | st.just({"type": None}),
        "timeToLiveSeconds": st.none(),
    },
)


@given(templates)
def test_no_template_can_break_the_rules_of_creation(template: dict[str, Any]) -> None:
    """Whatever the template: never restarted, no TTL, not suspended, cluster mode, text in maps, no labels of ours from the job; the input
    is unchanged."""
    job = job_of("orders", template=template)
    before = job.document()
    made = application(assignment_of(job), job, [], namespace=NAMESPACE)
    spec = made["spec"]

    assert (spec["restartPolicy"], spec["mode"]) == ({"type": "Never"}, "cluster")
    assert not {"timeToLiveSeconds", "suspend"} & set(spec)
    maps = [
        spec["sparkConf"],
        spec.get("hadoopConf", {}),
        *(
            spec[role].get(name, {})
            for role in ("driver", "executor")
            for name in ("labels", "envVars", "nodeSelector")
        ),
    ]
    assert all(isinstance(value, str) for each in maps for value in each.values())
    assert all(isinstance(each, str) for each in spec.get("arguments", []))
    assert not any(
        name.startswith("sparko") for role in ("driver", "executor") for name in spec[role].get("labels", {})
    )
    assert nonce_of(made, ASSIGNMENT) == ASSIGNMENT.nonce
    assert job.document() == before
    json.dumps(made)


def projected(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["spec"]["driver"].get("template", {}).get("spec", {}))


@pytest.mark.parametrize("settles", [False, True], ids=["driver", "settle run"])
def test_a_driver_gets_a_token_for_the_gateway_alone(*, settles: bool) -> None:
    """With a gateway, driver and settle run get a token for its audience that lives for an hour, mounted read-only into Spark's container,
    and the variable that names it. The rest of the job's pod template is kept; a volume or variable with our names is replaced."""
    given = {
        "metadata": {"labels": {"kept": "yes"}},
        "spec": {
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "sparkonce-token", "emptyDir": {}}],
            "containers": [
                {"name": "other"},
                {"name": "spark-kubernetes-driver", "env": [{"name": "SPARKONCE_TOKEN_FILE", "value": "/forged"}]},
            ],
        },
    }
    job = job_of("orders", template={"driver": {"template": given}})
    told = assignment_of(job).model_copy(update={"gateway": "https://gateway:8080", "run": 1})
    made = settle_run(told, job, namespace=NAMESPACE) if settles else application(told, job, [], namespace=NAMESPACE)
    pod = projected(made)
    [container] = [each for each in pod["containers"] if each["name"] == "spark-kubernetes-driver"]
    assert [each["name"] for each in pod["volumes"]] == ["data", "sparkonce-token"]
    token = {"audience": f"gateway.sparkonce.dev/{told.install}", "expirationSeconds": 3600, "path": "token"}
    assert pod["volumes"][1] == {"name": "sparkonce-token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    folder = "/var/run/secrets/sparkonce.dev"
    assert container["env"] == [{"name": "SPARKONCE_TOKEN_FILE", "value": f"{folder}/token"}]
    assert container["volumeMounts"] == [{"name": "sparkonce-token", "mountPath": folder, "readOnly": True}]
    assert has_token({"spec": pod}, gateway_audience(told.install))
    assert not has_token({"spec": pod}, gateway_audience("another"))
    assert job.spec.template.spec["driver"] == {"template": given}, "the job itself was changed"
    executor = made["spec"]["executor"]
    assert "sparkonce-token" not in json.dumps(executor)


def test_without_a_gateway_there_is_no_token() -> None:
    """Nothing is added to a job whose driver calls no gateway."""
    document = application(assignment_of(RICH), RICH, [], namespace=NAMESPACE)
    assert "template" not in document["spec"]["driver"]
    assert not has_token({"spec": projected(document)}, gateway_audience(ASSIGNMENT.install))
