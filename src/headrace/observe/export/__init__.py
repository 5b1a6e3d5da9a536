"""Files for Prometheus and Grafana, made of the catalogue and of a fleet's objectives."""
