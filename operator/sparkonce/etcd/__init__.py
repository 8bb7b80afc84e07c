"""The thin client of etcd's v3 API: what the cluster's store and the lanes need of it, and nothing else.

`client.Client` is the face: `range`, `txn`, leases, `watch`. Values are in `kv`, errors in `errors`. The libraries on the package index
were measured and not taken: one cannot be imported beside PySpark's protobuf, one repeats a transaction silently and so tells a
winner that it lost, and most never recover from a dead endpoint or an expired token. What is promised here, each with a test that
breaks a real etcd: a transaction leaves this process once; an error says whether etcd answered; a lease is refreshed although
the event loop is blocked, and is called lost too early rather than too late; a watch loses nothing silently.
"""

from __future__ import annotations
