"""`python -m grant_fast.cli`: the `grant-fast` command."""

from . import main

if __name__ == "__main__":  # workers import it, too
    main()
