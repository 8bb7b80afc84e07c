"""A thin client of etcd's v3 API, limited to the calls that the store needs.

`client.Client` is the entry point: `range`, `txn`, leases, `watch`. Values are in `kv`, errors in `errors`. Existing client libraries
were measured and rejected: one cannot be imported next to PySpark's protobuf, one silently retries transactions and so reports a
committed transaction as failed, and most never recover from a dead endpoint or an expired token. Guarantees, each tested by breaking
a real etcd: a transaction is sent once; an error says whether etcd answered; a lease is refreshed even while the event loop is
blocked, and is declared lost too early rather than too late; a watch never loses events silently.
"""

from __future__ import annotations
