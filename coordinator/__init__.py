"""The gang coordinator: N slots over many workers, all or nothing, that live, fail and restart together."""
