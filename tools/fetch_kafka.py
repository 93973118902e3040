"""Fetch an Apache Kafka broker and Spark's modules for Kafka and Avro to ``.cache/kafka`` with Maven."""

from __future__ import annotations

import sys

from fetch_pulsar import CACHE, maven

HOME = CACHE / "kafka"
ARTIFACTS = {
    "broker": "org.apache.kafka:kafka_2.13:4.0.1",
    "source": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "avro": "org.apache.spark:spark-avro_2.13:4.2.0",
}
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>here</groupId><artifactId>here</artifactId>
<version>1</version><dependencies><dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency></dependencies></project>"""


def main() -> int:
    """Fetch what is missing; return the exit status."""
    for name, artifact in ARTIFACTS.items():
        folder = HOME / name
        if (folder / "lib").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM.format(*artifact.split(":")))
        if not maven("copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib", folder=folder):
            return 1
    print(f"Apache Kafka, and Spark's modules for it and for Avro: {HOME}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
