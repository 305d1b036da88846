"""The phases: which requests each one sends, when, and in what order. What follows from them is derived elsewhere (bench.derive)."""
