"""Where weights come from, how they are read, and the packed form kept on disk."""
