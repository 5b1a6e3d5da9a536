"""The command line: one module per sub-command, imported when it is called."""
