"""Demo on real data: flights are published, streamed through Spark into a lake, and checked."""
