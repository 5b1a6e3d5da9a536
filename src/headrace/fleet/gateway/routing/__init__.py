"""Which replica gets a request: pure functions over values, one module a policy."""
