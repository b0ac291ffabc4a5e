"""`python -m gangline.cli`: the same as the `gangline` command, in exactly this interpreter."""

from . import main

if __name__ == "__main__":
    main()
