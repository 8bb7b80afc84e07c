"""The images, made from one list of contents (`images.toml`): OCI archives without Docker, and a Dockerfile for each.

`images.build.build("spark", Path("spark.tar"), tag="example.com/sparkonce/spark:dev")` is what a cluster's harness calls.

It refuses to need a container engine, a registry or a daemon: an image is layers of files and three JSON documents, and the machine that
tests a chart has none of the others. buildah was not taken: it wants user namespaces or a storage driver that a container seldom has. The
Dockerfiles are for those who have an engine; they are generated, so that the two ways cannot tell different stories.
"""

from __future__ import annotations
