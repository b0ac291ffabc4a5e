"""One module per command. They import only light modules at their top; see `app`."""
