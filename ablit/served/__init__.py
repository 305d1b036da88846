"""Sweeps of a served model: every point is a fresh start of a kit with ABLIT=1, measured over HTTP.

Needs neither torch nor the lab environment. What starts and stops a kit is in tasks.py alone; the rest knows a URL.
"""
