"""How a task's code runs: on the loop, in threads, in processes. Imports only: pool, context."""
