"""One operator process: reconciles keys, drives those it owns, writes statuses, collects garbage.

`controller` owns the queue, the lease and the loops; `reconcile` handles one key; `plan` decides what its objects ask for; `admission`
opens generations; `drive_tasks` runs the drives; `status` and `status_writer` report. Imports no Kubernetes client: `objects` is the
protocol that `kube/` implements.
"""
