"""Builds the images from one list of contents (`images.toml`), as OCI archives without Docker, and generates a Dockerfile for each.

The cluster harness calls `images.build.build("spark", Path("spark.tar"), tag="example.com/sparkonce/spark:dev")`.

It needs no container engine, registry or daemon: an image is layers of files and three JSON documents, and the machine that tests a chart
has no engine. buildah was not taken, since it needs user namespaces or a storage driver that a container seldom has. The Dockerfiles are
for users with an engine; they are generated from the same list, so that both ways produce the same contents.
"""

from __future__ import annotations
