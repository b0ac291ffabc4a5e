"""What the demo prints."""
