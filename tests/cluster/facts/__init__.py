"""Tests of the parsers, on text of the shape that the tools print."""
