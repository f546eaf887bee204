"""Distributes work: Ray Data, and packages that classify in processes of their own."""
