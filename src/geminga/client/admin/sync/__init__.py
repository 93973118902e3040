"""`geminga.Admin`, made of `geminga.client.admin.aio` by ``tools/generate_sync.py``: do not edit."""
