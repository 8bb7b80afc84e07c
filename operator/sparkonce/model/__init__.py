"""What a job is: its spec, its key, its fingerprint. Pure: text and digests in, values out, nothing is read or written.

Nothing is re-exported here: a driver in a job image imports `model.key` without paying for YAML.
"""
