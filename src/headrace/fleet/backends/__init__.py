"""Servers that a replica may be: how each is probed, asked, understood. One module a dialect; nothing here does I/O."""
