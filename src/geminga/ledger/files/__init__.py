"""Files of a store: the folder, the format of its files, the file system, and the free space."""
