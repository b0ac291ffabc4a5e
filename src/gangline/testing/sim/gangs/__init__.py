"""What is checked of gangs."""
