"""Doctor: judges what a look at the nodes found. Pure functions from facts and settings to findings; it never changes anything."""
