"""`tidegate watch`: the lake as a stream.

admission → file_log → source      choose the next files, log them, read them
streams                            rows → complete windows, on Spark
service_level, anomalies           windows → sliding service levels, anomalies
batches                            store each batch once, with the state for the next batch
watch                              run all of it, one watcher per folder
"""
