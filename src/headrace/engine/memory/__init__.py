"""Memory: KV blocks as integers (counts, tables, hashes, eviction order)."""
