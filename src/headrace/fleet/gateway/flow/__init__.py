"""Flow control: requests wait here, in a fair order, until a replica has room for them."""
