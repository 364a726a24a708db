"""Events of contract subjects on their way to a remote service, sent in order per subject."""
