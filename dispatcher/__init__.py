"""The layers between a caller and the workers: routing core, router, client, gateway."""
