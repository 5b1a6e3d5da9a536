"""One address in front of many replicas: routing, protection, failover."""
