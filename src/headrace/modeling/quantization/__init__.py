"""File types and float weights, turned into the few formats that kernels read."""
