"""The clients for threads and for asyncio, and what is built on them."""
