"""What is checked of gangs. Imports only: history."""
