"""Results: what stages and verbs return, keep as receipts and print."""
