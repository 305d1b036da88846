"""Figures that other tools measured, kept apart from receipts: unsealed, protocol named, shown beside ours and never mixed in."""
