"""The examples of kubeflow's Spark operator, from its Go module, and what of them has to change to run on the tests' node.

Replaced are the image and the account, which a cluster has of its own; the jar of Spark's examples, which is in no registry, by one with a
class of the same name; requests for cores (by a tenth of them where there are any) and the number of slices, for a node of two cores. All
else is as published: volumes, ConfigMaps, pod templates, security contexts, limits, schedulers.
"""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from harness.binaries import SPARK_OPERATOR, PartMissing, find_go, run_go
from harness.kube_api import Json
from harness.node.images import SPARK
from harness.node.scene import SCRIPTS, SHARED
from harness.patience import completed

SLICES = "4"
PROGRAMS = "examples"
"""Folder of the shared folder with the programs."""


def folder() -> Path:
    """The examples of the Spark operator that the tests run. Raises: PartMissing."""
    name, version = SPARK_OPERATOR
    go = find_go()
    if go is None:
        raise PartMissing("the examples of the Spark operator come from its Go module, and there is no Go")
    return Path(json.loads(run_go(go, "mod", "download", "-json", f"{name}@{version}"))["Dir"]) / "examples"


def make_programs(place: Path) -> None:
    """Puts the two programs of the examples into a folder. Raises: PartMissing: there is no Java compiler."""
    import pyspark

    spark = Path(pyspark.__file__).parent
    if shutil.which("javac") is None:
        raise PartMissing("the examples need a Java compiler; install a JDK of Java 17")
    place.mkdir()
    classes = place / "classes"
    compiled = completed(["javac", "-cp", f"{spark}/jars/*", "-d", str(classes), str(SCRIPTS / "SparkPi.java")], 120)
    assert compiled.returncode == 0, compiled.stderr
    with zipfile.ZipFile(place / "spark-examples.jar", "w") as jar:
        for each in classes.rglob("*.class"):
            jar.write(each, each.relative_to(classes))
    shutil.copy(spark / "examples" / "src" / "main" / "python" / "pi.py", place)
    for each in (place, *place.iterdir()):
        each.chmod(0o755)


def here(job: Json, namespace: str, shared: Path) -> Json:
    """The converted job, as it runs on the tests' node."""
    made: Json = copy.deepcopy(job)
    made["metadata"]["namespace"] = namespace
    spec: Any = made["spec"]["template"]["spec"]
    spec.update(image=SPARK, imagePullPolicy="Never", sparkVersion="4.1.1")
    program = Path(str(spec["mainApplicationFile"])).name
    spec["mainApplicationFile"] = f"local://{SHARED}/{PROGRAMS}/{program}"
    spec["arguments"] = [SLICES]
    conf = spec.setdefault("sparkConf", {})
    for role in ("driver", "executor"):
        volume = f"spark.kubernetes.{role}.volumes.hostPath.shared"
        conf[f"{volume}.mount.path"], conf[f"{volume}.options.path"] = SHARED, str(shared)
        spec[role]["coreRequest"] = tenth(spec[role].get("coreRequest", "500m"))
    spec["driver"]["serviceAccount"] = "spark"
    return made


def tenth(cores: str) -> str:
    """Of a Kubernetes quantity of cores, in thousandths of a core."""
    thousandths = float(cores[:-1]) if cores.endswith("m") else 1000 * float(cores)
    return f"{thousandths / 10:.0f}m"
