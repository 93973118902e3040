"""The interfaces of Pulsar Functions: what a function is written against, under ``pulsar-client``'s names.

A function runs inside a Pulsar cluster's function worker, which brings its own context; here are the names
that its module imports, so that it can be written and tested without one.
"""
