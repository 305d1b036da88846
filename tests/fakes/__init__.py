"""Fakes at the boundary: a scripted OpenAI-compatible server (`sse_server`)."""
