"""The checks that the demo makes at its end."""
