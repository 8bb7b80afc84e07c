"""The verbs that people apply to keys: find, describe, cancel, rerun, resolve, forget, purge, explain.

`operate` acts on a ledger whose attempts run on this machine, `remote` on one whose attempts run on a cluster. Both use the store's verbs
and the drive that requests use, so that a command which dies half-way leaves what any dead owner leaves.
"""
