"""The engine: schedule, execute, commit, in a process of its own or in this one."""
