"""Every law of the source documents: measurements in, decision out. Pure.

No clock, no I/O and no randomness inside. Where a law is plain arithmetic, the same function takes
numbers, numpy arrays and Spark Columns, so that a formula is written once.
"""
