"""What can be seen from outside: the metric catalogue, logs, the step timeline."""
