"""`tidegate watch`: the lake as a stream.

admission → file_log → source      which files come next, written down, read
streams                            rows → windows, on Spark
compliance, anomalies              windows → verdicts that slide along, anomalies
batches                            each batch stored once, with what the next one needs to know
watch                              all of it together, with a lock
"""
