"""Received messages of tests, as schemas see them."""


class Received:
    def __init__(self, data=b"", key=None, base64=True, null=False, version=""):
        self._data, self._key, self._base64, self._null, self._version = data, key, base64, null, version

    def data(self):
        return self._data

    def has_null_value(self):
        return self._null

    def has_partition_key(self):
        return self._key is not None

    def partition_key(self):
        return self._key

    def partition_key_is_base64(self):
        return self._base64

    def topic_name(self):
        return "t"

    def schema_version(self):
        return self._version
