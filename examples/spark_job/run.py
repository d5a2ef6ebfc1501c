"""A Spark job over a queue: sales come in, totals go out, each sale counts once.

python examples/spark_job/run.py
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cluster import running_cluster, temporary_folder  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402, N812

import tidegate  # noqa: E402
from tidegate.pipeline import connector  # noqa: E402
from tidegate.pipeline.session import SparkOptions, spark_session  # noqa: E402

ITEMS = {"tea": 4, "ink": 9, "book": 21}
SALES = 3000
PER_BATCH = 1000


def main() -> None:
    draw = random.Random(1)
    sold = [draw.choice(list(ITEMS)) for _ in range(SALES)]
    with temporary_folder() as folder, running_cluster(folder, HERE) as address:
        with tidegate.connect() as mq:
            mq.create_queue("sales")
            mq.create_queue("totals", policy=tidegate.QueuePolicy(dedup_window_s=3600))
            mq.put_many("sales", [json.dumps({"item": item}).encode() for item in sold])
            print(f"{SALES} sales wait in a queue at {address}.")
            # Any Spark will do; this one finds its own Java, and leaves nothing behind.
            with spark_session(SparkOptions(master="local[2]", brief=True)) as spark:
                connector.register(spark)
                batches = run_job(spark, address, folder / "checkpoint")
            print(f"Spark took them in {batches} batches, and wrote totals to another queue.")
            counted: dict[str, int] = dict.fromkeys(ITEMS, 0)
            for message in [mq.get("totals") for _ in range(batches * len(ITEMS))]:
                total = json.loads(message.payload)
                counted[total["item"]] += total["revenue"]
            assert mq.stats("sales").queue("sales").waiting == 0, "all were acknowledged"
        for item, price in ITEMS.items():
            print(f"{item:5} {counted[item]:7,}")
            assert counted[item] == sold.count(item) * price, "a sale is missing, or there twice"
        print("It adds up: every sale was in exactly one batch.")


def run_job(spark: SparkSession, address: str, checkpoint: Path) -> int:
    """Everything that waits, batch by batch; how many there were."""
    price = F.create_map(*(F.lit(word) for pair in ITEMS.items() for word in pair))

    def write_totals(batch: DataFrame, number: int) -> None:
        sales = batch.select(
            F.from_json(F.col("payload").cast("string"), "item string")["item"].alias("item")
        )
        totals = sales.groupBy("item").agg(F.sum(price[F.col("item")]).alias("revenue"))
        # A batch that is written again has the same keys, and is stored once.
        totals.select(
            F.concat_ws("/", F.lit(number), "item").alias("key"),
            F.to_json(F.struct("item", "revenue")).alias("payload"),
        ).write.format("tidegate").mode("append").option("url", address).option(
            "queue", "totals"
        ).option("key", "key").save()

    sales = spark.readStream.format("tidegate").option("url", address).option("queue", "sales")
    query = (
        sales.option("messagesPerBatch", PER_BATCH)
        .load()
        .writeStream.foreachBatch(write_totals)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(1 for one in query.recentProgress if one["numInputRows"])


if __name__ == "__main__":
    main()
