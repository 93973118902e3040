"""`geminga.asyncio.Admin`, written by hand; `geminga.client.admin.sync` is generated from it."""
