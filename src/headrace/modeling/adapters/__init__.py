"""Low-rank adapters: read from PEFT files, put into the linears of a recorded model."""
