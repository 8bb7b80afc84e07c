"""Programs for tests, kept outside the checkout: object stores from their own registries, Kafka, Spark's connector for S3, Helm, linters,
and crane, which is a registry of images and a client of one.

They use the cache and locks of `binaries`: keyed by version, moved into place when complete, made by the first process that needs them or
in advance by `scripts/cluster-parts`. The Go programs are commands of their own modules (`go install`), so they need no module of ours;
Azurite comes from npm; Spark's S3A connector comes from Maven through Spark's own resolver, without the bundle of every AWS service (600
MB) that it depends on: the few modules that it really loads are 18 MB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.binaries import PartMissing, cache, find_go, last_words, one_at_a_time, or_skip, to_stderr

VERSITYGW = ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
FAKE_GCS = ("github.com/fsouza/fake-gcs-server", "v1.56.1")
HELM = ("helm.sh/helm/v3/cmd/helm", "v3.22.0")
KUBE_SCORE = ("github.com/zegl/kube-score/cmd/kube-score", "v1.20.0")
CRANE = ("github.com/google/go-containerregistry/cmd/crane", "v0.22.1")
ACTIONLINT = ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12")
AZURITE = "3.35.0"
KAFKA = "4.1.2"
AWS_SDK = "2.29.52"
"""The version that this hadoop-aws requires."""
AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
TIMEOUT = 1500.0
"""Seconds; it takes minutes on busy cores."""

IVY = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
"""Maven Central alone: Spark's default settings use a second repository, which not every machine reaches."""

RESOLVE = """
from pyspark.sql import SparkSession
import sys
packages, ivy = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
builder = builder.config("spark.jars.packages", packages).config("spark.jars.excludes", "software.amazon.awssdk:bundle")
builder.config("spark.jars.ivy", ivy).config("spark.jars.ivySettings", ivy + "/settings.xml").getOrCreate().stop()
"""


def program(module: tuple[str, str]) -> Path:
    """The command of a Go module. Skips the test if it cannot be had."""
    return or_skip(installed, module)


def installed(module: tuple[str, str]) -> Path:
    """As `program`, for callers outside a test. Raises PartMissing."""
    package, version = module
    name = package.rpartition("/")[2]
    place = cache() / f"{name}-{version}"
    if not (place / name).exists():
        go = find_go()
        if go is None:
            raise PartMissing(f"{name} {version} must be built and there is no Go; install Go 1.24 or later")
        with one_at_a_time(f"{name}.lock", to_stderr):
            if not (place / name).exists():
                to_stderr(f"building {name} {version} from its Go module; minutes the first time, and never again")
                part = _fresh(place)
                command = [go, "install", "-trimpath", "-ldflags", "-s -w", f"{package}@{version}"]
                _do(command, part, {"GOBIN": str(part), "CGO_ENABLED": "0"})
                part.rename(place)
    return place / name


def azurite() -> list[str]:
    """The command that starts Azurite's blob service. Skips the test if it cannot be had."""
    return or_skip(azurite_installed)


def azurite_installed() -> list[str]:
    """As `azurite`, for callers outside a test. Raises PartMissing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None:
        raise PartMissing("Azurite runs on Node.js and there is none; install nodejs and npm")
    place = cache() / f"azurite-{AZURITE}"
    if not place.is_dir():
        if npm is None:
            raise PartMissing(f"Azurite {AZURITE} comes from npm and there is none; install npm")
        with one_at_a_time("azurite.lock", to_stderr):
            if not place.is_dir():
                to_stderr(f"installing Azurite {AZURITE} from npm")
                part = _fresh(place)
                _do([npm, "install", "--no-audit", "--no-fund", "--prefix", str(part), f"azurite@{AZURITE}"], part, {})
                part.rename(place)
    return [node, str(place / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js")]


def s3a_jars() -> list[Path]:
    """The jars for `s3a://` on the class path of this environment's Spark. Skips the test if they cannot be had."""
    return or_skip(s3a_resolved)


def s3a_resolved() -> list[Path]:
    """As `s3a_jars`, for callers outside a test. Raises PartMissing."""
    hadoop = _hadoop_version()
    packages = [f"org.apache.hadoop:hadoop-aws:{hadoop}"]
    packages += [f"software.amazon.awssdk:{name}:{AWS_SDK}" for name in AWS_MODULES]
    return jars(f"s3a-{hadoop}-{AWS_SDK}", packages)


def kafka_jars() -> list[Path]:
    """The jars of Kafka's broker, but for Scala's library, which Spark has. Skips the test if they cannot be had."""
    return or_skip(kafka_resolved)


def kafka_resolved() -> list[Path]:
    """As `kafka_jars`, for callers outside a test. Raises PartMissing."""
    return jars(f"kafka-{KAFKA}", [f"org.apache.kafka:kafka_2.13:{KAFKA}"])


def jars(name: str, packages: Sequence[str]) -> list[Path]:
    """Jars from Maven with what they depend on, except for what Spark has: fetched by Spark's resolver, and cached under this name.
    packages: as `GROUP:ARTIFACT:VERSION`. Raises PartMissing."""
    place = cache() / name
    if not place.is_dir():
        with one_at_a_time(f"{name}.lock", to_stderr):
            if not place.is_dir():
                to_stderr(f"fetching {packages[0]} from Maven")
                part = _fresh(place)
                ivy = part / "ivy"
                ivy.mkdir()
                (ivy / "settings.xml").write_text(IVY)
                _do([sys.executable, "-c", RESOLVE, ",".join(packages), str(ivy)], part, {})
                for jar in (ivy / "jars").glob("*.jar"):
                    jar.rename(part / jar.name)
                shutil.rmtree(ivy)
                part.rename(place)
    return sorted(place.glob("*.jar"))


def _hadoop_version() -> str:
    """The version of Hadoop among PySpark's own jars."""
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar"))
    if not found:
        raise PartMissing("PySpark has no Hadoop jars here, so its version of S3A is unknown; install pyspark again")
    return found[-1].stem.removeprefix("hadoop-client-api-")


def _fresh(place: Path) -> Path:
    part = Path(f"{place}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def _do(command: list[str], folder: Path, more: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PartMissing(f"{command[0]} failed: {error}") from None
    if done.returncode != 0:
        raise PartMissing(f"{json.dumps(command[:3])} failed: {last_words(done.stdout + done.stderr)}")


def main(arguments: Sequence[str]) -> int:
    """`--operator`: only what the operator tier starts."""
    try:
        if "--operator" in arguments:
            places = [installed(HELM)]
        else:
            programs = [installed(each) for each in (VERSITYGW, FAKE_GCS, HELM, KUBE_SCORE, CRANE, ACTIONLINT)]
            places = [*programs, Path(azurite_installed()[-1]), s3a_resolved()[0].parent, kafka_resolved()[0].parent]
    except PartMissing as missing:
        to_stderr(str(missing))
        return 1
    to_stderr(f"ready: {', '.join(str(place) for place in places)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
