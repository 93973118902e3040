"""`TableView` under the module name that ``pulsar-client`` users import; see
`geminga.client.receive.table_view`."""

from geminga.client.receive.table_view import TableView

__all__ = ["TableView"]
