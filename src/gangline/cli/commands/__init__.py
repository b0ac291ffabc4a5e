"""One module for each command. At their top they import only what is light; see `app`."""
