"""A worker: slots of one process, and the tasks that run on them."""
