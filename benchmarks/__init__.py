"""Speed, measured beside the best peer on the same data in the same process."""
