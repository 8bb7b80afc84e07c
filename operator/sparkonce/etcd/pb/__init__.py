"""Messages of etcd's API, compiled from `etcd.proto` beside this file.

Checked in, so that an installation needs no compiler. `tests/etcd/test_messages.py` says when they are stale, and how to compile
them again. Nothing but `etcd/wire.py` and the modules that make calls looks in here.
"""

from __future__ import annotations
