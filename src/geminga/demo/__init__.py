"""The main job on real data: flights, published, kept, streamed through Spark into a lake, and proved."""
