"""A local Spark session for an audit that runs outside Spark.

PySpark replaces the SIGINT handler when it starts, to cancel its jobs; an audit has nothing to settle, so the previous handler is restored.
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
    """A session on all local cores with a quiet console. Workers use this Python, which has this package installed."""
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
