"""One run: everything between a data set and trained weights, and what these predict."""
