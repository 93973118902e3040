"""The examples of the pages about Spark run, one after the other, as they stand there."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("page", "examples"), [("spark.md", 9), ("coming-from-kafka.md", 2), ("offloading.md", 4)]
)
def test_the_page_runs(spark, pulsar_broker, tmp_path, page, examples):
    names: dict[str, Any] = {}
    text = (DOCS / page).read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) >= examples
    try:
        for block in blocks:
            code = block[1].replace("pulsar://localhost:6650", pulsar_broker.service_url)
            code = code.replace("http://localhost:8080", pulsar_broker.admin_url)
            code = code.replace("/tmp/", f"{tmp_path}/")
            before = text.count("\n", 0, block.start(1))
            # Spark gets as far as the call; its JAR is not here.
            needs_jar = pytest.raises(AnalysisException, match="spark-protobuf")
            with needs_jar if "from_protobuf" in code else contextlib.nullcontext():
                exec(compile("\n" * before + code, page, "exec"), names)
    finally:
        for query in spark.streams.active:
            query.stop()
        if "broker" in names:
            names["broker"].close()
