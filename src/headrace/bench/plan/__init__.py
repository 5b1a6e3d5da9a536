"""How many replicas a model needs, from its header and a machine's figures."""
