"""Help for tests of programs that use Pulsar.

`geminga.testing.plugin` gives pytest fixtures with a broker in the same process (``pulsar_broker``,
``pulsar_file_broker``, ``pulsar_client``, ``pulsar_topic``); pytest loads it by itself.
`geminga.testing.apache_pulsar` runs a real Apache Pulsar where one is unpacked.
"""
