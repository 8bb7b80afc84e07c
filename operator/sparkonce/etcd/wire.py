"""Translates between the values of `kv` and etcd's protobuf messages, and names the RPC methods in use. Pure: no I/O, no decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from sparkonce.etcd.kv import Compare, Delete, KeyValue, Op, Put, Range, RangeReply, TxnReply
from sparkonce.etcd.pb import etcd_pb2 as pb

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True)
class Rpc(Generic[Q, R]):
    """An RPC method of etcd's API, by its path on the wire."""

    path: str
    asks: type[Q]
    answers: type[R]
    needs_leader: bool = True
    """A member without a quorum refuses the call at once; otherwise it would block or return stale data."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


RANGE: Final = Rpc("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = Rpc("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
GRANT: Final = Rpc("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE: Final = Rpc("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
REMAINING: Final = Rpc("/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse)
KEEP_ALIVE: Final = Rpc("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
WATCH: Final = Rpc("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
STATUS: Final = Rpc("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse, needs_leader=False)
AUTHENTICATE: Final = Rpc("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)

_RESULTS: Final = {
    "=": pb.Compare.EQUAL,
    "!=": pb.Compare.NOT_EQUAL,
    "<": pb.Compare.LESS,
    ">": pb.Compare.GREATER,
}


def range_request(asked: Range) -> pb.RangeRequest:
    return pb.RangeRequest(
        key=asked.key,
        range_end=asked.end,
        limit=asked.limit,
        revision=asked.revision,
        keys_only=asked.keys_only,
        count_only=asked.count_only,
    )


def txn_request(compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[_compare(each) for each in compare],
        success=[_operation(each) for each in then],
        failure=[_operation(each) for each in otherwise],
    )


def _operation(op: Op) -> pb.RequestOp:
    if isinstance(op, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=op.key, value=op.value, lease=op.lease))
    if isinstance(op, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=op.key, range_end=op.end))
    if isinstance(op, Range):
        return pb.RequestOp(request_range=range_request(op))
    return pb.RequestOp(request_txn=txn_request(op.compare, op.then, op.otherwise))


def _compare(asked: Compare) -> pb.Compare:
    message = pb.Compare(result=_RESULTS[asked.op], key=asked.key, range_end=asked.end)
    if isinstance(asked.value, bytes) != (asked.target == "value"):
        raise TypeError(
            f"a compare of {asked.target!r} with {type(asked.value).__name__}: 'value' takes bytes, the other targets an int"
        )
    if isinstance(asked.value, bytes):
        message.target, message.value = pb.Compare.VALUE, asked.value
    elif asked.target == "create":
        message.target, message.create_revision = pb.Compare.CREATE, asked.value
    elif asked.target == "mod":
        message.target, message.mod_revision = pb.Compare.MOD, asked.value
    elif asked.target == "version":
        message.target, message.version = pb.Compare.VERSION, asked.value
    else:
        message.target, message.lease = pb.Compare.LEASE, asked.value
    return message


def key_value(message: pb.KeyValue) -> KeyValue:
    return KeyValue(
        key=message.key,
        value=message.value,
        create_revision=message.create_revision,
        mod_revision=message.mod_revision,
        version=message.version,
        lease=message.lease,
    )


def range_reply(message: pb.RangeResponse, *, revision: int | None = None) -> RangeReply:
    kvs = tuple(key_value(each) for each in message.kvs)
    at = message.header.revision if revision is None else revision
    return RangeReply(kvs=kvs, more=message.more, count=message.count, revision=at)


def txn_reply(message: pb.TxnResponse, *, revision: int | None = None) -> TxnReply:
    """The reply to a transaction. Nested headers are not reliably filled; the outermost revision holds for the whole transaction."""
    at = message.header.revision if revision is None else revision
    replies = tuple(_reply(each, at) for each in message.responses)
    return TxnReply(succeeded=message.succeeded, revision=at, replies=replies)


def _reply(message: pb.ResponseOp, revision: int) -> RangeReply | int | TxnReply | None:
    match message.WhichOneof("response"):
        case "response_range":
            return range_reply(message.response_range, revision=revision)
        case "response_delete_range":
            return message.response_delete_range.deleted
        case "response_txn":
            return txn_reply(message.response_txn, revision=revision)
        case _:
            return None
