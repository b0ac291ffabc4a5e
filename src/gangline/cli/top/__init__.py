"""`gangline top`: the board in a terminal, plain or with keys."""
