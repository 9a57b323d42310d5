"""`python -m grant_fast`: the `grant-fast` command."""

from .cli import main

if __name__ == "__main__":  # workers import it, too
    main()
