"""Spark's program ``spark-pipelines``, with its own Spark at any port: alone it takes the port 15002.

Python puts a script's folder before all others on the search path: hence a folder of its own.
"""

import os
import runpy

if __name__ == "__main__":
    os.environ["SPARK_TESTING"] = "1"  # PySpark's own switch for it, in this process alone
    runpy.run_module("pyspark.pipelines.cli", run_name="__main__", alter_sys=True)
