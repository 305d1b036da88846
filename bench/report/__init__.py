"""All tables and figures of the committed receipts as one self-contained page."""
