import pytest

from geminga.errors import InvalidConfiguration
from geminga.ledger.settings import StoreSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sync", "sometimes"),
        ("sync_interval_seconds", 0),
        ("group_bytes_max", 10),
        ("folder_bytes_max", "64M"),
        ("log_file_bytes", 1 << 40),
        ("preallocate_bytes", -1),
        ("cache_bytes", True),
        ("checkpoint_log_bytes", 0),
        ("checkpoint_records", 0),
        ("checkpoint_groups", 0),
        ("checkpoint_state_bytes", 0),
        ("rewrite_live_fraction", 1.5),
        ("garbage_bytes_min", -5),
        ("deletion_delay_seconds", float("nan")),
        ("verify_on_open", 1),
    ],
)
def test_invalid_settings_are_refused_naming_field_and_value(field, value):
    with pytest.raises(InvalidConfiguration, match=field):
        StoreSettings(**{field: value})
