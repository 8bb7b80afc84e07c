"""Local mode: the same store protocol, decisions and sinks as the operator's, in one process on one machine.

`prepare` turns a manifest into a request, `runner` carries it to its answer, `notebook` does both for a block of code.
"""
