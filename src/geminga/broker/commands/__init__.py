"""Binary protocol: connections, the handlers of commands, and the answers as frames."""
