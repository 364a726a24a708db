"""The long soak: a modest load for hours on each store, after which nothing may have grown."""
