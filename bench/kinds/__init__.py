"""The kinds of documents under results/, by the name of their schema: the one place where a new kind of receipt is plugged in."""
