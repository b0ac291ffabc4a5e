"""What commands read and change of workers, gangs, tasks and routes, and how it is shown."""
