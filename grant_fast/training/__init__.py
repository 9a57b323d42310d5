"""Training, honest comparison and prediction: everything between a dataset and a result."""
