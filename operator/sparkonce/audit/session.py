"""A local Spark for an audit that was started outside of any.

PySpark takes Ctrl-C over when it starts, to cancel its jobs; an audit has nothing to settle, so it is given back to whoever had it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_session() -> SparkSession:
    """All cores of this machine; its console quiet. Workers are this very Python, which has this package."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    before = signal.getsignal(signal.SIGINT)
    session = (
        SparkSession.builder.master(os.environ.get("SPARKONCE_MASTER", "local[*]"))
        .appName("sparkonce-audit")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    return session
