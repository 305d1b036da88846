"""The launcher: real processes, real sockets, real files."""
