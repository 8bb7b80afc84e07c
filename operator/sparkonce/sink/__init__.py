"""Outputs with at most one committed effect per (key, output, generation).

`protocol` defines sinks and slots, `stream` the chain of a stream's batches, `transaction` several outputs at once, `staging` the write
itself; the packages below implement slot logs, Delta and Iceberg tables and the object stores they use. `open` picks the sink.
"""
