"""Execute: from a step plan to ragged arrays, through the model, to sampled tokens."""
