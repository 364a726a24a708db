"""Cutting plans: a library that knows no jobs and no HTTP.

`solver` makes a plan of an order, `verify` checks one without a line of the search, `document`
writes and reads it as XML, `drawing` draws it.
"""
