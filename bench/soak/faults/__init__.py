"""Faults under a steady load: what each costs, and how soon the former rate is back."""
