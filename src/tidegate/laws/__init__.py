"""Control laws: pure functions from measurements to proposals.

A law reads no clock, does no I/O and draws no random numbers of its own. The caller passes time,
limits and random generators in. The formulas come from the source papers; each module states where
a paper has a misprint or leaves a question open, and how the law settles it.

Where a law is plain arithmetic, one function accepts numbers, numpy arrays and Spark Columns, so
that each formula is written once.
"""
