"""The engine: accepts jobs, runs their stages, and keeps the promises between."""
