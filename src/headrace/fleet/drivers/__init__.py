"""Who starts and stops replicas: local processes, Ray, Kubernetes."""
