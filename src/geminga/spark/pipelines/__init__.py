"""Pipelines from topics to a lake and back, on Spark Declarative Pipelines (``pyspark.pipelines``).

A pipeline is a project that ``spark-pipelines`` runs as it is: a spec file and Python functions that define
tables. `geminga.spark.pipelines.project` makes such a project from a template, and
`geminga.spark.pipelines.running` runs it with a summary; neither is an engine of its own.
"""
