"""A fake of kubeflow's Spark operator 2.5.2 and of the node that runs its drivers, for tests against a real API server.

    with FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace) as kubeflow:
        kubeflow.on(Script(exit_code=1), labels={ATTEMPT_LABEL: "1"})

`script.py` defines the behaviours, `states.py` the statuses that the real operator writes; `operator.py` and `kubelet.py` act them out,
`wire.py` is their client, `drivers.py` has drivers that write outputs.
"""

from __future__ import annotations

from harness.kubeflow.fake import FakeKubeflow
from harness.kubeflow.kubelet import Run
from harness.kubeflow.script import Driver, Lie, Moment, Script, Scripts

__all__ = ["Driver", "FakeKubeflow", "Lie", "Moment", "Run", "Script", "Scripts"]
