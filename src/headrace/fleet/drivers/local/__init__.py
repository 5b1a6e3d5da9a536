"""Replicas as processes of this machine, which outlive whoever started them."""
