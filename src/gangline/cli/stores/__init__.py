"""What commands read and write themselves."""
