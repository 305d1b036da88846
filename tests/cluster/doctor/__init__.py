"""Tests of doctor's checks."""
