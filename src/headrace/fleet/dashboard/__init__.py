"""One page on which an operator sees the fleet: its data, computed in the gateway, and the files that show it."""
