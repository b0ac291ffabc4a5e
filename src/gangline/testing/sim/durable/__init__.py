"""What is checked of durable tasks."""
