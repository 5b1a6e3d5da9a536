"""Tools that the gateway calls for a model, and the loop that gives their results back to it."""
