"""The data pipeline: Spark jobs that turn recorded telemetry into models.

Only this package and its benchmark import pyspark.
"""
