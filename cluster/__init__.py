"""The launcher: kits, settings, plans, and the life cycle of a served model on one or several nodes."""
