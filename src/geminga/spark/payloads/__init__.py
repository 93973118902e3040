"""Payloads as columns: topics' schemas in Spark's types, and conversion between payloads and Arrow.

`geminga.spark.payloads.definitions` turns a registered schema into a tree of plain nodes, which all other
modules use. No row becomes a Python object where its format allows it.
"""
