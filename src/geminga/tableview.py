"""`TableView` under the module name that ``pulsar-client`` users import; see `geminga.client.table_view`."""

from geminga.client.table_view import TableView

__all__ = ["TableView"]
