"""How many replicas the work takes: one pure function a file, `need(scene) -> Need | None`; None is "cannot tell"."""
