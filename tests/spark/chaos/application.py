"""A Spark application of its own, for faults that end a driver or an executor: streams from topic to topic.

    python application.py '{"master": ..., "settings": {...}, "streams": [{...}]}'

Each stream has the options of its ``source`` and its ``sink``, the latter with the checkpoint, and runs up to
what there is; then comes the next.
"""

import json
import sys

from faulty_source import FaultyDataSource
from pyspark.errors import StreamingQueryException

import geminga.spark

TOO_SLOW = "Python worker failed to connect back"
"""Spark's error if a Python process did not start within ten seconds, as on a busy machine."""
ATTEMPTS = 5


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = geminga.spark.session(job["master"], "chaos", job["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultyDataSource)
    name = FaultyDataSource.name()
    for stream in job["streams"]:
        rows = spark.readStream.format(name).options(**stream["source"]).load()
        sink = rows.writeStream.format(name).options(**stream["sink"]).trigger(availableNow=True)
        for left in reversed(range(ATTEMPTS)):
            try:
                sink.start().awaitTermination()
                break
            except StreamingQueryException as error:
                if TOO_SLOW not in str(error) or not left:
                    raise
    spark.stop()


if __name__ == "__main__":
    main()
