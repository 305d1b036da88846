"""Images: what they are (identity), how they are made (build), fetched (pull) and brought to every node (ship)."""
