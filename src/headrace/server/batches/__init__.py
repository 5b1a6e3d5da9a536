"""Files and batches: work that nobody waits for."""
