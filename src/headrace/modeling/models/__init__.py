"""Model families: names and numbers, no arithmetic."""
