"""Are the data there, whole and readable? What is missing, and what to do next."""
