"""Above the replicas: known by HTTP only."""
