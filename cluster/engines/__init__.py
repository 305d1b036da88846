"""Engines: how settings become the command of a server process, and how to talk to it once it runs."""
