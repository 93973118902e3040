"""The broker's I/O layer: sockets, clock and threads, as a process or inside a program."""
