"""The checked-in messages are what the compiler makes of the proto, and can be loaded beside another etcd library's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pool

from sparkonce.etcd.pb import etcd_pb2

SOURCES = Path(__file__).resolve().parents[2] / "operator"
PROTO = "sparkonce/etcd/pb/etcd.proto"


def test_the_checked_in_messages_are_fresh(tmp_path: Path) -> None:
    """Compiling the proto gives the checked-in files.

    If this fails: `python -m grpc_tools.protoc -I operator --python_out=operator --pyi_out=operator operator/sparkonce/etcd/pb/etcd.proto`.
    """
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{SOURCES}",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, str(SOURCES / PROTO)], check=True)
    for name in ("etcd_pb2.py", "etcd_pb2.pyi"):
        made = (tmp_path / PROTO).with_name(name).read_text()
        assert made == (SOURCES / PROTO).with_name(name).read_text(), f"{name} is stale"


def test_the_messages_take_no_name_of_etcds() -> None:
    """Our messages are registered under a package of ours, so another library with etcd's own names meets no duplicate symbol."""
    assert etcd_pb2.DESCRIPTOR.package == "sparkonce.etcd"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(etcd_pb2.DESCRIPTOR.serialized_pb)
    for theirs in ("etcdserverpb.TxnRequest", "mvccpb.KeyValue", "authpb.User"):
        try:
            found = pool.FindMessageTypeByName(theirs)
        except KeyError:
            continue
        raise AssertionError(f"{found.full_name} is registered by us")


def test_the_proto_carries_its_licence() -> None:
    """The field numbers come from etcd's proto: the file names its authors and licence, and says that we changed it."""
    text = (SOURCES / PROTO).read_text()
    assert "The etcd Authors" in text
    assert "Apache License, Version 2.0" in text
    assert "Changed by" in text
