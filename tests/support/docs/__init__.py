"""The generated parts of the documentation, and the hooks of its site."""
