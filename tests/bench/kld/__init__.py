"""Tests of the KLD panel; those that need torch are under tests/lab/kld."""
