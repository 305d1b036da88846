"""What needs torch: runs in the lab environment (nox -s lab)."""
