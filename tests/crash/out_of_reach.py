"""The command line whose stops have no effect, as if the node of every earlier attempt were unreachable: `python -m crash.out_of_reach`.

`sparkonce run` ends an attempt on this machine before it replaces it, so that no frozen driver could ever wake beside its successor.
"""

from __future__ import annotations

import os
import sys
from unittest.mock import patch

from sparkonce.__main__ import leave
from sparkonce.cli.app import main
from sparkonce.launch.local import LocalLauncher, place
from sparkonce.launch.protocol import StillThere
from sparkonce.model.record import Assignment


async def stop(self: LocalLauncher, assignment: Assignment, *, timeout: float) -> StillThere:
    del timeout
    lock = place(self.attempts / assignment.name, assignment, stopped=True)
    if lock is not None:
        os.close(lock)
    return StillThere("its node is out of reach")


if __name__ == "__main__":
    with patch.object(LocalLauncher, "stop", stop):
        leave(main(sys.argv[1:]))
