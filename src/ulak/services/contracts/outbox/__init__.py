"""Events of contract subjects on their way to a remote service: written with the change that they
tell of, sent at least once, in order per subject, by rules that a person can follow."""
