"""APIs that are other words for a chat: translated to its request, and from its deltas. No logic of its own."""
