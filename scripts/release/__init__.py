"""Steps of a release, each one command that also runs on a laptop: `python scripts/release --help`.

The workflow `.github/workflows/release.yml` decides which job may do what and calls these steps. What they do stands here and not in the
workflow, so that tests run the very same code, against a registry on loopback.

A step may be repeated: the same contents under the same name are no second release. Other contents under a published name are refused,
since a version never changes. No step knows a registry's host or a credential; they come from the caller and from the tools' own logins.
"""

from __future__ import annotations
