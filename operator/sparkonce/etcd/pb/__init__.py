"""Messages of etcd's API, compiled from `etcd.proto` beside this file.

Checked in, so that an installation needs no compiler. `tests/etcd/test_messages.py` fails when they are stale and prints how to compile
them again. Only `etcd/wire.py` and the modules that make calls import them.
"""

from __future__ import annotations
