"""`python -m gangline`: the same as the `gangline` command, in exactly this interpreter."""

from .cli import main

if __name__ == "__main__":
    main()
