"""What the operator of a fleet decides: the tables of `fleet.yaml`, one module a table."""
