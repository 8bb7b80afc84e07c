"""What looks like a secret in a job is hidden where it is shown, and nothing else is."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

from harness.manifests import document
from harness.patience import completed
from sparkonce.model.masking import masked, quotable, redacted, values_of

SECRETS: list[tuple[dict[str, Any], str]] = [
    ({"sparkConf": {"spark.hadoop.fs.s3a.secret.key": "hunter22"}}, "hunter22"),
    ({"hadoopConf": {"fs.azure.account.key": "hunter22"}}, "hunter22"),
    ({"driver": {"env": [{"name": "PGPASSWORD", "value": "hunter22"}]}}, "hunter22"),
    ({"executor": {"envVars": {"API_TOKEN": "hunter22"}}}, "hunter22"),
    ({"driver": {"sidecars": [{"env": [{"name": "dbCredential", "value": "hunter22"}]}]}}, "hunter22"),
    ({"driver": {"env": [{"name": "DB", "value": "jdbc:postgresql://ann:hunter22@db/x"}]}}, "hunter22"),
    ({"sparkConf": {"spark.url": "https://hunter22@host/?a=1"}}, "hunter22"),
    ({"sparkConf": {"spark.url": "https://host/?a=1&sig_token=hunter22&b=2"}}, "hunter22"),
    ({"driver": {"javaOptions": "-Da=b -Djavax.net.ssl.keyStorePassword=hunter22 -Dc=d"}}, "hunter22"),
    ({"arguments": ["--password=hunter22"]}, "hunter22"),
    ({"arguments": ["--api-token", "hunter22"]}, "hunter22"),
    ({"arguments": ["--password=hun,ter;22&s p"]}, "hun,ter;22&s p"),
    ({"driver": {"javaOptions": "-Da=b -Ddb.password=hun,ter;22 -Dc=d"}}, "hun,ter;22"),
    ({"driver": {"envVars": {"PASSWORD": 12345678}}}, "12345678"),
]


def job(template: dict[str, Any], kind: str = "SparkApplication") -> dict[str, Any]:
    made = document()
    made["spec"]["template"]["spec"] = {"mainApplicationFile": "job.py", **template}
    made["spec"]["template"]["kind"] = kind
    return made


@pytest.mark.parametrize("kind", ["SparkApplication", "Unknown"])
@pytest.mark.parametrize(("template", "secret"), SECRETS, ids=[str(template)[:60] for template, _ in SECRETS])
def test_a_secret_is_hidden(template: dict[str, Any], secret: str, kind: str) -> None:
    """It is hidden in the shown job and in what its driver printed; the job itself is unchanged."""
    made = job(template, kind)
    before = copy.deepcopy(made)
    shown = masked(made)
    assert secret not in str(shown)
    assert "***" in str(shown)
    assert made == before
    assert redacted(f"cannot log in with {secret}: no", values_of(made)) == "cannot log in with ***: no"


@pytest.mark.parametrize(
    "template",
    [
        {"sparkConf": {"spark.sql.shuffle.partitions": "8", "spark.kryo.tokenizer": True, "a": "b=c"}},
        {"driver": {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}}]}},
        {
            "driver": {
                "env": [{"name": "TOKEN"}, {"name": "TZ", "value": "UTC"}],
                "envFrom": [{"secretRef": {"name": "a"}}],
            }
        },
        {
            "arguments": [
                "--keyspace=orders",
                "--month",
                "1",
                "s3a://bucket/a@b",
                "-- the token of a day, where day = 1",
            ],
            "deps": {"jars": ["https://host/a@1.jar"]},
        },
    ],
)
def test_what_is_no_secret_is_shown(template: dict[str, Any]) -> None:
    """References to Kubernetes Secrets, ordinary settings and paths with an `@` are shown; a job without secrets is shown unchanged."""
    made = job(template)
    assert masked(made) == made
    assert values_of(made) == frozenset()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:oracle:thin:ann/hunter2@db:1521:x", "jdbc:oracle:thin:***@db:1521:x"),
        ('jdbc:oracle:oci8:ann/"h@nter2"@db', "jdbc:oracle:oci8:***@db"),
        ("jdbc:postgresql://ann:hunter2@db/x", "jdbc:postgresql://***@db/x"),
        ("https://ann:h@nter2@db/x", "https://***@db/x"),
        ("jdbc:mysql://db/x?user=ann&password=hunter2", "jdbc:mysql://db/x?user=ann&password=***"),
        ("jdbc:sqlserver://db;user=ann;password=hunter2;a=b", "jdbc:sqlserver://db;user=ann;password=***;a=b"),
        ("USING jdbc OPTIONS (password 'hunter 2', a 'b')", "USING jdbc OPTIONS (password ***, a 'b')"),
        ('OPTIONS ("fs.s3a.secret.key" = \'hunter2', 'OPTIONS ("fs.s3a.secret.key" = ***'),
    ],
)
def test_what_a_message_quotes_has_no_secret(text: str, shown: str) -> None:
    """URLs of all spellings that JDBC drivers know, and options of SQL, also one that was cut off."""
    assert quotable(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:oracle:thin:@//db:1521/x",
        "jdbc:h2:mem:x",
        "s3a://bucket/a@b",
        "abfss://lake@account.dfs.core.windows.net/orders",
        "kafka://host:9092/topic",
        "MERGE INTO t USING s ON t.key = s.key WHEN MATCHED THEN DELETE",
        "SELECT 'password' FROM t",
    ],
)
def test_what_a_message_quotes_is_kept_otherwise(text: str) -> None:
    """Places and statements without a secret are shown as they are."""
    assert quotable(text) == text


def test_a_short_value_is_not_searched_for() -> None:
    """A password of one letter would be found everywhere in a log."""
    made = job({"sparkConf": {"spark.password": "a"}})
    assert masked(made)["spec"]["template"]["spec"]["sparkConf"] == {"spark.password": "***"}
    assert redacted("a failed task", values_of(made)) == "a failed task"


@pytest.mark.parametrize(
    "broken", [{}, {"spec": 1}, {"spec": {"template": []}}, {"spec": {"template": {"spec": None}}}]
)
def test_a_job_that_is_none(broken: dict[str, Any]) -> None:
    """A record of any version can be shown."""
    assert masked(broken) == broken


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "key" * 30_000, "key" * 30_000 + "=hunter22"], ids=["a", "key", "key="]
)
def test_a_long_text_is_searched_at_once(text: str) -> None:
    """An argument of 100 kB, such as a program in base64, does not hold up the process that reads it, which is an operator or a gateway
    of other jobs as well."""
    program = "import sys; from sparkonce.model.masking import values_of; template = {'spec': {'arguments': [sys.stdin.read()]}}\n"
    program += "print(sorted(values_of({'spec': {'template': template}})))"
    done = completed([sys.executable, "-c", program], 3.0, given=text)
    assert done.stdout.strip() == ("['hunter22']" if text.endswith("=hunter22") else "[]"), done.stderr
