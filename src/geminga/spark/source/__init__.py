"""Reading: the plan of a query, made on Spark's driver, and the tasks that read its ranges.

`geminga.spark.source.planning` plans, `geminga.spark.source.reading` is the work of a task.
"""
