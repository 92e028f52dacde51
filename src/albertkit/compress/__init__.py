"""What makes a model smaller or tells how large it is."""
