"""What the demo proves at its end."""
