"""The layer of Java libraries beside PySpark's own, fetched from Maven by Spark's own resolver.

What PySpark brings itself is left out, whatever its version: two versions of one library on one class path (netty, slf4j) are decided by
the order of a folder, and half of Spark then meets the wrong one.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from images import layers
from images.command import run
from images.contents import LIB, Image
from images.layers import Layer

IVY = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
"""Maven Central alone: Spark's own settings ask a second place, which not every machine reaches."""
RESOLVE = """
from pyspark.sql import SparkSession
import sys
packages, excludes, ivy = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
builder = builder.config("spark.jars.packages", packages).config("spark.jars.excludes", excludes)
builder.config("spark.jars.ivy", ivy).config("spark.jars.ivySettings", ivy + "/settings.xml").getOrCreate().stop()
"""
OWN = "import os, pyspark; print(*os.listdir(os.path.join(os.path.dirname(pyspark.__file__), 'jars')))"


def layer(image: Image) -> Layer:
    wanted = repr((sorted(image.maven), sorted(image.maven_excludes)))

    def fill(root: Path) -> None:
        fetch(image, root / LIB.lstrip("/") / "pyspark" / "jars")

    return layers.cached(f"jars-{layers.key(Path(__file__).read_text(), wanted)}", "jars for s3a", fill, as_root=True)


def fetch(image: Image, target: Path) -> None:
    """The image's jars and what they need, into `target`."""
    target.mkdir(parents=True)
    with layers.work_folder() as ivy:
        (ivy / "settings.xml").write_text(IVY)
        run([sys.executable, "-c", RESOLVE, ",".join(image.maven), ",".join(image.maven_excludes), str(ivy)])
        own = {_library(each) for each in run([sys.executable, "-c", OWN]).split()}
        for jar in sorted((ivy / "jars").glob("*.jar")):
            name = jar.name.partition("_")[2]  # the resolver writes GROUP_LIBRARY-VERSION.jar
            if _library(name) not in own:
                shutil.copyfile(jar, target / name)


def _library(jar: str) -> str:
    """Its name without the version."""
    return re.split(r"-\d", jar, maxsplit=1)[0]
