"""What peers ask for: connections, their commands, and the answers as frames."""
