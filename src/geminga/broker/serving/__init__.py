"""The broker's shell: sockets, clock and threads, as a process or inside a program."""
