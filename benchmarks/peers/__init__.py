"""What we measure ourselves against, each written as its own users would write it."""
