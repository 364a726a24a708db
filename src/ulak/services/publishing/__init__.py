"""Publishing: posts of a blog, published by a choreographed saga with dead letters."""
