"""What goes wrong, each with a stable code. Imports only: text."""
