"""Commands about gangs and standing sets."""
