"""Makes the files of a release in a folder: wheel and source archive, image archives of one architecture, chart, bills of materials.

Names of files say what they are, and `publish` finds them by name:

    sparkonce-0.1.0-py3-none-any.whl  sparkonce-0.1.0.tar.gz  sparkonce-0.1.0.cdx.json
    operator-amd64.tar  operator-amd64.cdx.json               and so on for each image and architecture
    sparkonce-0.1.0.tgz                                       the chart

A file is complete once it has its name. Python's distributions have the same bytes in each build of one commit. An image's Debian packages
are those of the day, and `helm package` writes the time: repeat a failed step with the files of the first build, not with a new one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from images import archive, layers
from images.build import build
from images.command import run
from release import sbom
from release.version import CHART, ROOT, NotReleased, current

SPARK_OPERATOR = ("github.com/kubeflow/spark-operator/v2", "v2.5.2")
"""The Go module that has the chart of kubeflow's Spark operator, at the version that the tests run."""
DEPENDENCY = """dependencies:
  - name: spark-operator
    alias: kubeflow
    version: {version}
    condition: kubeflow.enabled
    repository: "" # it is in charts/
"""
REGISTRY = re.compile(r"^  registry: \"\"(?= #)", re.MULTILINE)
"""The line of the chart's values that a packaged chart has the registry in: the first of them is that of all images."""
NAME = re.compile(r"[a-z0-9][a-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)*")


def distributions(out: Path) -> Iterator[Path]:
    """Wheel, source archive and the bill of materials of all extras, at the locked versions."""
    version = current()
    with finished_in(out) as work:
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(layers.EPOCH)}
        run([sys.executable, "-m", "hatchling", "build", "--directory", str(work)], environment, cwd=ROOT)
        bill = work / f"sparkonce-{version}.cdx.json"
        bill.write_text(sbom.of_locked(version))
        wanted = {f"sparkonce-{version}-py3-none-any.whl", f"sparkonce-{version}.tar.gz", bill.name}
        if (made := {each.name for each in work.iterdir()}) != wanted:
            raise NotReleased(
                f"the build backend made {', '.join(sorted(made))} instead of {', '.join(sorted(wanted))}"
            )
        yield from moved(work, out)


def images(out: Path, names: Iterable[str]) -> Iterator[Path]:
    """Archives of these images for this machine's architecture. Raises NotBuilt if it is none that images are made for."""
    version = current()
    for name in names:
        with finished_in(out) as work:
            made = build(
                name, work / f"{name}-{archive.architecture()}.tar", tag=f"localhost/sparkonce/{name}:{version}"
            )
            made.with_suffix(".cdx.json").write_text(sbom.of_archive(made, name=name, version=version))
            yield from moved(work, out)


def chart(out: Path, *, registry: str) -> Path:
    """The packaged chart, whose images are by default those of this registry, with kubeflow's chart inside as `kubeflow`, which is off.

    The chart of a checkout has no such dependency: it would name the host of a chart repository, or copy another project's files.
    Raises NotReleased or NotBuilt.
    """
    if not NAME.fullmatch(registry):
        raise NotReleased(
            f"{registry!r} is no registry: give HOST or HOST/PATH in lower case, without a scheme, such as registry.example.com/team"
        )
    version = current()
    with finished_in(out) as work:
        copied = Path(shutil.copytree(ROOT / CHART, work / "chart" / CHART.name))
        values = copied / "values.yaml"
        text, count = REGISTRY.subn(f'  registry: "{registry}"', values.read_text(), count=1)
        if not count:
            raise NotReleased(
                f'{CHART}/values.yaml has no line `registry: ""` under image, in which the release writes its registry'
            )
        values.write_text(text)
        _with_spark_operator(copied)
        run(
            ["helm", "package", str(copied), "--version", version, "--app-version", version, "--destination", str(work)]
        )
        shutil.rmtree(work / "chart")
        (made,) = moved(work, out)
        return made


def _with_spark_operator(chart: Path) -> None:
    module, version = SPARK_OPERATOR
    source = Path(json.loads(run(["go", "mod", "download", "-json", f"{module}@{version}"]))["Dir"])
    target = chart / "charts" / "spark-operator"
    shutil.copytree(source / "charts" / "spark-operator-chart", target, ignore=shutil.ignore_patterns("tests", "ci"))
    shutil.copy(source / "LICENSE", target)
    for each in [target, *target.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)  # a module's files are read-only
    with (chart / "Chart.yaml").open("a") as file:
        file.write(DEPENDENCY.format(version=version.lstrip("v")))


@contextmanager
def finished_in(out: Path) -> Iterator[Path]:
    """A work folder inside `out`, on the same file system, so that a finished file appears under its name at once."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".work-", dir=out) as folder:
        yield Path(folder)


def moved(work: Path, out: Path) -> Sequence[Path]:
    return [each.rename(out / each.name) for each in sorted(work.iterdir())]
