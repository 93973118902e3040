"""Payloads as columns: what topics' schemas mean in Spark's types, and both ways between payloads and Arrow.

`geminga.spark.payloads.definitions` turns a registered schema into a tree of plain nodes, and everything else
works on that tree. No row becomes a Python object where its format allows it.
"""
