"""`geminga.asyncio.Admin`, written by hand; `geminga.client.admin.sync` is made of it."""
