"""What is stored, and read by others. Imports only: names, wire, errors."""
