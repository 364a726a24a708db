"""Ready services, built on ulak's public names as a stranger would build them."""
