"""The command line, as a user calls it."""
