"""The words everything is said in: values that cross boundaries. Standard library and msgspec only."""
