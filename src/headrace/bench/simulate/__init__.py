"""A fleet on a fake clock: production decisions over replicas that cost calibrated time."""
