"""The second engine: WeasyPrint in processes of its own, for hosts without a browser (0008)."""
