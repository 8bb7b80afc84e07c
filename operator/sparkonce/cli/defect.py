"""What is said of an error that nobody foresaw: one sentence, and where its traceback is."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from pathlib import Path


def defect_sentence(error: BaseException) -> str:
    """Writes the traceback beside the default ledger, or to the temporary folder."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    kept = _keep("".join(traceback.format_exception(error)))
    details = f"details are in {kept}" if kept else "and its details could not be written anywhere"
    return f"a defect of sparkonce ({said}); {details}; nothing is lost, sending the job again is safe"


def _keep(text: str) -> Path | None:
    name = f"defect-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (_data_folder, lambda: Path(tempfile.gettempdir())):
        try:
            path = folder() / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            path.write_text(text)
        except (OSError, ImportError):
            continue
        return path
    return None


def _data_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("sparkonce")
