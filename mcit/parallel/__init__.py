"""Several processes as one: rows of a global batch, parts of weights, exchanges."""
