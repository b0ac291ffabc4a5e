"""Commands for developers and administrators."""
