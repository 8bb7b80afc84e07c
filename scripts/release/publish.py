"""Pushes the images and the chart of a folder to a registry, signs them, and lists what it published.

Before anything is pushed, all files must be there, and no name may be published with other contents: a version that half of its readers
have in another form cannot be taken back. A push whose answer was lost is repeated and finds its own contents. Two runs at once push the
same contents, or one of them finds those of the other and refuses; the workflow lets only one run at a time.

Signatures are cosign's, keyless: the identity is the workflow's, by a token that the runner gives it, and there is no key. They are made
of digests, never of tags, which can be moved. A second signature of the same digest does no harm.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from images import contents, layers
from images.archive import ARCHITECTURES
from images.command import run
from images.contents import NotBuilt
from release.layout import Layout, joined
from release.version import NotReleased, current

ABSENT = re.compile(r"MANIFEST_UNKNOWN|NAME_UNKNOWN|NOT_FOUND|404 Not Found")
"""What crane quotes of a registry that answered that there is no such name. Any other failure says nothing about it."""
CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
SUMS = "SHA256SUMS"
"""Lines of digest and name, as sha256sum writes them, of the files of this release; `PUBLISHED` has those of images and chart."""
PUBLISHED = "published.txt"


def all_of(folder: Path, *, registry: str) -> Iterator[str]:
    """Yields NAME@DIGEST of each image and of the chart once it is published and signed.

    Writes two lists into the folder: `SHA256SUMS` of the files that people download, and `published.txt` of the names in the registry, in
    the same form, for an attestation of where they come from.

    Raises:
        NotReleased: a file is missing, or a name is published with other contents.
        NotBuilt: crane, helm, cosign or the registry failed; the same command may be repeated.
    """
    version = current()
    chart = folder / f"sparkonce-{version}.tgz"
    files = [chart, *(folder / f"sparkonce-{version}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json"))]
    archives = {
        name: {each: folder / f"{name}-{each}.tar" for each in ARCHITECTURES.values()} for name in contents.images()
    }
    bills = [each.with_suffix(".cdx.json") for of in archives.values() for each in of.values()]
    wanted = [*files, *bills, *(each for of in archives.values() for each in of.values())]
    if missing := [each.name for each in wanted if not each.is_file()]:
        raise NotReleased(
            f"{folder} lacks {', '.join(missing)}: each machine's `images`, `distributions` and `chart` go into one folder"
        )
    with layers.work_folder() as work:
        layouts = {name: joined(list(of.values()), work / name) for name, of in archives.items()}
        names = {name: f"{registry}/{repository(name)}:{version}" for name in layouts}
        chart_name = f"{registry}/charts/sparkonce:{version}"
        new = [name for name, layout in layouts.items() if is_new(names[name], layout)]
        chart_digest = published_chart(chart_name, chart)
        published = {}
        for name, layout in layouts.items():
            if name in new:
                run(["crane", "push", "--index", str(layout.folder), names[name]])
            published[name] = _signed_image(names[name], layout, archives[name])
            yield published[name]
        published["chart"] = _signed(chart_digest or _push_chart(chart_name, chart))
        yield published["chart"]
    for file in files:
        run(["cosign", "sign-blob", "--yes", "--bundle", f"{file}.sigstore.json", str(file)])
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}" for each in [*files, *bills]]
    (folder / SUMS).write_text("\n".join(sums) + "\n")
    lines = [f"{each.rpartition('sha256:')[2]}  {each.partition('@')[0]}" for each in published.values()]
    (folder / PUBLISHED).write_text("\n".join(lines) + "\n")


def repository(name: str) -> str:
    """Name of an image in a registry, as the chart's values have it."""
    return f"sparkonce/{name}"


def digest_of(name: str) -> str | None:
    """Digest under this name in the registry; None if the registry answered that there is none. NotBuilt: it did not answer that."""
    try:
        return run(["crane", "digest", name]).strip()
    except NotBuilt as failed:
        if ABSENT.search(str(failed)):
            return None
        raise


def is_new(name: str, layout: Layout) -> bool:
    """Whether nothing is published under this name. Raises NotReleased if other contents are."""
    there = digest_of(name)
    if there is not None and there != layout.digest:
        raise _other_contents(name, there)
    return there is None


def published_chart(name: str, file: Path) -> str | None:
    """NAME@DIGEST of this chart if it is published already. Its manifest has the time of the push, so its contents are compared."""
    if (digest := digest_of(name)) is None:
        return None
    manifest = json.loads(run(["crane", "manifest", f"{name}@{digest}"]))
    here = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    if [each["digest"] for each in manifest["layers"] if each["mediaType"] == CHART_LAYER] != [here]:
        raise _other_contents(name, digest)
    return f"{_without_tag(name)}@{digest}"


def _push_chart(name: str, file: Path) -> str:
    where = _without_tag(name).rpartition("/")[0]
    plain = ["--plain-http"] if re.match(r"(127\.0\.0\.1|localhost)[:/]", where) else []  # as crane does by itself
    run(["helm", "push", str(file), f"oci://{where}", *plain])
    if (pushed := published_chart(name, file)) is None:
        raise NotReleased(f"helm pushed {file.name}, and the registry has no {name}: does the registry keep charts?")
    return pushed


def _signed_image(name: str, layout: Layout, archives: dict[str, Path]) -> str:
    """Signs the index, and for each architecture says with a signature what is in the image."""
    plain = _without_tag(name)
    for architecture, digest in layout.by_architecture.items():
        bill = str(archives[architecture].with_suffix(".cdx.json"))
        run(["cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", bill, f"{plain}@{digest}"])
    return _signed(f"{plain}@{layout.digest}")


def _signed(reference: str) -> str:
    run(["cosign", "sign", "--yes", "--recursive", reference])
    return reference


def _without_tag(name: str) -> str:
    """The port of a host is not a tag."""
    return name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]


def _other_contents(name: str, there: str) -> NotReleased:
    return NotReleased(
        f"{name} is published already with other contents ({there}): a version never changes; repeat the failed steps with the files of "
        'the first run ("re-run failed jobs"), or release the next version'
    )
