"""Values of the domain: the job's spec, key and fingerprint, and the record. Pure: text and digests in, values out, no I/O.

Re-exports nothing, so that a driver in a job image can import `model.identity` without importing a YAML parser.
"""
