"""What the console costs, and how soon a browser shows it."""
