"""Writing: tasks that publish the rows of a frame, if wanted each row exactly once.

`geminga.spark.sink.writing` begins every write; `geminga.spark.sink.exactly_once` has the sinks that publish
each row exactly once.
"""
