"""`geminga.asyncio.Admin`; `geminga.client.admin.sync` runs its methods for threads."""
