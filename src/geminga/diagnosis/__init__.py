"""Diagnosis of a subscription: why its messages are not delivered, concluded once for every user interface.

`facts` holds the figures, `conclude` draws the findings from them, `pulsar` reads the figures from the admin
REST of an Apache Pulsar. Brokers and clients share the package, so it imports neither.
"""
