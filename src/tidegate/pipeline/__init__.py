"""The data pipeline on Spark: from telemetry to knowledge. The only home of pyspark."""
